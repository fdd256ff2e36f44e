//! Reports: an answer, and its sentence for people.
//!
//! A failure is an [`Error`] with a sentence of its own. An ordinary negative answer (busy, timed
//! out, lost, not held) is a plain value in Rust; a [`Report`] adds a sentence that names the lock
//! and the server, and says what happened. The sentence is made only on request, so that acquiring
//! a free lock does not pay for it.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use crate::error::{Answer, Error, ErrorKind};
use crate::subject::Subject;
use crate::target::Target;

/// An answer, and a whole sentence about it.
///
/// Compared with an [`Answer`], only the answer counts.
#[must_use = "the answer says whether the call did what it was asked for"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    answer: Answer,
    sentence: Option<Box<str>>,
    subject: Option<Box<Subject>>,
}

impl Report {
    /// An answer with its sentence.
    pub fn new(answer: Answer, sentence: impl Into<String>) -> Report {
        Report { answer, sentence: Some(sentence.into().into_boxed_str()), subject: None }
    }

    /// An answer with a sentence that names this subject.
    pub(crate) fn naming(
        subject: Subject,
        answer: Answer,
        tell: impl FnOnce(&Subject) -> String,
    ) -> Report {
        let sentence = tell(&subject);
        Report { subject: Some(Box::new(subject)), ..Report::new(answer, sentence) }
    }

    /// The same sentence for another answer.
    pub fn as_answer(self, answer: Answer) -> Report {
        Report { answer, ..self }
    }

    /// The answer.
    pub fn answer(&self) -> Answer {
        self.answer
    }

    /// What the report is about. If it is known, the sentence names it.
    pub fn subject(&self) -> Option<&Subject> {
        self.subject.as_deref()
    }

    /// The same report as the failure of a call that cannot return it in another way.
    pub(crate) fn into_error(self, kind: ErrorKind) -> Error {
        let error = Error::new(kind, self.sentence());
        match self.subject {
            Some(subject) => error.naming(*subject),
            None => error,
        }
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
        Report { answer, sentence: None, subject: None }
    }
}

impl From<Error> for Report {
    fn from(error: Error) -> Report {
        let subject = error.subject().cloned().map(Box::new);
        Report { subject, ..Report::new(error.kind().answer(), error.to_string()) }
    }
}

impl PartialEq<Answer> for Report {
    fn eq(&self, answer: &Answer) -> bool {
        self.answer == *answer
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

/// Reports a wait that ended without its subject. `limit`: the limit of the wait; `wanted`: such as
/// `2 permits of the semaphore "x" on …`; `busy`: the sentence for a call that tried once.
pub(crate) fn refused(
    subject: &Subject,
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
    Report::naming(subject.clone(), answer, |_| sentence)
}

/// Reports a call that tried once on a server that gives no new grants yet.
pub(crate) fn recovering(target: &Target) -> Report {
    let Target { context, route, .. } = target;
    // It may have ended since.
    let (age, left) = context.recovery(*route).map(|it| (it.age, it.left)).unwrap_or_default();
    let since = match age.as_secs() {
        0 => "a moment".to_owned(),
        seconds => brief(Duration::from_secs(seconds)),
    };
    let left = rounded_up(left);
    Report::naming(target.subject(), Answer::Recovering, |subject| {
        format!(
            "The {subject} cannot be given yet: the server was started {since} ago, and gives new \
             ones in {left}, when all leases of before have ended. Try again then, or wait for it."
        )
    })
}

/// Reports that what has to be set up before it is used does not exist.
pub(crate) fn not_set_up(target: &Target) -> Report {
    Report::naming(target.subject(), Answer::NotFound, |subject| {
        format!("There is no {subject}: nobody has set it up, it has expired, or it was torn down.")
    })
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
