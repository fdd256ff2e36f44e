//! Writes a history, for clients in Rust.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use memlock_core::Answer;
use memlock_core::clock::{Clock, SystemClock};

use super::call::Op;

/// Writes down what one thread does. Each event is one write, so that a kill costs no more than the
/// end of a line.
#[derive(Clone, Debug)]
pub struct Writer {
    file: Arc<File>,
    thread: u64,
}

impl Writer {
    /// Appends to the history of this process, for its thread 0.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Writer> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Writer { file: Arc::new(file), thread: 0 })
    }

    /// The same history, for another thread.
    pub fn of_thread(&self, thread: u64) -> Writer {
        Writer { file: Arc::clone(&self.file), thread }
    }

    /// A call is about to be made. Returns the moment that was written down.
    pub fn call(&self, op: &Op, name: &str) -> io::Result<Duration> {
        self.say(&format!("call {}", call(op, name)?))
    }

    /// The call has returned; see [`history`](super) for the two numbers.
    pub fn done(&self, answer: Answer, first: u64, second: Duration) -> io::Result<()> {
        let answer = answer.code();
        self.say(&format!("done {answer} {first} {} ", second.as_nanos())).map(drop)
    }

    /// The call has failed, with this sentence.
    pub fn failed(&self, answer: Answer, said: &str, second: Duration) -> io::Result<()> {
        let (answer, said) = (answer.code(), said.replace('\n', " "));
        self.say(&format!("done {answer} 0 {} {said}", second.as_nanos())).map(drop)
    }

    /// The thread enters its critical section.
    pub fn enter(&self) -> io::Result<()> {
        self.say("enter").map(drop)
    }

    /// The thread leaves its critical section.
    pub fn leave(&self) -> io::Result<()> {
        self.say("leave").map(drop)
    }

    /// Another thread is about to cancel the wait of this thread that began at that moment.
    pub fn cancel(&self, began: Duration) -> io::Result<()> {
        self.say(&format!("cancel {}", began.as_nanos())).map(drop)
    }

    fn say(&self, event: &str) -> io::Result<Duration> {
        let now = SystemClock.now().since_boot();
        let line = format!("{} {} {event}\n", now.as_nanos(), self.thread);
        self.file.as_ref().write_all(line.as_bytes())?;
        Ok(now)
    }
}

fn call(op: &Op, name: &str) -> io::Result<String> {
    Ok(match op {
        Op::Lock { lease, wait } => format!("lock {name} {} {}", lease.as_millis(), limit(*wait)),
        Op::Extend { lease } => format!("extend {name} {} 0", lease.as_millis()),
        Op::Unlock => format!("unlock {name} 0 0"),
        Op::Acquire { lease, wait, permits, priority } => {
            let (lease, wait) = (lease.as_millis(), limit(*wait));
            format!("acquire {name} {lease} {wait} {permits} {priority}")
        }
        Op::Prolong { lease } => format!("prolong {name} {} 0", lease.as_millis()),
        Op::Release => format!("release {name} 0 0"),
        Op::SetUp => format!("setup {name} 0 0"),
        Op::Insert { key } => format!("insert {name} {key} 0"),
        Op::Inside => return Err(io::Error::other("a critical section is not a call")),
    })
}

fn limit(wait: Option<Duration>) -> String {
    wait.map_or("-".to_owned(), |wait| wait.as_millis().to_string())
}
