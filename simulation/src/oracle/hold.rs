//! What a holder relies on.

use crate::time::Nanos;

/// A mutex or permits, as their holder sees them.
#[derive(Debug)]
pub(crate) struct HoldInterval {
    pub(crate) process: usize,
    pub(crate) key: String,
    pub(crate) token: String,
    /// The number of permits of a semaphore; `None`: a mutex.
    pub(crate) permits: Option<u32>,
    pub(crate) until: Nanos,
    /// The holder relies on it: it is neither releasing nor extending it.
    pub(crate) using: bool,
    /// The server lost it, which is allowed.
    pub(crate) lost: bool,
    /// When its holder first began to release it.
    pub(crate) releasing: Option<Nanos>,
    /// A release had no answer: if the item is gone now, the cause is unknown.
    pub(crate) in_doubt: bool,
}

impl HoldInterval {
    /// A mutex, in use from now on.
    pub(crate) fn new(process: usize, key: String, token: String, until: Nanos) -> HoldInterval {
        HoldInterval {
            process,
            key,
            token,
            permits: None,
            until,
            using: true,
            lost: false,
            releasing: None,
            in_doubt: false,
        }
    }
}
