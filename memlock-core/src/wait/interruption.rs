//! Whether a call that waits is to end early.

use std::cell::Cell;

use super::limit::Wait;
use crate::context::Context;

/// Everything that may end one call early: its callback, its cancel handle, and its client, which
/// may be cancelled or closed.
pub(crate) struct Interruption<'a> {
    wait: &'a Wait<'a>,
    context: &'a Context,
    /// How often the client had been cancelled when the call began.
    cancellations: u64,
    seen: Cell<bool>,
}

impl<'a> Interruption<'a> {
    /// Of a call that begins now.
    pub(crate) fn new(wait: &'a Wait<'a>, context: &'a Context) -> Interruption<'a> {
        let cancellations = context.cancellations();
        Interruption { wait, context, cancellations, seen: Cell::new(false) }
    }

    /// Whether the call was interrupted before it began: without asking its callback.
    pub(crate) fn is_early(&self) -> bool {
        self.wait.is_cancelled() || self.context.is_closed()
    }

    /// Whether the call is to end. Once true it stays true: a callback may answer true only once,
    /// as one does that takes note of a signal by resetting a flag.
    pub(crate) fn is_set(&self) -> bool {
        let cancelled =
            self.context.cancellations() != self.cancellations || self.context.is_closed();
        let set = self.seen.get() || cancelled || self.wait.is_interrupted();
        self.seen.set(set);
        set
    }

    /// Whether [`Interruption::is_set`] has answered true.
    pub(crate) fn was_seen(&self) -> bool {
        self.seen.get()
    }
}
