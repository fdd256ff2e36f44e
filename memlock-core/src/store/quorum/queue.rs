//! The operations on a lock's queue, on the first member in the order of the key that answers.
//!
//! Clients that see different members fail use different queues for a while. That costs order and
//! promptness, and no safety: waiters look at the lock from time to time.

use super::members::Members;
use crate::store::{Failure, Op, Reply, Route};

/// The operations of one batch.
pub(super) struct OnQueue<'a> {
    ops: Vec<Op<'a>>,
    /// The members to ask, the next one first.
    members: Vec<usize>,
    /// The one that is asked in this round.
    asked: Option<usize>,
    ended: Option<Result<Vec<Reply>, Failure>>,
}

impl<'a> OnQueue<'a> {
    pub(super) fn new(members: &Members, route: Route, ops: Vec<Op<'a>>) -> OnQueue<'a> {
        if ops.is_empty() {
            return OnQueue { ops, members: Vec::new(), asked: None, ended: Some(Ok(Vec::new())) };
        }
        let mut order = members.in_order(route);
        // Those that are left out come last.
        order.sort_by_cached_key(|&member| members.is_away(member));
        OnQueue { ops, members: order, asked: None, ended: None }
    }

    pub(super) fn is_done(&self) -> bool {
        self.ended.is_some()
    }

    /// Adds what this member is asked now.
    pub(super) fn add_to<'b>(&mut self, member: usize, batch: &mut Vec<Op<'b>>)
    where
        'a: 'b,
    {
        if !self.is_done() && self.members.first() == Some(&member) {
            self.asked = Some(member);
            batch.extend(self.ops.iter().copied());
        }
    }

    pub(super) fn take(&mut self, member: usize, ran: Result<Vec<Reply>, Failure>) {
        if self.is_done() || self.asked != Some(member) {
            return;
        }
        self.asked = None;
        match ran {
            // What may have been done there must not be done elsewhere, too.
            Err(failure) if failure.error.is_outage() && !self.may_have_changed(&failure) => {
                self.members.remove(0);
                if self.members.is_empty() {
                    self.ended = Some(Err(failure));
                }
            }
            ended => self.ended = Some(ended),
        }
    }

    fn may_have_changed(&self, failure: &Failure) -> bool {
        failure.sent && self.ops.iter().any(Op::changes)
    }

    /// Reads the queue again, if it was only read.
    pub(super) fn read_again(&mut self) {
        let only_reads = !self.ops.iter().any(Op::changes);
        if matches!(self.ended, Some(Ok(_))) && only_reads && !self.ops.is_empty() {
            self.ended = None;
        }
    }

    pub(super) fn into_replies(self) -> Result<Vec<Reply>, Failure> {
        self.ended.unwrap_or_else(|| Ok(Vec::new()))
    }
}
