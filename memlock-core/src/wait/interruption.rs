//! Whether a blocking call has to end early.

use std::cell::Cell;

use super::limit::Wait;
use crate::clock::Moment;
use crate::context::Context;

/// All that may end one call early: its callback, its cancel handle, and its client, which may be
/// cancelled or closed.
pub(crate) struct Interruption<'a> {
    wait: &'a Wait<'a>,
    context: &'a Context,
    /// How often the client had been cancelled when the call began.
    cancellations: u64,
    seen: Cell<bool>,
}

impl<'a> Interruption<'a> {
    /// The interruption state of a call that begins now.
    pub(crate) fn new(wait: &'a Wait<'a>, context: &'a Context) -> Interruption<'a> {
        let cancellations = context.cancellations();
        Interruption { wait, context, cancellations, seen: Cell::new(false) }
    }

    /// The interruption state of a call that began when the client had been cancelled so often.
    pub(crate) fn resumed(
        wait: &'a Wait<'a>,
        context: &'a Context,
        cancellations: u64,
    ) -> Interruption<'a> {
        Interruption { cancellations, ..Interruption::new(wait, context) }
    }

    /// Whether the call was interrupted before it began. Does not call the callback.
    pub(crate) fn is_early(&self) -> bool {
        self.wait.is_cancelled() || self.context.is_closed()
    }

    /// Whether the call has to end. Once true, it stays true: a callback may return true only once,
    /// such as one that resets a flag which a signal handler has set.
    pub(crate) fn is_set(&self) -> bool {
        let cancelled =
            self.context.cancellations() != self.cancellations || self.context.is_closed();
        let set = self.seen.get() || cancelled || self.wait.is_interrupted();
        self.seen.set(set);
        set
    }

    /// Whether the call has to end, or its deadline has passed.
    pub(crate) fn is_over(&self, deadline: Option<Moment>) -> bool {
        let is_late = |deadline| self.context.clock().now() >= deadline;
        self.is_set() || deadline.is_some_and(is_late)
    }

    /// Whether [`Interruption::is_set`] has returned true.
    pub(crate) fn was_seen(&self) -> bool {
        self.seen.get()
    }
}
