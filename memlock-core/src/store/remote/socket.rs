//! One connection: deadlines, input and output.
//!
//! Timeouts are set on the socket once, when it is opened, so that a round trip costs two system
//! calls: one write, one read. A whole batch has a deadline, too, but the deadline is checked only
//! if the replies do not arrive in one piece; a batch therefore ends within three times the
//! timeout. Any error closes the connection: a late reply must never be taken for the reply to the
//! next request.

use std::io::{ErrorKind as IoKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::dial::{connect, unreachable};
#[cfg(feature = "tls")]
use super::settings::Place;
use super::settings::{Address, BRIEFLY};
use super::stream::Stream;
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Failure;
#[cfg(feature = "tls")]
use crate::store::tls::{self, Tls};

/// The longest reply line that is read before the connection is given up.
const LONGEST_LINE: usize = 2048;
/// How many bytes are read at once.
const CHUNK: usize = 16 * 1024;
/// A request up to this size is written in one piece. A longer one is written while its replies are
/// read, because a server that cannot deliver its replies stops reading.
const SMALL_REQUEST: usize = 16 * 1024;
/// The most bytes of replies that are buffered while a long request is still being written.
const LARGEST_BACKLOG: usize = 64 * 1024 * 1024;
/// A connection that was idle for longer than this is checked before it is used again.
const IDLE: Duration = Duration::from_millis(100);
/// How long a connection that is to be closed waits for a reply that is due.
const GOODBYE: Duration = Duration::from_millis(20);

/// An open connection, its output and its input.
#[derive(Debug)]
pub(in crate::store) struct Socket {
    stream: Stream,
    clock: Arc<dyn Clock>,
    io_timeout: Duration,
    opened: Moment,
    /// When the connection was last taken into use.
    last_used: Moment,
    /// The request that [`Socket::write_out`] sends.
    pub(in crate::store) output: Vec<u8>,
    input: Input,
    /// Whether the server has yet to answer a request for which no caller waits.
    owes_reply: bool,
}

/// The bytes that were received and not consumed: `buffer[start..end]`.
#[derive(Debug, Default)]
struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

/// The time limit for a batch's replies. In the common case, with all of them in the first read,
/// the clock is not read. From the second read on there is a limit; otherwise a server that sends
/// byte by byte could block the call forever.
#[derive(Debug, Default)]
pub(in crate::store) struct Patience {
    reads: usize,
    limit: Option<Moment>,
}

#[allow(dead_code, reason = "not every protocol has lines")]
impl Socket {
    /// Connects. `server`: what it is, such as `memcached`.
    pub(in crate::store) fn connect(
        address: &Address,
        server: &str,
        clock: &Arc<dyn Clock>,
    ) -> Result<Socket> {
        let io_timeout = address.settings.io_timeout;
        let last_used = clock.now();
        let stream = connect(address, server, clock.as_ref())?;
        stream
            .set_timeouts(io_timeout)
            .map_err(|error| unreachable(format!("The socket cannot be set up: {error}.")))?;
        Ok(Socket {
            stream,
            clock: Arc::clone(clock),
            io_timeout,
            opened: last_used,
            last_used,
            output: Vec::new(),
            input: Input::default(),
            owes_reply: false,
        })
    }

    /// Encrypts the connection that was just opened, and authenticates the server.
    #[cfg(feature = "tls")]
    pub(in crate::store) fn encrypt(self, tls: &Tls, address: &Address) -> Result<Socket> {
        let (Stream::Tcp(stream), Place::Tcp(host, _)) = (self.stream, &address.place) else {
            return Err(Error::config("TLS is for servers with a host name and a port."));
        };
        let timeout = address.settings.connect_timeout;
        // Resolving the name may have taken longer.
        let deadline = (self.last_used + timeout).max(self.clock.now() + timeout / 2);
        let failed = |error: std::io::Error| {
            if error.kind() == std::io::ErrorKind::TimedOut {
                return unreachable(format!(
                    "It timed out while TLS was set up (connect_timeout is {}). Is TLS on there?",
                    crate::clock::brief(timeout)
                ));
            }
            unreachable(format!(
                "It accepts no TLS connection that memlock trusts ({error}). {}",
                tls::advice(&error, host)
            ))
        };
        let encrypted = tls.connect(host, stream, deadline, self.clock.as_ref()).map_err(failed)?;
        let stream = Stream::Tls(Box::new(encrypted));
        stream.set_timeouts(self.io_timeout).map_err(failed)?;
        Ok(Socket { stream, ..self })
    }

    /// The clock that the deadlines are counted by.
    pub(in crate::store) fn clock(&self) -> &dyn Clock {
        self.clock.as_ref()
    }

    /// The local address, and the server's.
    pub(in crate::store) fn ends(&self) -> (Option<IpAddr>, Option<SocketAddr>) {
        self.stream.ends()
    }

    /// When the connection was opened.
    pub(in crate::store) fn opened(&self) -> Moment {
        self.opened
    }

    /// When the connection was last taken into use.
    pub(in crate::store) fn last_used(&self) -> Moment {
        self.last_used
    }

    /// Whether the program has left the descriptor open, and has no other file with its number.
    pub(in crate::store) fn is_ours(&self) -> bool {
        self.stream.is_ours()
    }

    /// Takes the connection into use again. True if it was closed meanwhile, by the server or by the
    /// program, or if the server sent unrequested bytes. Checked only after a pause, since the check
    /// costs two system calls. If a reply is due, the rest is checked behind it; true if it does not begin
    /// to come within a quarter of the timeout.
    pub(in crate::store) fn was_closed(&mut self) -> bool {
        let now = self.clock.now();
        let idle = now.since(self.last_used);
        self.last_used = now;
        if self.owes_reply {
            return !self.is_ours() || !self.stream.wait_for_input(self.io_timeout / BRIEFLY);
        }
        idle >= IDLE && !self.stream.is_open_and_quiet()
    }

    /// No caller waits for the reply to the request that was sent last: it is read before the next
    /// request.
    pub(in crate::store) fn defer_reply(&mut self) {
        self.owes_reply = true;
    }

    /// Whether such a reply is due.
    pub(in crate::store) fn owes_reply(&self) -> bool {
        self.owes_reply
    }

    /// Ends this, after the reply was read. Fails if the connection was closed behind it.
    pub(in crate::store) fn end_deferral(&mut self) -> Result<()> {
        self.owes_reply = false;
        if self.unread().is_empty() && self.stream.is_open_and_quiet() {
            return Ok(());
        }
        Err(unreachable("The connection was closed while it was idle."))
    }

    /// Whether a reply is due, and begins to come before a connection is closed that is not used again: a
    /// server that cannot deliver a reply logs an aborted connection.
    pub(in crate::store) fn has_last_reply(&self) -> bool {
        self.owes_reply && self.is_ours() && self.stream.wait_for_input(GOODBYE)
    }

    /// The bytes that were received and not consumed.
    pub(in crate::store) fn unread(&self) -> &[u8] {
        &self.input.buffer[self.input.start..self.input.end]
    }

    /// Consumes so many bytes of the input.
    pub(in crate::store) fn consume(&mut self, bytes: usize) {
        self.input.start = (self.input.start + bytes).min(self.input.end);
    }

    /// The position of the next line in the input, without its line end; see [`Socket::at`].
    pub(in crate::store) fn line(&mut self, patience: &mut Patience) -> Result<(usize, usize)> {
        let mut searched = 0;
        loop {
            let unread = self.unread();
            if let Some(place) = unread[searched..].iter().position(|&byte| byte == b'\n') {
                let (from, mut to) = (self.input.start, self.input.start + searched + place);
                self.input.start = to + 1;
                if to > from && self.input.buffer[to - 1] == b'\r' {
                    to -= 1;
                }
                return Ok((from, to));
            }
            searched = unread.len();
            if searched > LONGEST_LINE {
                return Err(Error::protocol("The server answered a line longer than 2 KiB."));
            }
            self.read_more(patience)?;
        }
    }

    /// The bytes at a position of the input, which is valid until the next read.
    pub(in crate::store) fn at(&self, (from, to): (usize, usize)) -> &[u8] {
        &self.input.buffer[from..to]
    }

    /// Waits for more input.
    pub(in crate::store) fn read_more(&mut self, patience: &mut Patience) -> Result<()> {
        loop {
            if patience.reads > 0 {
                let now = self.clock.now();
                if now > *patience.limit.get_or_insert(now + self.io_timeout) {
                    return Err(self.too_late());
                }
            }
            patience.reads += 1;
            match self.input.fill(&mut self.stream) {
                Ok(0) => return Err(lost("The server closed the connection.")),
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == IoKind::Interrupted => {}
                Err(error) if matches!(error.kind(), IoKind::WouldBlock | IoKind::TimedOut) => {
                    return Err(self.too_late());
                }
                Err(error) => return Err(lost(format!("The connection broke: {error}."))),
            }
        }
    }

    fn too_late(&self) -> Error {
        let text = format!("The server did not answer within {:?}.", self.io_timeout);
        Error::silent(ErrorKind::Unknown, text)
    }

    /// Sends the output.
    pub(in crate::store) fn write_out(&mut self) -> std::result::Result<(), Failure> {
        let output = std::mem::take(&mut self.output);
        let written = self.write(&output);
        self.output = output;
        written
    }

    /// Sends a request.
    pub(in crate::store) fn write(&mut self, request: &[u8]) -> std::result::Result<(), Failure> {
        let written = if request.len() <= SMALL_REQUEST {
            self.write_small(request)
        } else {
            self.write_large(request)
        };
        written.map_err(|error| Failure { sent: error.kind() == ErrorKind::Unknown, error })
    }

    fn write_small(&mut self, request: &[u8]) -> Result<()> {
        let mut written = 0;
        while written < request.len() {
            match self.stream.write(&request[written..]) {
                Ok(more) if more > 0 => written += more,
                Err(error) if error.kind() == IoKind::Interrupted => {}
                Err(error) => return Err(unwritten(written, &error)),
                Ok(_) => return Err(unwritten(written, &IoKind::WriteZero.into())),
            }
        }
        self.stream.flush().map_err(|error| unwritten(written, &error))
    }

    /// Writes and reads, whichever the socket is ready for.
    fn write_large(&mut self, request: &[u8]) -> Result<()> {
        // Also a pipe or a file of the program would be made non-blocking.
        if !self.is_ours() {
            return Err(unwritten(0, &std::io::Error::from_raw_os_error(libc::EBADF)));
        }
        self.stream.set_nonblocking(true).map_err(|error| unwritten(0, &error))?;
        let mut deadline = self.clock.now() + self.io_timeout;
        let mut written = 0;
        while written < request.len() {
            match self.stream.write(&request[written..]) {
                Ok(more) if more > 0 => {
                    written += more;
                    deadline = self.clock.now() + self.io_timeout;
                    continue;
                }
                Ok(_) => return Err(unwritten(written, &IoKind::WriteZero.into())),
                Err(error) if matches!(error.kind(), IoKind::WouldBlock | IoKind::Interrupted) => {}
                Err(error) => return Err(unwritten(written, &error)),
            }
            match self.input.fill(&mut self.stream) {
                Ok(0) => return Err(unwritten(written, &IoKind::UnexpectedEof.into())),
                Ok(_) if self.unread().len() > LARGEST_BACKLOG => {
                    return Err(lost("The server answers more than was asked."));
                }
                Err(error) if !matches!(error.kind(), IoKind::WouldBlock | IoKind::Interrupted) => {
                    return Err(unwritten(written, &error));
                }
                Ok(_) | Err(_) => {}
            }
            let left = deadline.since(self.clock.now());
            if left.is_zero() {
                return Err(unwritten(written, &IoKind::TimedOut.into()));
            }
            self.stream.wait_until_ready(left);
        }
        let finished = self.stream.set_nonblocking(false).and_then(|()| self.stream.flush());
        finished.map_err(|error| unwritten(written, &error))
    }
}

impl Input {
    /// Reads once, and appends to the unread bytes.
    fn fill(&mut self, stream: &mut Stream) -> std::io::Result<usize> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > CHUNK {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.buffer.len() < self.end + CHUNK {
            self.buffer.resize(self.end + CHUNK, 0);
        }
        let read = stream.read(&mut self.buffer[self.end..])?;
        self.end += read;
        Ok(read)
    }
}

fn unwritten(written: usize, error: &std::io::Error) -> Error {
    let text = format!("The request could not be written: {error}.");
    if written == 0 { unreachable(text) } else { lost(text) }
}

/// The request may have been carried out.
pub(in crate::store) fn lost(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unknown, text)
}
