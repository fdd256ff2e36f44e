//! Entries that this process has in the queue of a semaphore, and that no waiter uses any more.

use std::sync::{Mutex, PoisonError};

use crate::wait_id::WaitId;

/// What is to be removed, for one semaphore, and whether some thread does so.
#[derive(Debug, Default)]
pub(super) struct Leaving(Mutex<State>);

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) ids: Vec<WaitId>,
    /// What the thread that does so is at.
    pub(super) now: Vec<WaitId>,
    pub(super) is_left: bool,
}

impl Leaving {
    pub(super) fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has this thread take off what there is, and these; `None` if another one is at it.
    pub(super) fn begin(&self, ids: Vec<WaitId>) -> Option<Vec<WaitId>> {
        let mut state = self.state();
        state.ids.extend(ids);
        if std::mem::replace(&mut state.is_left, true) {
            return None;
        }
        state.now = std::mem::take(&mut state.ids);
        Some(state.now.clone())
    }

    /// What there is to remove; `None`, and no thread does so any more, when there is nothing.
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
