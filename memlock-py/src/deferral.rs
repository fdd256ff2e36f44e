//! The state of an acquisition whose release is left to the end of a transaction.
//!
//! `memlock.django` and `memlock.sqlalchemy` defer a release, and run it when the transaction has
//! ended. Until then the acquisition stays with its object: it is renewed, can be extended, and
//! answers `remaining` and `lost`.
//!
//! | state | release(), or the end of the `with` statement | the end of the transaction |
//! | --- | --- | --- |
//! | not deferred | releases | – |
//! | pending | releases nothing, and is then *left*: a second release() raises NotHeld | releases: *over* |
//! | over | does nothing, once: the transaction may end before the `with` statement | – |
//!
//! A release that is deferred several times, for transactions of several databases, is run when the
//! last of them has ended.

use std::sync::{Mutex, MutexGuard, PoisonError};

use memlock_core::Loss;

/// How many acquisitions that are over an object remembers, for a release() that may never come.
pub(crate) const REMEMBERED: usize = 256;

/// How an acquisition was made, and so whether an end of it is certain to come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// By a `with` statement.
    With,
    /// By a call.
    Call,
}

/// The state of one acquisition. Locked as `HeldLock` is: see `acquisition`.
#[derive(Default)]
pub(crate) struct Deferral(Mutex<State>);

#[derive(Default)]
struct State {
    /// The transactions that have not ended.
    pending: u32,
    is_left: bool,
    is_over: bool,
    /// The loss that the release has found.
    loss: Option<Loss>,
}

impl Deferral {
    pub(crate) fn begin(&self) {
        self.locked().pending += 1;
    }

    /// One transaction has ended. Returns whether it was the last.
    pub(crate) fn end_one(&self) -> bool {
        let mut state = self.locked();
        state.pending -= 1;
        state.is_over = state.pending == 0;
        state.is_over
    }

    /// The object is released. Returns whether this is the first time.
    pub(crate) fn leave(&self) -> bool {
        !std::mem::replace(&mut self.locked().is_left, true)
    }

    pub(crate) fn is_deferred(&self) -> bool {
        let state = self.locked();
        state.pending > 0 || state.is_over
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.locked().pending > 0
    }

    pub(crate) fn is_over(&self) -> bool {
        self.locked().is_over
    }

    pub(crate) fn is_left(&self) -> bool {
        self.locked().is_left
    }

    pub(crate) fn loss(&self) -> Option<Loss> {
        self.locked().loss
    }

    /// The release has found a loss.
    pub(crate) fn record_loss(&self, loss: Loss) {
        self.locked().loss = Some(loss);
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
