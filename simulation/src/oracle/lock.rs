//! The past of one mutex on the server.

use crate::time::Nanos;

/// How many moments of a lock's past are kept.
pub(super) const PAST: usize = 200;

#[derive(Debug, Default)]
pub(crate) struct Lock {
    /// When it was whose, and nobody's.
    pub(crate) past: Vec<(Nanos, Option<String>)>,
    /// When a lease ended that its holder had not ended.
    pub(crate) last_expiry: Option<Nanos>,
    pub(crate) greatest_fence: u64,
    /// For how long somebody had it at most, or it was reserved.
    pub(crate) longest: Nanos,
    /// How often it came free without a release, so that nobody was woken, and how often a call
    /// that tried once was faster than the waiter that was woken.
    pub(crate) irregular: u64,
}

impl Lock {
    /// Until when the item is whose it is: what is past counts towards the longest tenure.
    pub(crate) fn note_tenure(&mut self, now: Nanos) {
        if let Some((since, Some(_))) = self.past.last() {
            self.longest = self.longest.max(now - since);
        }
    }
}
