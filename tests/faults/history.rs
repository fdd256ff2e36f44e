//! What the clients write down, and how it is read.
//!
//! A line is `<boot clock in ns> <thread> <what>`, appended before the process goes on; so a
//! SIGKILL costs no more than the end of the last line, and a call that was under way is known.
//! What can happen:
//!
//! | what | is |
//! | --- | --- |
//! | `call lock NAME LEASE_MS WAIT_MS`, `extend NAME LEASE_MS 0`, `unlock NAME 0 0`, `setup SESSION 0 0`, `insert SESSION KEY 0` | a call is about to be made |
//! | `call acquire NAME LEASE_MS WAIT_MS PERMITS PRIORITY`, `prolong NAME LEASE_MS 0`, `release NAME 0 0` | the same, of a semaphore |
//! | `done ANSWER FIRST SECOND SENTENCE` | it has returned with this number of the answer table. A granted lock: its fence, and until when it is certainly held; granted permits: how many, and that; an extension: 0 and that; an insert: the id and 0 |
//! | `enter`, `leave` | of the critical section, as the program believes |

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

/// The answers that are looked for by name.
pub(crate) mod answer {
    pub(crate) const OK: i32 = 0;
    pub(crate) const BUSY: i32 = 1;
    pub(crate) const TIMED_OUT: i32 = 2;
    pub(crate) const DUPLICATE: i32 = 3;
    pub(crate) const EXISTS: i32 = 4;
    pub(crate) const NOT_HELD: i32 = 5;
    pub(crate) const LOST: i32 = 6;
    pub(crate) const NOT_FOUND: i32 = 7;
    pub(crate) const UNREACHABLE: i32 = -2;
    pub(crate) const UNKNOWN: i32 = -3;
    pub(crate) const PROTOCOL: i32 = -4;
}

/// From one moment of the boot clock to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) from: Duration,
    pub(crate) to: Duration,
}

impl Span {
    pub(crate) fn meets(self, other: Span) -> bool {
        self.from <= other.to && other.from <= self.to
    }

    /// How long both last at once.
    pub(crate) fn shared(self, other: Span) -> Duration {
        self.to.min(other.to).saturating_sub(self.from.max(other.from))
    }
}

/// One thread of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Who {
    pub(crate) process: usize,
    pub(crate) thread: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Lock {
        lease: Duration,
        wait: Duration,
    },
    Extend {
        lease: Duration,
    },
    Unlock,
    Acquire {
        lease: Duration,
        wait: Duration,
        permits: u32,
        priority: i64,
    },
    /// Extends the lease of permits.
    Prolong {
        lease: Duration,
    },
    Release,
    SetUp,
    Insert {
        key: u64,
    },
    /// Not a call: the program is in its critical section.
    Inside,
}

/// One call, and its result.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) who: Who,
    pub(crate) op: Op,
    pub(crate) name: String,
    pub(crate) began: Duration,
    /// None: it was under way when the history stopped.
    pub(crate) done: Option<Done>,
}

#[derive(Clone)]
pub(crate) struct Done {
    pub(crate) at: Duration,
    pub(crate) answer: i32,
    pub(crate) first: u64,
    pub(crate) second: u64,
    pub(crate) said: String,
}

/// In one line, as findings are reported.
impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call { who: Who { process, thread }, op, name, began, done } = self;
        write!(f, "[{process}.{thread} {op:?} {name} from {:.6}", began.as_secs_f64())?;
        match done {
            None => write!(f, " on]"),
            Some(Done { at, answer, first, second, said }) => {
                write!(f, " to {:.6}: {answer} {first} {second} {said}]", at.as_secs_f64())
            }
        }
    }
}

impl Call {
    pub(crate) fn answer(&self) -> Option<i32> {
        self.done.as_ref().map(|done| done.answer)
    }

    /// When it ended; for one that did not, the end of all.
    pub(crate) fn ended(&self) -> Duration {
        self.done.as_ref().map_or(Duration::MAX, |done| done.at)
    }

