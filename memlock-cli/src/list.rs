//! `memlock list`: a distinct list, whose keys come from standard input.

pub(crate) mod input;
mod progress;

use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;

use memlock_core::{DistinctList, Insertion, SetUp};

use crate::args::{Action, List};
use crate::connect::{self, Url, connect};
use crate::exit::{CliError, Status};
use crate::out::Out;
use crate::text::shown;
use input::Input;
use progress::Progress;

pub(crate) fn list(url: &Url, args: &List) -> Result<Status, CliError> {
    let client = connect(url)?;
    let mut list = client.distinct_list(args.session.as_bytes())?;
    let mut out = Out::new();
    let only_looks = matches!(args.action, None | Some(Action::Ids | Action::TearDown));
    if only_looks && connect::missing(&client).is_some() {
        return Err(missing(args));
    }
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
                out.write_all(&Out::key(&key))?;
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
fn insert(list: &mut DistinctList, args: &List, out: Out) -> Result<Status, CliError> {
    let mut out = BufWriter::new(out);
    let mut input = Input::new(end(args)[0])?;
    let mut progress = Progress::new(input.file());
    let (mut keys, mut inserted) = (Vec::new(), 0);
    loop {
        keys.clear();
        let is_more = input.batch(&mut keys);
        let answers = list.insert_many(&keys)?.ok_or_else(|| missing(args))?;
        for (key, answer) in keys.iter().zip(&answers) {
            answered(&mut out, args, key, *answer)?;
        }
        out.flush()?;
        progress.inserted(&answers, input.bytes());
        inserted += answers.len();
        if !is_more? {
            break;
        }
    }
    if inserted == 0 {
        // It is not known yet whether there is a list.
        list.count()?.ok_or_else(|| missing(args))?;
    }
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
    out.write_all(&Out::key(key))?;
    out.write_all(end(args))
}

fn end(args: &List) -> &'static [u8] {
    if args.null { b"\0" } else { b"\n" }
}

fn missing(args: &List) -> CliError {
    let name = shown(args.session.as_bytes());
    CliError::new(
        Status::NOT_FOUND,
        format!(
            "There is no list {name}: it was never set up, is over, or was torn down. `memlock list {name} set-up` sets it up."
        ),
    )
}
