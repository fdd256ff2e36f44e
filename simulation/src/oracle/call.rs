//! A call that waits for a mutex, and how it may fail.

use crate::time::Nanos;

/// A call that waits for a mutex.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) key: String,
    pub(crate) process: usize,
    pub(crate) begun: Nanos,
    /// How many other calls were waiting when the call began, or when it joined the queue.
    pub(crate) before: u64,
    pub(crate) joined: bool,
    /// See [`Lock::irregular`].
    pub(crate) irregular: u64,
    /// `None`: no limit.
    pub(crate) limit: Option<Nanos>,
    pub(crate) cancelled: bool,
}

/// How a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Busy,
    TimedOut,
    Interrupted,
    Recovering,
    Unreachable,
    Unknown,
    Invalid,
    NotFound,
    Other,
}
