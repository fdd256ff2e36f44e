//! When a connection deletes the rows of items that ended.
//!
//! A sweep is a request of its own, so that a failure of it is not taken for one of a batch. It is
//! sent behind the reply to a batch, and its own reply is read when the connection is taken into use
//! again: no caller waits for the sweep of its own batch. A connection whose sweep takes long is
//! replaced.

use crate::clock::Clock;

/// A connection sweeps when it has stored so many items.
const EVERY: usize = 256;
/// How many rows are examined for them: several times as many, so that sweeps catch up.
pub(in crate::store) const EXAMINED: usize = 1024;
/// After a large batch, one sweep does the work of so many.
const MOST_AT_ONCE: usize = 4;

/// Counts what a connection stores.
#[derive(Debug)]
pub(in crate::store) struct SweepCounter {
    stored: usize,
}

impl SweepCounter {
    /// The first sweep is left to chance, since most processes of the command store few items.
    pub(in crate::store) fn new(clock: &dyn Clock) -> SweepCounter {
        let mut random = [0];
        // Without chance the first sweep is as late as it can be.
        let stored = clock.random(&mut random).map_or(0, |()| usize::from(random[0]));
        SweepCounter { stored }
    }

    pub(in crate::store) fn add(&mut self, stored: usize) {
        self.stored += stored;
    }

    /// If a sweep is due, how many rows it examines. It then counts as done.
    pub(in crate::store) fn take(&mut self) -> Option<usize> {
        let due = (self.stored / EVERY).min(MOST_AT_ONCE);
        self.stored -= due * EVERY;
        (due > 0).then_some(due * EXAMINED)
    }
}
