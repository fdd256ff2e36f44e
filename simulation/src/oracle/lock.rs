//! The history of one mutex on the server.

use crate::time::Nanos;

/// How many entries of a mutex's history are stored.
pub(super) const PAST: usize = 200;

#[derive(Debug, Default)]
pub(crate) struct Lock {
    /// The owner from each time on; `None`: free.
    pub(crate) past: Vec<(Nanos, Option<String>)>,
    /// When a lease last ended without a release.
    pub(crate) last_expiry: Option<Nanos>,
    pub(crate) greatest_fence: u64,
    /// The longest tenure of a holder or of a reservation.
    pub(crate) longest: Nanos,
    /// How often it became free without a release, so that no waiter was woken, and how often a
    /// call that tried only once was faster than the waiter that was woken.
    pub(crate) irregular: u64,
}

impl Lock {
    /// Counts the current tenure towards the longest one.
    pub(crate) fn note_tenure(&mut self, now: Nanos) {
        if let Some((since, Some(_))) = self.past.last() {
            self.longest = self.longest.max(now - since);
        }
    }
}
