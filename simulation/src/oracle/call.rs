//! A call that waits for a mutex, and how it may end without one.

use crate::time::Nanos;

/// A call that waits for a lock.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) key: String,
    pub(crate) process: usize,
    pub(crate) begun: Nanos,
    /// How many waited for it already, when the call began or when it joined the queue.
    pub(crate) before: u64,
    pub(crate) joined: bool,
    /// See [`Lock::irregular`].
    pub(crate) irregular: u64,
    /// `None`: for ever.
    pub(crate) limit: Option<Nanos>,
    pub(crate) cancelled: bool,
}

/// How a call for a lock ended that got none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Busy,
    TimedOut,
    Interrupted,
    Unreachable,
    Unknown,
    Invalid,
    NotFound,
    Other,
}