    /// How long it was to wait at most.
    pub(crate) fn limit(&self) -> Duration {
        match self.op {
            Op::Lock { wait, .. } | Op::Acquire { wait, .. } => wait,
            _ => Duration::ZERO,
        }
    }

    /// The lease that it asked for.
    pub(crate) fn lease(&self) -> Duration {
        match self.op {
            Op::Lock { lease, .. }
            | Op::Extend { lease }
            | Op::Acquire { lease, .. }
            | Op::Prolong { lease } => lease,
            _ => Duration::ZERO,
        }
    }

    pub(crate) fn span(&self) -> Span {
        Span { from: self.began, to: self.ended() }
    }
}

/// Reads the history of one process, bit by bit while it grows.
pub(crate) struct Reader {
    process: usize,
    path: PathBuf,
    offset: u64,
    /// Whole lines that were too new the last time.
    later: Vec<String>,
    /// What each thread is at; and what it was at when it called from within its critical section.
    open: HashMap<u64, Vec<Call>>,
}

impl Reader {
    pub(crate) fn new(process: usize, path: PathBuf) -> Reader {
        Reader { process, path, offset: 0, later: Vec::new(), open: HashMap::new() }
    }

    /// What was completed until this moment.
    ///
    /// A reader of several histories has to fix the moment before reading the first one. Then a
    /// release that was not yet written when its history was read had not begun either, and no
    /// grant that followed it is read here.
    pub(crate) fn read(&mut self, until: Duration) -> io::Result<Vec<Call>> {
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
    pub(crate) fn open(&self) -> impl Iterator<Item = &Call> {
        self.open.values().flatten()
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
        self.offset += whole as u64;
        Ok(text[..whole].lines().map(str::to_owned).collect())
    }

    /// Takes one line in; false when it is too new, None when it makes no sense.
    fn take(&mut self, line: &str, until: Duration, calls: &mut Vec<Call>) -> Option<bool> {
        let mut words = line.splitn(4, ' ');
        let at = Duration::from_nanos(words.next()?.parse().ok()?);
        if at > until {
            return Some(false);
        }
        let who = Who { process: self.process, thread: words.next()?.parse().ok()? };
        let open = self.open.entry(who.thread).or_default();
        let (verb, rest) = (words.next()?, words.next().unwrap_or(""));
        match verb {
            "call" => {
                let (op, name) = call(rest)?;
                open.push(Call { who, op, name, began: at, done: None });
            }
            "enter" => {
                open.push(Call { who, op: Op::Inside, name: String::new(), began: at, done: None });
            }
            "done" => calls.push(Call { done: Some(done(at, rest)?), ..open.pop()? }),
            "leave" => {
                let done =
                    Done { at, answer: answer::OK, first: 0, second: 0, said: String::new() };
                calls.push(Call { done: Some(done), ..open.pop()? });
            }
            _ => return None,
        }
        Some(true)
    }
}

fn call(text: &str) -> Option<(Op, String)> {
    let words: Vec<&str> = text.split(' ').collect();
    let [op, name, first, second, ref more @ ..] = words[..] else { return None };
    let (first, second): (u64, u64) = (first.parse().ok()?, second.parse().ok()?);
    let (lease, wait) = (Duration::from_millis(first), Duration::from_millis(second));
    let op = match op {
        "lock" => Op::Lock { lease, wait },
        "acquire" => {
            let [permits, priority] = *more else { return None };
            Op::Acquire {
                lease,
                wait,
                permits: permits.parse().ok()?,
                priority: priority.parse().ok()?,
            }
        }
        "prolong" => Op::Prolong { lease },
        "release" => Op::Release,
        "extend" => Op::Extend { lease },
        "unlock" => Op::Unlock,
        "setup" => Op::SetUp,
        "insert" => Op::Insert { key: first },
        _ => return None,
    };
    Some((op, name.to_owned()))
}

fn done(at: Duration, text: &str) -> Option<Done> {
    let mut words = text.splitn(4, ' ');
    let answer = words.next()?.parse().ok()?;
    let (first, second) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(Done { at, answer, first, second, said: words.next().unwrap_or("").to_owned() })
}
