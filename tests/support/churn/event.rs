//! The history of one process: a line for each thing that happens to it, appended to a file before
//! it goes on.
//!
//! A line is `<boot clock in ns> <wait> <what> …`. A SIGKILL costs the file no more than the end of
//! its last line, and a line without its end is not read.

use std::time::Duration;

/// How many keys there are.
pub(crate) const KEYS: usize = 5;

/// What the mutex of a key is called.
pub(crate) fn name(key: usize) -> String {
    format!("churn{key}")
}

/// What happened to a wait of a process, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// On the boot clock.
    pub(crate) at: Duration,
    /// Which wait of the process.
    pub(crate) wait: u64,
    pub(crate) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// It is about to wait for this key, for so long at most.
    Began { key: usize, limit: Option<Duration> },
    /// Another thread is about to cancel the wait.
    Cancelled,
    /// It was granted.
    Entered { fence: u64, deadline: Duration },
    /// It is about to unlock.
    Leaving,
    /// It has unlocked, and this was the answer.
    Left(String),
    /// It got nothing, and this was the answer.
    Ended(String),
}

// The churner only writes, and the test only reads.
#[allow(dead_code)]
impl Event {
    /// The line with its end.
    pub(crate) fn write(&self) -> String {
        let Event { at, wait, what } = self;
        let what = match what {
            What::Began { key, limit } => {
                format!(
                    "began {key} {}",
                    limit.map_or("-".to_owned(), |limit| limit.as_nanos().to_string())
                )
            }
            What::Cancelled => "cancelled".to_owned(),
            What::Entered { fence, deadline } => format!("entered {fence} {}", deadline.as_nanos()),
            What::Leaving => "leaving".to_owned(),
            What::Left(answer) => format!("left {}", answer.replace('\n', " ")),
            What::Ended(answer) => format!("ended {}", answer.replace('\n', " ")),
        };
        format!("{} {wait} {what}\n", at.as_nanos())
    }

    /// Reads one whole line.
    pub(crate) fn read(line: &str) -> Option<Event> {
        let nanos = |text: &str| text.parse().ok().map(Duration::from_nanos);
        let (at, rest) = line.split_once(' ')?;
        let (wait, rest) = rest.split_once(' ')?;
        let (verb, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let what = match (verb, rest) {
            ("began", rest) => {
                let (key, limit) = rest.split_once(' ')?;
                let limit = if limit == "-" { None } else { Some(nanos(limit)?) };
                What::Began { key: key.parse().ok()?, limit }
            }
            ("cancelled", _) => What::Cancelled,
            ("entered", rest) => {
                let (fence, deadline) = rest.split_once(' ')?;
                What::Entered { fence: fence.parse().ok()?, deadline: nanos(deadline)? }
            }
            ("leaving", _) => What::Leaving,
            ("left", answer) => What::Left(answer.to_owned()),
            ("ended", answer) => What::Ended(answer.to_owned()),
            _ => return None,
        };
        Some(Event { at: nanos(at)?, wait: wait.parse().ok()?, what })
    }
}
