//! What a holder relies on.

use crate::time::Nanos;

/// A lock, or permits, as their holder believes in them.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) process: usize,
    pub(crate) key: String,
    pub(crate) token: String,
    /// How many of a semaphore's permits; `None`: a mutex.
    pub(crate) permits: Option<u32>,
    pub(crate) until: Nanos,
    /// The holder relies on it: it is not letting go of it, or changing it.
    pub(crate) using: bool,
    /// The server lost it, as it may.
    pub(crate) lost: bool,
    /// When its holder first began to let go.
    pub(crate) releasing: Option<Nanos>,
    /// A request to let go had no answer: if it is gone now, nobody can tell what did it.
    pub(crate) in_doubt: bool,
}

impl Hold {
    /// Of a mutex, and in use from now on.
    pub(crate) fn new(process: usize, key: String, token: String, until: Nanos) -> Hold {
        Hold {
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
