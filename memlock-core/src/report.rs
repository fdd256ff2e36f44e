//! Reports: an answer, and its sentence for people.
//!
//! A failure is an [`Error`] with a sentence of its own. An ordinary negative answer (busy, timed
//! out, lost, not held) is a plain value in Rust; a [`Report`] adds a sentence that names the lock
//! and the server, and says what happened. The sentence is made only on request, so that acquiring
//! a free lock does not pay for it.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use crate::error::{Answer, Error};
use crate::target::Target;

/// An answer, and a whole sentence about it.
///
/// Compared with an [`Answer`], only the answer counts.
#[must_use = "the answer says whether the call did what it was asked for"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    answer: Answer,
    sentence: Option<Box<str>>,
}

impl Report {
    /// An answer with its sentence.
    pub fn new(answer: Answer, sentence: impl Into<String>) -> Report {
        Report { answer, sentence: Some(sentence.into().into_boxed_str()) }
    }

    /// The answer.
    pub fn answer(&self) -> Answer {
        self.answer
    }

    /// The sentence.
    pub fn sentence(&self) -> Cow<'_, str> {
        match &self.sentence {
            Some(sentence) => Cow::Borrowed(sentence),
            None => self.answer.describe().to_string_lossy(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence())
    }
}

/// A report without a sentence of its own: [`Answer::describe`] supplies the sentence.
impl From<Answer> for Report {
    fn from(answer: Answer) -> Report {
        Report { answer, sentence: None }
    }
}

impl From<Error> for Report {
    fn from(error: Error) -> Report {
        Report::new(error.kind().answer(), error.to_string())
    }
}

impl PartialEq<Answer> for Report {
    fn eq(&self, answer: &Answer) -> bool {
        self.answer == *answer
    }
}

/// The subject of a sentence, such as `lock "nightly" on memcached at 10.0.0.7:11211`.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    /// Such as `lock`.
    pub(crate) kind: &'a str,
    pub(crate) target: &'a Target,
}

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Subject { kind, target } = self;
        let node = target.context.node(target.route);
        let preposition = if node.is_some_and(|node| node.is_container) { "in" } else { "on" };
        write!(f, "{kind} {:?} {preposition} {}", target.name(), target.server())
    }
}

/// The holder that a waiter saw.
#[derive(Clone, Debug, Default)]
pub(crate) enum ObservedHolder {
    /// The refusal did not name a holder.
    #[default]
    Unknown,
    /// A holder that uses memlock, and the number of other holders.
    Memlock { host: String, pid: u32, others: usize },
    /// A client that does not use memlock.
    Foreign,
    /// So many holders that another one is not possible.
    TooMany(usize),
    /// None: the server gives nothing new for this long yet.
    Recovering(Duration),
}

impl fmt::Display for ObservedHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObservedHolder::Unknown => Ok(()),
            ObservedHolder::Recovering(left) => {
                let left = rounded_up(*left);
                write!(f, " (the server was started anew, and gives nothing new for {left} yet)")
            }
            ObservedHolder::Foreign => f.write_str(" (held by a client that does not use memlock)"),
            ObservedHolder::TooMany(holders) => {
                write!(f, " (it has {holders} concurrent holders, the highest number possible)")
            }
            ObservedHolder::Memlock { host, pid, others } => {
                write!(f, " (held by {}, process {pid}", host.escape_debug())?;
                match others {
                    0 => f.write_str(")"),
                    1 => f.write_str(", and another holder)"),
                    _ => write!(f, ", and {others} other holders)"),
                }
            }
        }
    }
}

/// Reports a wait that ended without its target. `limit`: the limit of the wait; `wanted`: such as
/// `2 permits of the semaphore "x" on …`; `busy`: the sentence for a call that tried once.
pub(crate) fn refused(
    answer: Answer,
    limit: Option<Duration>,
    wanted: impl fmt::Display,
    busy: impl FnOnce() -> String,
    holder: &ObservedHolder,
) -> Report {
    let sentence = match answer {
        Answer::Busy => format!("{}{holder}.", busy()),
        Answer::TimedOut => {
            let limit = brief(limit.unwrap_or_default());
            format!("Timed out after {limit} waiting for {wanted}{holder}.")
        }
        Answer::Interrupted => format!("The wait for {wanted} was cancelled; nothing is held."),
        other => return other.into(),
    };
    Report::new(answer, sentence)
}

/// Reports a call that tried once on a server that gives no new grants yet.
pub(crate) fn recovering(subject: &Subject<'_>) -> Report {
    let Target { context, route, .. } = subject.target;
    // It may have ended since.
    let (age, left) = context.recovery(*route).map(|it| (it.age, it.left)).unwrap_or_default();
    let since = match age.as_secs() {
        0 => "a moment".to_owned(),
        seconds => brief(Duration::from_secs(seconds)),
    };
    let left = rounded_up(left);
    let sentence = format!(
        "The {subject} cannot be given yet: the server was started {since} ago, and gives new ones \
         in {left}, when all leases of before have ended. Try again then, or wait for it."
    );
    Report::new(Answer::Recovering, sentence)
}

/// A duration for people, in whole seconds.
fn rounded_up(duration: Duration) -> String {
    brief(Duration::from_secs(duration.as_secs() + 1))
}

/// Formats a duration for people.
pub(crate) fn brief(duration: Duration) -> String {
    let (seconds, tenth) = (duration.as_secs(), duration.subsec_millis() / 100);
    match (seconds, tenth) {
        (0, _) => format!("{} ms", duration.as_millis()),
        (_, 0) => format!("{seconds} s"),
        (..60, _) => format!("{seconds}.{tenth} s"),
        _ => format!("{seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_told_as_people_do() {
        for (millis, text) in [
            (0, "0 ms"),
            (500, "500 ms"),
            (2_100, "2.1 s"),
            (30_000, "30 s"),
            (3_600_900, "3600 s"),
        ] {
            assert_eq!(brief(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn names_that_others_chose_spoil_no_terminal() {
        let holder = ObservedHolder::Memlock { host: "\u{1b}[2Jweb".to_owned(), pid: 7, others: 2 };
        assert_eq!(holder.to_string(), " (held by \\u{1b}[2Jweb, process 7, and 2 other holders)");
    }
}
