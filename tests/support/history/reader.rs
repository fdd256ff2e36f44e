//! Reads a history.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use memlock_core::Answer;

use super::call::{Call, Done, Op, Who};

/// Reads the history of one process, bit by bit while it grows.
#[derive(Debug)]
pub struct Reader {
    process: usize,
    path: PathBuf,
    offset: u64,
    /// Whole lines that were too new the last time.
    later: Vec<String>,
    /// Whether the file ended within a line when it was read.
    cut_off: bool,
    /// What each thread is at; and what it was at when it called from within its critical section.
    open: HashMap<u64, Vec<Call>>,
}

impl Reader {
    /// Of the process with this number, which writes to this file.
    pub fn new(process: usize, path: PathBuf) -> Reader {
        Reader { process, path, offset: 0, later: Vec::new(), cut_off: false, open: HashMap::new() }
    }

    /// What was completed until this moment.
    ///
    /// A reader of several histories has to fix the moment before reading the first one. Then a
    /// release that was not yet written when its history was read had not begun either, and no
    /// grant that followed it is read here.
    pub fn read(&mut self, until: Duration) -> io::Result<Vec<Call>> {
        let mut lines = std::mem::take(&mut self.later);
        lines.extend(self.new_lines()?);
        let mut calls = Vec::new();
        for line in lines {
            match self.take(&line, until, &mut calls) {
                Some(true) => {}
                Some(false) => self.later.push(line),
                None => {
                    let place = self.path.display();
                    return Err(io::Error::other(format!("{place} cannot be read at {line:?}")));
                }
            }
        }
        Ok(calls)
    }

    /// What is under way, as far as was read.
    pub fn open(&self) -> impl Iterator<Item = &Call> {
        self.open.values().flatten()
    }

    /// Whether the history ends within a line, as only that of a killed process can.
    pub fn is_cut_off(&self) -> bool {
        self.cut_off
    }

    fn new_lines(&mut self) -> io::Result<Vec<String>> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            // A client that was killed at once may not have made its file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        file.seek(SeekFrom::Start(self.offset))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.cut_off = whole < text.len();
        self.offset += whole as u64;
        Ok(text[..whole].lines().map(str::to_owned).collect())
    }

    /// Takes one line in; false when it is too new, None when it makes no sense.
    fn take(&mut self, line: &str, until: Duration, calls: &mut Vec<Call>) -> Option<bool> {
        let mut words = line.splitn(4, ' ');
        let at = nanos(words.next()?)?;
        if at > until {
            return Some(false);
        }
        let who = Who { process: self.process, thread: words.next()?.parse().ok()? };
        let open = self.open.entry(who.thread).or_default();
        let is_inside = open.last().is_some_and(|last| last.op == Op::Inside);
        let (verb, rest) = (words.next()?, words.next().unwrap_or(""));
        let begun = |op, name| Call { who, op, name, began: at, cancelled: None, done: None };
        match verb {
            "call" if open.is_empty() || is_inside => {
                let (op, name) = call(rest)?;
                open.push(begun(op, name));
            }
            "enter" if open.is_empty() => open.push(begun(Op::Inside, String::new())),
            "cancel" => {
                // One that has returned cannot be cancelled any more.
                let began = nanos(rest)?;
                if let Some(call) = open.iter_mut().find(|call| call.began == began) {
                    call.cancelled.get_or_insert(at);
                }
            }
            "done" if !is_inside => calls.push(Call { done: Some(done(at, rest)?), ..open.pop()? }),
            "leave" if is_inside => {
                let done =
                    Done { at, answer: Answer::Ok, first: 0, second: 0, said: String::new() };
                calls.push(Call { done: Some(done), ..open.pop()? });
            }
            _ => return None,
        }
        Some(true)
    }
}

fn nanos(text: &str) -> Option<Duration> {
    text.parse().ok().map(Duration::from_nanos)
}

fn call(text: &str) -> Option<(Op, String)> {
    let words: Vec<&str> = text.split(' ').collect();
    let [op, name, first, second, ref more @ ..] = words[..] else { return None };
    let limitless = second == "-" && matches!(op, "lock" | "acquire");
    let second: Option<u64> = if limitless { None } else { Some(second.parse().ok()?) };
    let first: u64 = first.parse().ok()?;
    let (lease, wait) = (Duration::from_millis(first), second.map(Duration::from_millis));
    let op = match (op, more) {
        ("lock", []) => Op::Lock { lease, wait },
        ("acquire", [permits, priority]) => Op::Acquire {
            lease,
            wait,
            permits: permits.parse().ok()?,
            priority: priority.parse().ok()?,
        },
        ("prolong", []) => Op::Prolong { lease },
        ("release", []) => Op::Release,
        ("extend", []) => Op::Extend { lease },
        ("unlock", []) => Op::Unlock,
        ("setup", []) => Op::SetUp,
        ("insert", []) => Op::Insert { key: first },
        _ => return None,
    };
    Some((op, name.to_owned()))
}

fn done(at: Duration, text: &str) -> Option<Done> {
    let mut words = text.splitn(4, ' ');
    let answer = Answer::from_code(words.next()?.parse().ok()?)?;
    let (first, second) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(Done { at, answer, first, second, said: words.next().unwrap_or("").to_owned() })
}
