//! `memlock list`: a distinct list, whose keys come from standard input.

mod progress;

use std::io::{self, BufRead, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;

use memlock_core::{Client, DistinctList, Insertion, SetUp};

use crate::args::{Action, List};
use crate::exit::{Status, Trouble};
use crate::out::{Out, shown};
use progress::Progress;

/// How many keys are inserted at once.
const BATCH: usize = 1000;
/// No key is longer, and what is read of a line beyond that is not kept.
const LONGEST_KEY: u64 = 64 * 1024;

pub(crate) fn list(url: &str, args: &List) -> Result<Status, Trouble> {
    let mut list = Client::connect(url)?.distinct_list(args.session.as_bytes())?;
    let mut out = Out::new();
    match args.action {
        Some(Action::SetUp) => {
            let said = match list.set_up(args.lasts)? {
                SetUp::Created => "created",
                SetUp::Joined => "joined",
            };
            out.line(said)?;
        }
        Some(Action::Insert) => return insert(&mut list, args, out),
        Some(Action::Ids) => {
            let entries = list.entries()?.ok_or_else(|| missing(args))?;
            let mut out = BufWriter::new(out);
            for entry in entries {
                let (id, key) = entry?;
                write!(out, "{id}\t")?;
                out.write_all(&key)?;
                out.write_all(end(args))?;
            }
            out.flush()?;
        }
        Some(Action::TearDown) => {
            if !list.tear_down()? {
                return Err(missing(args));
            }
        }
        None => {
            let count = list.count()?.ok_or_else(|| missing(args))?;
            out.line(count)?;
        }
    }
    Ok(Status::OK)
}

/// Inserts what comes, a batch at a time; each batch is answered before the next one is read.
fn insert(list: &mut DistinctList, args: &List, out: Out) -> Result<Status, Trouble> {
    let mut out = BufWriter::new(out);
    let mut input = io::stdin().lock();
    let mut progress = Progress::new();
    let mut keys = Vec::with_capacity(BATCH);
    let mut is_over = false;
    while !is_over {
        keys.clear();
        while keys.len() < BATCH {
            match key(&mut input, end(args)[0])? {
                Some((key, bytes)) => {
                    progress.read(bytes);
                    if !key.is_empty() {
                        keys.push(key);
                    }
                }
                None => {
                    is_over = true;
                    break;
                }
            }
            // Who types wants an answer.
            if progress.is_typed() {
                break;
            }
        }
        let answers = list.insert_many(&keys)?.ok_or_else(|| missing(args))?;
        for (key, answer) in keys.iter().zip(&answers) {
            answered(&mut out, args, key, *answer)?;
        }
        out.flush()?;
        progress.inserted(&answers);
    }
    progress.end();
    Ok(Status::OK)
}

fn answered(out: &mut impl Write, args: &List, key: &[u8], answer: Insertion) -> io::Result<()> {
    let first = matches!(answer, Insertion::First(_));
    if args.quiet || (args.new && !first) {
        return Ok(());
    }
    if !args.new {
        write!(out, "{}\t{}\t", answer.id(), if first { "new" } else { "old" })?;
    }
    out.write_all(key)?;
    out.write_all(end(args))
}

/// The next key, and how many bytes it took; `None` at the end.
pub(crate) fn key(input: &mut impl BufRead, end: u8) -> Result<Option<(Vec<u8>, u64)>, Trouble> {
    let mut key = Vec::new();
    let read = io::Read::take(&mut *input, LONGEST_KEY + 1).read_until(end, &mut key)?;
    if read == 0 {
        return Ok(None);
    }
    if key.last() == Some(&end) {
        key.pop();
    } else if key.len() as u64 > LONGEST_KEY {
        return Err(Trouble::new(
            Status::USAGE,
            format!("The key {}… is longer than 64 KiB.", shown(&key[..40])),
        ));
    }
    Ok(Some((key, read as u64)))
}

fn end(args: &List) -> &'static [u8] {
    if args.null { b"\0" } else { b"\n" }
}

fn missing(args: &List) -> Trouble {
    let name = shown(args.session.as_bytes());
    Trouble::new(
        Status::NOT_FOUND,
        format!(
            "There is no list {name}: it was never set up, is over, or was torn down. `memlock list {name} set-up` sets it up."
        ),
    )
}
