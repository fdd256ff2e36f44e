//! Having an operation performed: by this thread as the leader, or by the thread that leads.

use std::sync::Arc;
use std::time::Duration;

use super::combine::{Combiner, Lead};
use super::handle::Semaphore;
use super::lead::Leader;
use super::operation::{Operation, OperationOutcome};
use super::snapshot::Snapshot;
use super::ticket::{Completion, Found, Ticket};
use super::wake::REAPER;
use crate::clock::Moment;
use crate::guard::orphan;
use crate::lease::Lease;
use crate::owner::Token;
use crate::thread;

/// How often a thread that waits for its operation checks whether the operation is still wanted.
const SLICE: Duration = Duration::from_millis(50);
/// The shortest sleep: a wait began a little later than it was requested, and ends as much later.
const A_MOMENT: Duration = Duration::from_millis(1);

/// While this value exists, this thread leads, or waits for a leader.
pub(super) struct Submitting(());

impl Submitting {
    /// `None` if the value exists already: the caller is a callback of one of this thread's
    /// operations (a logger, or the check whether the operation is still wanted). An operation of
    /// such a callback is not listed, because its leader may be this thread, which continues only
    /// after the callback.
    pub(super) fn enter() -> Option<Submitting> {
        if thread::mark(true) { None } else { Some(Submitting(())) }
    }
}

impl Drop for Submitting {
    fn drop(&mut self) {
        thread::mark(false);
    }
}

/// Has an operation performed, by this thread or another one, and returns the outcome. `known`: the
/// semaphore's state just now. `is_over`: whether an acquisition is not wanted any more.
pub(super) fn submit(
    semaphore: &Semaphore,
    operation: Operation,
    known: Option<Snapshot>,
    is_over: &dyn Fn() -> bool,
) -> Completion {
    let Some(_submitting) = Submitting::enter() else {
        return Leader::alone(semaphore, operation, known).run(is_over);
    };
    let combiner = semaphore.combiner();
    let (acquires, ends) = (operation.acquires(), operation.until);
    match combiner.enlist(operation) {
        Lead::Ours(ours) => {
            let (memory, operation) = *ours;
            Leader::new(combiner, semaphore, operation, known, memory).run(is_over)
        }
        Lead::Another(ticket) => {
            Sleeper { combiner, semaphore, ticket, acquires, ends, is_done: false }.wait(is_over)
        }
    }
}

/// A thread that waits for its operation.
struct Sleeper<'a> {
    combiner: &'a Combiner,
    semaphore: &'a Semaphore,
    ticket: Arc<Ticket>,
    /// What may be granted to the operation.
    acquires: Option<(Token, Lease)>,
    /// When the thread's wait ends, if it has a limit.
    ends: Option<Moment>,
    is_done: bool,
}

impl Sleeper<'_> {
    fn wait(mut self, is_over: &dyn Fn() -> bool) -> Completion {
        loop {
            let found = self.ticket.sleep(|is_unwanted| {
                // An operation whose wait has ended still has to be dropped by a leader, which may
                // take its time.
                self.ends.filter(|_| !is_unwanted).map_or(SLICE, |ends| {
                    let left = ends.since(self.semaphore.target.now());
                    SLICE.min(left.max(A_MOMENT))
                })
            });
            let completion = match found {
                Found::Completed(completion) => Some(*completion),
                Found::Leads(operation) => {
                    self.is_done = true;
                    let memory = self.combiner.begin();
                    return Leader::new(self.combiner, self.semaphore, *operation, None, memory)
                        .run(is_over);
                }
                Found::Killed => Some(Completion::not_tried()),
                Found::Nothing if is_over() => self.take_back(),
                Found::Nothing => None,
            };
            if let Some(completion) = completion {
                self.is_done = true;
                return completion;
            }
        }
    }

    /// Takes the operation back, which is not wanted any more, if it is listed.
    fn take_back(&self) -> Option<Completion> {
        let operation = self.combiner.take_back(&self.ticket)?;
        let outcome = match operation.in_doubt {
            Some(_) => OperationOutcome::Unresolved(operation.error.clone()),
            None => OperationOutcome::NoRoom { refusal: None },
        };
        Some(Completion::new(operation, outcome))
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        // The thread unwinds.
        let taken_back = self.combiner.abandon(&self.ticket);
        if let Some((token, lease)) = self.acquires
            && taken_back.is_none_or(|operation| operation.in_doubt.is_some())
        {
            let target = &self.semaphore.target;
            orphan::remember(target, &REAPER, token, target.gone(lease));
        }
    }
}
