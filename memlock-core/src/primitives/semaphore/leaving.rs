//! Entries of this process in a semaphore's queue that no waiter uses any more.

use std::sync::{Mutex, PoisonError};

use crate::wait_id::WaitId;

/// The entries of one semaphore to be removed, and whether a thread is removing them.
#[derive(Debug, Default)]
pub(super) struct Leaving(Mutex<State>);

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) ids: Vec<WaitId>,
    /// The entries that this thread is removing.
    pub(super) now: Vec<WaitId>,
    pub(super) is_left: bool,
}

impl Leaving {
    pub(super) fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds these ids, and makes this thread remove all entries; `None` if another one does.
    pub(super) fn begin(&self, ids: Vec<WaitId>) -> Option<Vec<WaitId>> {
        let mut state = self.state();
        state.ids.extend(ids);
        if std::mem::replace(&mut state.is_left, true) {
            return None;
        }
        state.now = std::mem::take(&mut state.ids);
        Some(state.now.clone())
    }

    /// The next entries to remove. `None` if there are none: from then on, no thread is removing.
    pub(super) fn next(&self) -> Option<Vec<WaitId>> {
        let mut state = self.state();
        state.now = std::mem::take(&mut state.ids);
        state.is_left = !state.now.is_empty();
        state.is_left.then(|| state.now.clone())
    }

    /// All entries that no waiter uses any more, though they may still be in the queue.
    pub(super) fn ids(&self) -> Vec<WaitId> {
        let state = self.state();
        state.ids.iter().chain(&state.now).copied().collect()
    }
}
