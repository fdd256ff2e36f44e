//! The answers of memlock: one table of codes for every language, and the error that carries a
//! message.
//!
//! An answer above zero is an ordinary "no", not an [`Error`] in Rust: it is returned as an
//! `Option` or a small enum. An answer below zero is a failure, returned as an [`Error`] whose
//! [`kind`](Error::kind) names the row.

use std::ffi::CStr;
use std::fmt;

use crate::subject::Subject;

/// Every answer of memlock, in every language. The numbers are the C library's return codes: they
/// are fixed, and the number of a withdrawn answer is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Answer {
    /// Done.
    Ok = 0,
    /// Another holder has it, or other holders have all permits, and the call was to make one
    /// attempt.
    Busy = 1,
    /// The limit of the wait passed.
    TimedOut = 2,
    /// The key was in the list already.
    Duplicate = 3,
    /// The session was set up already; the caller is in it and can carry on.
    Exists = 4,
    /// This process holds no such lock or permit.
    NotHeld = 5,
    /// The lock or permit was held before, and is lost: the lease expired, or the server lost the
    /// item. From a release or an extension: another holder may have had it meanwhile.
    Lost = 6,
    /// There is no such session, semaphore or counter: it was never set up, has expired or was torn
    /// down.
    NotFound = 7,
    /// The wait was cancelled.
    Interrupted = 8,
    /// The server was started a short while ago, and gives no new grants until all leases of its
    /// earlier life have ended; the call was to make one attempt. See `guard=` in the documentation
    /// of URLs.
    Recovering = 9,
    /// A NULL, an empty or over-long name, or a duration below one second or too large.
    Invalid = -1,
    /// No server could be reached; nothing was changed.
    Unreachable = -2,
    /// The request was sent, no reply arrived, and reading back failed as well.
    Unknown = -3,
    /// The server is too old, runs without cas, refused the request or sent an invalid reply.
    Protocol = -4,
    /// A bad URL or setting.
    Config = -5,
    /// The caller already holds what it asks for, and would wait for itself.
    Deadlock = -6,
    /// A bug in memlock: a panic was caught at the boundary.
    Internal = -7,
}

impl Answer {
    /// The number that the C library returns.
    pub fn code(self) -> i32 {
        self as i32
    }

    /// The answer with this number.
    pub fn from_code(code: i32) -> Option<Answer> {
        Answer::ALL.into_iter().find(|answer| answer.code() == code)
    }

    /// The answer as one sentence, for when no more is known. It ends in NUL for C.
    pub fn describe(self) -> &'static CStr {
        match self {
            Answer::Ok => c"Done.",
            Answer::Busy => c"Another process holds it, or all permits are held.",
            Answer::TimedOut => c"The timeout passed before it was free.",
            Answer::Duplicate => c"The key was in the list already.",
            Answer::Exists => c"It was set up already; carry on.",
            Answer::NotHeld => c"This process holds no such lock or permit.",
            Answer::Lost => c"It was held, and is lost: its lease ended, or the server lost it.",
            Answer::NotFound => {
                c"There is no such session, semaphore or counter: it was never set up, has expired \
                  or was torn down."
            }
            Answer::Interrupted => c"The wait was cancelled.",
            Answer::Recovering => {
                c"The server was started a short while ago, and gives no new grants yet."
            }
            Answer::Invalid => c"An argument is not valid.",
            Answer::Unreachable => c"The server cannot be reached; nothing was changed.",
            Answer::Unknown => {
                c"The request was sent, no reply came, and reading back failed, too."
            }
            Answer::Protocol => {
                c"The server is too old, runs without cas, refused the request or gave an invalid \
                  reply."
            }
            Answer::Config => c"The URL or a setting is not valid.",
            Answer::Deadlock => c"The caller already holds it and would wait for itself.",
            Answer::Internal => c"A bug in memlock was caught. Please report it.",
        }
    }

    /// All answers.
    pub const ALL: [Answer; 17] = [
        Answer::Ok,
        Answer::Busy,
        Answer::TimedOut,
        Answer::Duplicate,
        Answer::Exists,
        Answer::NotHeld,
        Answer::Lost,
        Answer::NotFound,
        Answer::Interrupted,
        Answer::Recovering,
        Answer::Invalid,
        Answer::Unreachable,
        Answer::Unknown,
        Answer::Protocol,
        Answer::Config,
        Answer::Deadlock,
        Answer::Internal,
    ];
}

/// The failures among the [`Answer`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// [`Answer::Invalid`]
    Invalid,
    /// [`Answer::Unreachable`]
    Unreachable,
    /// [`Answer::Unknown`]
    Unknown,
    /// [`Answer::Protocol`]
    Protocol,
    /// [`Answer::Config`]
    Config,
    /// [`Answer::Deadlock`]
    Deadlock,
    /// [`Answer::Internal`]
    Internal,
    /// [`Answer::Interrupted`], from calls that cannot return it in another way
    Interrupted,
    /// [`Answer::NotFound`], from calls that cannot return it in another way: an iteration whose
    /// session ends meanwhile, and a semaphore that was not set up
    NotFound,
}

impl ErrorKind {
    /// The answer that corresponds to this failure.
    pub fn answer(self) -> Answer {
        match self {
            ErrorKind::Invalid => Answer::Invalid,
            ErrorKind::Unreachable => Answer::Unreachable,
            ErrorKind::Unknown => Answer::Unknown,
            ErrorKind::Protocol => Answer::Protocol,
            ErrorKind::Config => Answer::Config,
            ErrorKind::Deadlock => Answer::Deadlock,
            ErrorKind::Internal => Answer::Internal,
            ErrorKind::Interrupted => Answer::Interrupted,
            ErrorKind::NotFound => Answer::NotFound,
        }
    }
}

