//! A token: which attempt wrote it, and what became of it.

use std::collections::BTreeSet;

use memlock_core::OwnerRecord;

use crate::server::Cause;
use crate::time::Nanos;

#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) process: usize,
    /// It was there before, and an attempt of long ago put it there once more.
    pub(crate) again: bool,
    /// Whose attempt put it there; nobody's, if it was handed over by another thread.
    pub(crate) task: Option<usize>,
    /// Of permits, whose calls it may be for: a thread writes for others of its process, and who
    /// each line is for is known when that is told.
    pub(crate) candidates: BTreeSet<usize>,
    /// Until when the server keeps it, as it was first written, but for the time that the look
    /// before took.
    pub(crate) ends: Nanos,
    pub(crate) sent: Nanos,
    pub(crate) written: Nanos,
    pub(crate) gone: Option<(Nanos, Cause)>,
}

/// By which token it is held; a reservation is no holder's.
pub(crate) fn token_of(value: Option<&[u8]>) -> Option<String> {
    let held = OwnerRecord::parse(value?).filter(|record| record.reserved_for.is_none())?;
    Some(held.token.to_string())
}

/// For whom it is reserved.
pub(super) fn reservation_of(value: Option<&[u8]>) -> Option<String> {
    OwnerRecord::parse(value?)?.reserved_for.map(|waiter| format!("waiter {waiter}"))
}
