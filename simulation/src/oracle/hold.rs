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
    /// Since when its holder knows of it.
    pub(crate) since: Nanos,
    pub(crate) until: Nanos,
    /// The holder relies on it: it is neither releasing nor extending it.
    pub(crate) using: bool,
    /// The server lost it, which is allowed.
    pub(crate) lost: bool,
    /// The server has forgotten it, and its holder may put it back.
    pub(crate) forgotten: bool,
    /// It was put back after its lease had ended.
    pub(crate) is_late: bool,
    /// It is being extended.
    pub(crate) extending: bool,
    /// A request of its release or extension had no answer, also one that only read: then its holder
    /// need not know until when it is held.
    pub(crate) unsure: bool,
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
            since: 0,
            until,
            using: true,
            lost: false,
            forgotten: false,
            is_late: false,
            extending: false,
            unsure: false,
            releasing: None,
            in_doubt: false,
        }
    }
}
