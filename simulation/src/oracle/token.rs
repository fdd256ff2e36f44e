//! A token: which attempt wrote it, and how it was removed.

use std::collections::BTreeSet;

use memlock_core::OwnerRecord;

use crate::server::Cause;
use crate::time::Nanos;

#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) process: usize,
    /// It was there before, and a delayed attempt wrote it again.
    pub(crate) again: bool,
    /// The task whose attempt wrote it; `None` if another thread handed it over.
    pub(crate) task: Option<usize>,
    /// For permits, the calls that it may be for: a thread writes for others of its process, and
    /// the call for which a line was written is known only when that call returns.
    pub(crate) candidates: BTreeSet<usize>,
    /// Until when the server stores it as first written, less the time that the read before it
    /// took.
    pub(crate) ends: Nanos,
    pub(crate) sent: Nanos,
    pub(crate) written: Nanos,
    pub(crate) gone: Option<(Nanos, Cause)>,
    /// The server's life in which it was written.
    pub(crate) life: u64,
}

/// The token of the holder; none if the lock is reserved.
pub(crate) fn token_of(value: Option<&[u8]>) -> Option<String> {
    let held = OwnerRecord::parse(value?).filter(|record| record.reserved_for.is_none())?;
    Some(held.token.to_string())
}

/// The waiter for which it is reserved.
pub(super) fn reservation_of(value: Option<&[u8]>) -> Option<String> {
    OwnerRecord::parse(value?)?.reserved_for.map(|waiter| format!("waiter {waiter}"))
}
