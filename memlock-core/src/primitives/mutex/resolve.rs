//! An owner's step on the caller's thread, which waits for the replies to each request.

use super::lock::Lock;
use super::step::{Action, OwnerOutcome, OwnerStep};
use crate::error::Result;
use crate::store::Replies;

impl Lock {
    /// Takes a step of the owner's.
    pub(super) fn resolve(&mut self, action: Action) -> Result<OwnerOutcome> {
        let value = std::mem::take(&mut self.kind.value);
        let mut step = OwnerStep::with_value(self, value, action);
        let ended = run(&mut step, |step| {
            step.announce(self);
            let ops = step.ops();
            let pending = step.target.send(&ops);
            if step.wakes_ahead() && pending.was_sent() {
                self.kind.woken_ahead = self.wake_ahead();
            }
            pending.receive()
        });
        step.apply(self);
        ended
    }
}

/// Whether the server has the lock.
pub(super) fn check(mut step: OwnerStep) -> Result<bool> {
    let ended = run(&mut step, |step| step.target.run(&step.ops()));
    ended.map(|outcome| matches!(outcome, OwnerOutcome::Taken(_)))
}

fn run(
    step: &mut OwnerStep,
    mut exchange: impl FnMut(&OwnerStep) -> Replies,
) -> Result<OwnerOutcome> {
    loop {
        let sent = step.target.now();
        let replies = exchange(step);
        let came = step.target.now();
        if let Some(ended) = step.on(replies, sent, came) {
            return ended;
        }
    }
}
