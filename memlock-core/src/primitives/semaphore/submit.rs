//! Having an operation performed: by this thread as the leader, or by the thread that leads.

use std::sync::Arc;
use std::time::Duration;

use super::combine::{Combiner, Lead, Parking};
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
/// When a parked thread checks for the first time.
const FIRST_SLICE: Duration = Duration::from_millis(10);
/// The shortest sleep: a wait began a little later than it was requested, and ends as much later.
const A_MOMENT: Duration = Duration::from_millis(1);
/// A thread that was parked for this time joins the queue, unless enough threads of its process are
/// there.
const LONGEST_PARKED: Duration = Duration::from_millis(250);

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
        Lead::Ours(begun, operation) => {
            Leader::new(combiner, semaphore, *operation, known, *begun).run(is_over)
        }
        Lead::Another(ticket) => {
            let until = None;
            let sleeper =
                Sleeper { combiner, semaphore, ticket, acquires, ends, until, is_done: false };
            sleeper.wait(is_over)
        }
    }
}

/// Waits for a permit that this process itself releases, while the process keeps releasing, or has
/// enough waiters in the queue. Otherwise the caller has to join the queue.
pub(super) fn park(
    semaphore: &Semaphore,
    operation: Operation,
    is_over: &dyn Fn() -> bool,
    _submitting: Submitting,
) -> Completion {
    let combiner = semaphore.combiner();
    let now = semaphore.target.now();
    let (acquires, ends) = (operation.acquires(), operation.until);
    match combiner.park(operation, now) {
        Parking::Queue => Completion { in_queue: true, ..Completion::not_tried() },
        Parking::Here(ticket) => {
            let until = Some(now + LONGEST_PARKED);
            let sleeper =
                Sleeper { combiner, semaphore, ticket, acquires, ends, until, is_done: false };
            sleeper.wait(is_over)
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
    /// For a parked operation: from when on it counts as parked for long.
    until: Option<Moment>,
    is_done: bool,
}

impl Sleeper<'_> {
    fn wait(mut self, is_over: &dyn Fn() -> bool) -> Completion {
        let mut slice = if self.until.is_some() { FIRST_SLICE } else { SLICE };
        loop {
            let found = self.ticket.sleep(|is_unwanted| {
                let limit = std::mem::replace(&mut slice, SLICE);
                // An operation whose wait has ended still has to be dropped by a leader, which may
                // take its time.
                self.ends.filter(|_| !is_unwanted).map_or(limit, |ends| {
                    let left = ends.since(self.semaphore.target.now());
                    limit.min(left.max(A_MOMENT))
                })
            });
            let completion = match found {
                Found::Completed(completion) => Some(*completion),
                Found::Leads(operation) => {
                    self.is_done = true;
                    let begun = self.combiner.begins();
                    return Leader::new(self.combiner, self.semaphore, *operation, None, begun)
                        .run(is_over);
                }
                Found::Killed => Some(Completion::not_tried()),
                Found::Nothing => self.take_back_if(is_over()),
            };
            if let Some(completion) = completion {
                self.is_done = true;
                return completion;
            }
        }
    }

    /// Takes the operation back if it is listed or parked and not wanted any more, or if it is
    /// parked and has to join the queue.
    fn take_back_if(&self, is_over_now: bool) -> Option<Completion> {
        let now = self.semaphore.target.now();
        let clock = self.semaphore.target.context.clock();
        let is_long = self.until.map(|until| until <= now || !clock.advances_while_parked());
        let (operation, in_queue) =
            self.combiner.take_back(&self.ticket, is_over_now, is_long, now)?;
        let outcome = match operation.in_doubt {
            Some(_) => OperationOutcome::Unresolved(operation.error.clone()),
            None => OperationOutcome::NoRoom { refusal: None },
        };
        Some(Completion { in_queue, ..Completion::new(operation, outcome) })
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
