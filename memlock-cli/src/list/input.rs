//! The keys on standard input, a batch at a time.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd};

use crate::exit::{CliError, Status};
use crate::text::shown;

/// How many keys are inserted at once.
const BATCH: usize = 1000;
/// No key is longer, and what is read of a line beyond that is not kept.
const LONGEST_KEY: u64 = 64 * 1024;

/// Standard input. Nothing else may read from it.
pub(super) struct Input {
    from: BufReader<File>,
    /// What is behind each key.
    end: u8,
    /// How many keys were begun, empty ones too.
    begun: u64,
    bytes: u64,
}

impl Input {
    pub(super) fn new(end: u8) -> io::Result<Input> {
        // The standard library's own reader does not tell what it has in its buffer.
        let file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        Ok(Input { from: BufReader::new(file), end, begun: 0, bytes: 0 })
    }

    pub(super) fn file(&self) -> &File {
        self.from.get_ref()
    }

    /// How many bytes the keys have taken so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds the next keys to `keys`, for as long as they come without a pause; false at the end.
    /// What was added before an error is there.
    pub(super) fn batch(&mut self, keys: &mut Vec<Vec<u8>>) -> Result<bool, CliError> {
        while keys.len() < BATCH {
            self.begun += 1;
            let read = key(&mut self.from, self.end);
            let Some((key, bytes)) = read.map_err(|error| self.here(&error))? else {
                return Ok(false);
            };
            self.bytes += bytes;
            if !key.is_empty() {
                keys.push(key);
            }
            // The program that wrote these may want the answers before it writes more.
            let is_there = self.is_next_there().map_err(|error| {
                self.begun += 1;
                self.here(&error.into())
            });
            if !is_there? {
                break;
            }
        }
        Ok(true)
    }

    /// Whether the next key, or the end, can be read without waiting for it, as far as can be seen.
    fn is_next_there(&mut self) -> io::Result<bool> {
        if self.from.buffer().contains(&self.end) {
            return Ok(true);
        }
        let mut input =
            libc::pollfd { fd: self.file().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd is given.
        if unsafe { libc::poll(&raw mut input, 1, 0) } == 0 {
            return Ok(false);
        }
        if !self.from.buffer().is_empty() {
            return Ok(true);
        }
        // It is not known when half a line goes on. The end comes again when it is read.
        let more = self.from.fill_buf()?;
        Ok(more.is_empty() || more.contains(&self.end))
    }

    /// Says where the error is, and what became of the rest.
    fn here(&self, error: &CliError) -> CliError {
        let what = if self.end == b'\n' { "Line" } else { "Key" };
        let CliError { status, message } = error;
        CliError::new(
            *status,
            format!("{what} {}: {message} All keys before it were inserted.", self.begun),
        )
    }
}

/// The next key, and how many bytes it took; `None` at the end.
pub(crate) fn key(input: &mut impl BufRead, end: u8) -> Result<Option<(Vec<u8>, u64)>, CliError> {
    let mut key = Vec::new();
    let read = io::Read::take(&mut *input, LONGEST_KEY + 1).read_until(end, &mut key)?;
    if read == 0 {
        return Ok(None);
    }
    if key.last() == Some(&end) {
        key.pop();
    } else if key.len() as u64 > LONGEST_KEY {
        return Err(CliError::new(
            Status::USAGE,
            format!("The key {}… is longer than 64 KiB.", shown(&key[..40])),
        ));
    }
    Ok(Some((key, read as u64)))
}