/// A failure: its kind, a complete sentence that states what happened and what to do, and what it is
/// about, if that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    sentence: String,
    /// What precedes the sentence: the server, or what was done with the subject.
    before: Option<Box<str>>,
    subject: Option<Box<Subject>>,
    nature: Nature,
}

/// What a store knows of a failure beyond its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nature {
    Usual,
    /// Too many clients do the same: a server refuses a connection because it has as many as it takes.
    Crowded,
    /// The server did not answer in time.
    Silent,
}

impl Error {
    /// A failure of this kind, with a sentence for the reader of the log.
    pub fn new(kind: ErrorKind, sentence: impl Into<String>) -> Error {
        let (before, subject, nature) = (None, None, Nature::Usual);
        Error { kind, sentence: sentence.into(), before, subject, nature }
    }

    /// The kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What the failure is about. If it is known, the message names it.
    pub fn subject(&self) -> Option<&Subject> {
        self.subject.as_deref()
    }

    /// What happened, without what it is about.
    pub(crate) fn sentence(&self) -> &str {
        &self.sentence
    }

    /// Whether the failure may be temporary: an unreachable server, or an outcome that could not be
    /// resolved.
    pub fn is_outage(&self) -> bool {
        matches!(self.kind, ErrorKind::Unreachable | ErrorKind::Unknown)
    }

    #[allow(dead_code, reason = "not every store is on servers")]
    pub(crate) fn crowded(sentence: impl Into<String>) -> Error {
        Error { nature: Nature::Crowded, ..Error::new(ErrorKind::Unreachable, sentence) }
    }

    #[allow(dead_code, reason = "not every store is on servers")]
    pub(crate) fn silent(kind: ErrorKind, sentence: impl Into<String>) -> Error {
        Error { nature: Nature::Silent, ..Error::new(kind, sentence) }
    }

    /// Whether it is of too many clients that do the same, and will come to an end.
    pub(crate) fn is_crowded(&self) -> bool {
        self.nature == Nature::Crowded
    }

    /// Whether the server did not answer in time, as opposed to a connection that ended.
    #[allow(dead_code, reason = "not every store is on servers")]
    pub(crate) fn is_silence(&self) -> bool {
        self.nature == Nature::Silent
    }

    /// The error of a step on a lock or a semaphore (`what`) whose outcome could not be resolved.
    /// `error`: why the item could not be read; `None` if it could, but changed too fast.
    pub(crate) fn unresolved(error: Option<Error>, what: &str) -> Error {
        match error {
            Some(error) if !error.is_outage() => error,
            Some(error) => error.told_as(ErrorKind::Unknown, |why| {
                format!(
                    "The request was sent, and neither its reply nor the {what} could be read ({why})"
                )
            }),
            None => Error::new(
                ErrorKind::Unknown,
                format!("Other clients change the {what} faster than it can be read."),
            ),
        }
    }

    /// The error of a read in a step on `what`. `in_doubt`: an earlier write of the step got no
    /// reply, so that it is not known whether it was carried out.
    pub(crate) fn after_write(self, in_doubt: bool, what: &str) -> Error {
        if in_doubt { Error::unresolved(Some(self), what) } else { self }
    }

    pub(crate) fn invalid(sentence: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, sentence)
    }

    pub(crate) fn config(sentence: impl Into<String>) -> Error {
        Error::new(ErrorKind::Config, sentence)
    }

    pub(crate) fn protocol(sentence: impl Into<String>) -> Error {
        Error::new(ErrorKind::Protocol, sentence)
    }

    /// The same failure, of another kind.
    pub(crate) fn of_kind(self, kind: ErrorKind) -> Error {
        Error { kind, ..self }
    }

    /// The same failure, told by another sentence, which may contain the first.
    pub(crate) fn told_as(self, kind: ErrorKind, tell: impl FnOnce(&str) -> String) -> Error {
        Error { kind, sentence: tell(&self.sentence), ..self }
    }

    /// Prepends the operation, so that the message states what was being done.
    pub(crate) fn during(mut self, operation: impl fmt::Display) -> Error {
        match &mut self.before {
            Some(before) => *before = format!("{operation}: {before}").into(),
            None => self.sentence = format!("{operation}: {}", self.sentence),
        }
        self
    }

    /// Names the server that failed, unless it is named already.
    pub(crate) fn at(mut self, server: impl fmt::Display) -> Error {
        self.before.get_or_insert_with(|| server.to_string().into());
        self
    }

    /// Names what the failure is about, unless it is named already. `doing`: what was being done, such
    /// as `Locking`.
    pub(crate) fn about(mut self, doing: &str, subject: Subject) -> Error {
        if self.subject.is_none() {
            self.before = Some(format!("{doing} the {subject}").into());
            self.subject = Some(Box::new(subject));
        }
        self
    }

    /// What the sentence names.
    pub(crate) fn naming(self, subject: Subject) -> Error {
        Error { subject: Some(Box::new(subject)), ..self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.before {
            Some(before) => write!(f, "{before}: {}", self.sentence),
            None => f.write_str(&self.sentence),
        }
    }
}

impl std::error::Error for Error {}

/// A result whose failure is a memlock [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
