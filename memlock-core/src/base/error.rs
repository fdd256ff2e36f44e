//! The answers of memlock: one table of codes for every language, and the error that carries a
//! message.
//!
//! An answer above zero is an ordinary "no", not an [`Error`] in Rust: it is returned as an
//! `Option` or a small enum. An answer below zero is a failure, returned as an [`Error`] whose
//! [`kind`](Error::kind) names the row.

use std::ffi::CStr;
use std::fmt;

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

/// A failure: its kind, and a complete sentence that states what happened and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
    is_crowded: bool,
}

impl Error {
    /// A failure of this kind, with a sentence for the reader of the log.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), is_crowded: false }
    }

    /// The kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the failure may be temporary: an unreachable server, or an outcome that could not be
    /// resolved.
    pub fn is_outage(&self) -> bool {
        matches!(self.kind, ErrorKind::Unreachable | ErrorKind::Unknown)
    }

    /// Too many clients do the same: a server refuses a connection because it has as many as it takes.
    #[allow(dead_code, reason = "not every store is on servers")]
    pub(crate) fn crowded(message: impl Into<String>) -> Error {
        Error { is_crowded: true, ..Error::new(ErrorKind::Unreachable, message) }
    }

    /// Whether it is of too many clients that do the same, and will come to an end.
    pub(crate) fn is_crowded(&self) -> bool {
        self.is_crowded
    }

    /// The error of a step on a lock or a semaphore (`what`) whose outcome could not be resolved.
    /// `error`: why the item could not be read; `None` if it could, but changed too fast.
    pub(crate) fn unresolved(error: Option<Error>, what: &str) -> Error {
        match error {
            Some(error) if !error.is_outage() => error,
            Some(error) => Error::new(
                ErrorKind::Unknown,
                format!(
                    "The request was sent, and neither its reply nor the {what} could be read \
                     ({error})"
                ),
            ),
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

    pub(crate) fn invalid(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, message)
    }

    pub(crate) fn config(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Config, message)
    }

    pub(crate) fn protocol(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Protocol, message)
    }

    /// Prepends the operation, so that the message states what was being done.
    pub(crate) fn during(mut self, operation: impl fmt::Display) -> Error {
        self.message = format!("{operation}: {}", self.message);
        self
    }
}

/// A result whose failure is a memlock [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
