//! Operations that take several rounds, carried out side by side: in each round a member gets the
//! requests of all of them in one packet.

use std::collections::HashSet;
use std::time::Duration;

use super::members::{Batches, Exchanged, Members};
use super::queue::OnQueue;
use crate::clock::{Clock, Moment};
use crate::name::Key;
use crate::store::{Failure, Op, Reply};

/// One operation on a lock.
pub(super) trait Task {
    /// The lock, if operations on the same one have to follow each other.
    fn follows(&self) -> Option<&Key>;

    /// Whether the outcome depends on this member, so that it is asked although it could not be reached
    /// a moment ago.
    fn needs(&self, member: usize) -> bool;

    /// Adds what this member is asked in the next round, if anything.
    fn add_to<'b>(&'b self, member: usize, batch: &mut Vec<Op<'b>>);

    /// A member's replies, or why there are none.
    fn take(&mut self, member: usize, came: Came);

    /// Called after each round, with the time.
    fn next(&mut self, now: Moment) -> Next;
}

/// What came from a member.
pub(super) struct Came {
    pub(super) replies: Result<Vec<Reply>, Failure>,
    /// When the request was sent at the earliest, and when the reply was there.
    pub(super) sent: Moment,
    pub(super) at: Moment,
}

/// What follows a round.
pub(super) enum Next {
    Again,
    /// Another round, after a pause.
    After(Duration),
    Done(Result<Reply, Failure>),
}

/// Carries out the operations. Returns the reply of each.
pub(super) fn drive(
    members: &Members,
    clock: &dyn Clock,
    tasks: &mut [Box<dyn Task + '_>],
    queue: &mut OnQueue<'_>,
    meanwhile: &dyn Fn(),
) -> Vec<Result<Reply, Failure>> {
    let mut ended: Vec<Option<Result<Reply, Failure>>> = tasks.iter().map(|_| None).collect();
    let mut rounds = 0;
    while ended.iter().any(Option::is_none) || !queue.is_done() {
        let mut busy: HashSet<&Key> = HashSet::new();
        let active: Vec<usize> = (0..tasks.len())
            .filter(|&place| {
                let mut may_go_on = || tasks[place].follows().is_none_or(|key| busy.insert(key));
                ended[place].is_none() && (tasks.len() == 1 || may_go_on())
            })
            .collect();
        // How many operations of each task a member gets: of its first task, of its second one, ...
        let number = members.all().len();
        let mut counts: Vec<usize> = Vec::with_capacity(number * active.len());
        let exchanged = {
            let mut batches = Batches::default();
            for member in 0..number {
                let ops = &mut batches.ops;
                for &place in &active {
                    let before = ops.len();
                    tasks[place].add_to(member, ops);
                    counts.push(ops.len() - before);
                }
                queue.add_to(member, ops);
                batches.ends.push(ops.len());
            }
            let needs = |member| active.iter().any(|&place| tasks[place].needs(member));
            let needed: Vec<bool> = (0..number).map(needs).collect();
            let nothing = || {};
            members.exchange(&batches, &needed, if rounds == 0 { meanwhile } else { &nothing })
        };
        for (member, exchanged) in exchanged.into_iter().enumerate() {
            let Some(Exchanged { mut ran, sent, came }) = exchanged else { continue };
            let counts = &counts[member * active.len()..];
            for (&place, &count) in active.iter().zip(counts) {
                if count > 0 {
                    let replies = match &mut ran {
                        Ok(replies) => {
                            let others = replies.split_off(count.min(replies.len()));
                            Ok(std::mem::replace(replies, others))
                        }
                        Err(failure) => Err(failure.clone()),
                    };
                    tasks[place].take(member, Came { replies, sent, at: came });
                }
            }
            queue.take(member, ran);
        }
        rounds += 1;
        let mut pause = None;
        for &place in &active {
            match tasks[place].next(clock.now()) {
                Next::Again => {}
                Next::After(time) => pause = pause.max(Some(time)),
                Next::Done(reply) => {
                    // What was read of the queue meanwhile may be older than what was done.
                    if rounds > 1 {
                        queue.read_again();
                    }
                    ended[place] = Some(reply);
                }
            }
        }
        if let Some(pause) = pause {
            clock.sleep(pause);
        }
    }
    ended.into_iter().flatten().collect()
}
