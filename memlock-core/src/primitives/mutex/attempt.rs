//! The attempts to acquire the mutex: a machine without I/O.
//!
//! | state | what is sent | reply | next |
//! | --- | --- | --- | --- |
//! | `Take` | the record, to be added if there is no item; or in place of the reservation that was seen for this waiter | stored | granted |
//! | | | not admitted: the server gives no new grants yet | recovering |
//! | | | not stored; in place of a reservation, which is gone | `Take` |
//! | | | not stored | missed; a waiter that was woken tries again, for a moment, where requests overtake each other |
//! | `Take`, with a read: the item may have this token, or be reserved for this waiter | the same, and a read | the record is ours | granted, by an earlier request |
//! | | | a reservation for this waiter | `Take`, in its place |
//! | | | an item, and then none: it may have been ours | `Take` |
//! | | | else | as above |
//! | `Refused`: the server stores no record, maybe because it is full | a read | another holder, or a reservation for another waiter | missed |
//! | | | else | the error |
//!
//! A request without a reply is followed by `Take` with a read, until three requests were sent or the
//! call is over: then the outcome is unknown. One that was not sent ends the attempt with an error,
//! unless an earlier one had no reply. The tests take the rows one by one (`attempt/tests.rs`).

#[cfg(test)]
mod tests;

use std::time::Duration;

use super::reserve::Reservations;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::Lease;
use crate::mutation::{self, Mutation};
use crate::owner::{NOTIFIES, Token, is_ours, notifies};
use crate::store::{Admission, Failure, Op, Order, Replies, Reply, Returns, Stored, Version};
use crate::target::{ATTEMPTS, Target};

/// How often a woken waiter repeats an attempt that may have overtaken the release, and for how long.
const REPEATS: usize = 6;
const OVERTAKING: Duration = Duration::from_millis(10);

/// The attempts of one acquisition, which all use the same token.
pub(super) struct Attempt<'a> {
    pub(super) target: &'a Target,
    pub(super) lease: Lease,
    pub(super) token: Token,
    pub(super) value: Vec<u8>,
    /// Whether the record says that its holder wakes waiters.
    pub(super) notifies: bool,
    pub(super) reservations: Reservations,
    /// When the first request was sent whose reply was lost: since then, this client may hold the
    /// lock without knowing.
    in_doubt_since: Option<Moment>,
    /// When the last such request was sent.
    in_doubt_until: Option<Moment>,
    state: State,
    began: Moment,
    /// How many requests may still be sent.
    left: usize,
    /// How many of them are left for a release that is still on its way.
    repeats: usize,
    /// Why the last request got no reply, or was refused.
    error: Option<Error>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Take {
        /// The version of the reservation to be replaced.
        claim: Option<Version>,
        reads: bool,
    },
    Refused,
}

/// The result of an attempt.
#[derive(Debug)]
pub(super) enum Attempted {
    /// With this version and fence, by a request that was sent then, at the earliest.
    Granted {
        version: Version,
        fence: u64,
        sent: Moment,
    },
    /// The mutex has another holder.
    Missed,
    /// The server gives no new grants yet.
    Recovering,
    Failed(Error),
}

impl<'a> Attempt<'a> {
    pub(super) fn new(target: &'a Target, lease: Lease) -> Result<Attempt<'a>> {
        let identity = target.context.identity()?;
        let token = identity.token();
        Ok(Attempt {
            target,
            lease,
            token,
            value: identity.record(token, target.context.clock()),
            notifies: false,
            reservations: Reservations::default(),
            in_doubt_since: None,
            in_doubt_until: None,
            state: State::Take { claim: None, reads: false },
            began: Moment::from_boot(Duration::ZERO),
            left: ATTEMPTS,
            repeats: 0,
            error: None,
        })
    }

    /// Until when to look for a grant that a request without a reply may have left.
    pub(super) fn orphan_until(&self) -> Option<Moment> {
        let guarantees = self.target.context.guarantees();
        self.in_doubt_until.map(|sent| guarantees.gone(self.lease, sent))
    }

    /// Others may wait behind this acquisition from now on.
    pub(super) fn will_wait(&mut self) {
        if !self.notifies {
            self.notifies = true;
            self.value.extend_from_slice(NOTIFIES);
        }
    }

    /// The token is used up: whatever was granted to it has to be removed.
    pub(super) fn change_token(&mut self) -> Result<()> {
        let (notifies, reservations) = (self.notifies, std::mem::take(&mut self.reservations));
        *self = Attempt { reservations, ..Attempt::new(self.target, self.lease)? };
        if notifies {
            self.will_wait();
        }
        Ok(())
    }

    /// Begins an attempt. `called`: this waiter was woken, or is the first in the queue.
    pub(super) fn begin(&mut self, called: bool) {
        let may_overtake = called && self.target.context.guarantees().order == Order::Close;
        (self.began, self.left) = (self.target.now(), ATTEMPTS);
        self.repeats = if may_overtake { REPEATS } else { 0 };
        self.error = None;
        self.take();
    }

    /// The operations to send.
    pub(super) fn ops(&self) -> Vec<Op<'_>> {
        let (key, value, expiry) = (&self.target.key, &self.value[..], self.lease.into());
        let returns = Returns::Fence;
        let (claim, reads) = match self.state {
            State::Take { claim, reads } => (claim, reads),
            State::Refused => return vec![Op::get(key)],
        };
        let take = match claim {
            Some(version) => Op::CompareAndSet { key, version, value, expiry, returns },
            None => Op::Add { key, value, expiry, returns, admission: Admission::Grant },
        };
        let read = reads.then_some(Op::Get { key, fence: true });
        [take].into_iter().chain(read).collect()
    }

    /// Handles the replies to a request that was sent then. `None`: there is another one to send.
    /// `is_over`: whether to stop, and leave an unknown outcome unresolved.
    pub(super) fn on(
        &mut self,
        replies: Replies,
        sent: Moment,
        is_over: &dyn Fn() -> bool,
    ) -> Option<Attempted> {
        let State::Take { claim, .. } = self.state else { return self.refused(replies) };
        let replies = match replies {
            Ok(replies) if !replies.is_empty() => replies,
            Ok(_) => return self.failed(Failure::no_reply(), sent, is_over),
            Err(failure) => return self.failed(failure, sent, is_over),
        };
        match (replies.first(), replies.get(1)) {
            (Some(&Reply::Stored(Stored { version, fence })), _) => {
                return Some(Attempted::Granted { version, fence, sent });
            }
            (_, Some(Reply::Value(item))) if is_ours(&item.value, self.token) => {
                if notifies(&item.value) {
                    self.will_wait();
                }
                let (version, fence) = (item.version, item.fence);
                let sent = self.in_doubt_since.unwrap_or(sent);
                return Some(Attempted::Granted { version, fence, sent });
            }
            (Some(Reply::NotAdmitted), _) => return Some(Attempted::Recovering),
            (_, Some(Reply::Value(item))) if self.reservations.is_ours(item) => {}
            // The item in the way may have been this client's own, and the server has lost it since.
            (Some(Reply::Exists), Some(Reply::Missing)) if self.reads_back() => {}
            // The reservation is gone.
            _ if claim.is_some() => {}
            // The release that this waiter was woken for may still be on its way.
            _ if self.repeats > 0
                && self.target.now().since(self.began) < OVERTAKING
                && !is_over() =>
            {
                (self.left, self.repeats) = (self.left + 1, self.repeats - 1);
            }
            _ => return Some(Attempted::Missed),
        }
        self.again()
    }

    fn failed(
        &mut self,
        Failure { error, sent: was_sent }: Failure,
        sent: Moment,
        is_over: &dyn Fn() -> bool,
    ) -> Option<Attempted> {
        if was_sent {
            self.in_doubt_since.get_or_insert(sent);
            self.in_doubt_until = Some(sent);
        }
        if self.in_doubt_since.is_none() {
            // A server that is full refuses a record before it looks for the item.
            let was_reached = self.target.context.time(self.target.route).is_some();
            if error.kind() != ErrorKind::Protocol || !was_reached {
                return Some(Attempted::Failed(error));
            }
            (self.state, self.left, self.error) = (State::Refused, ATTEMPTS, Some(error));
            return None;
        }
        self.error = Some(error);
        if is_over() { self.unresolved() } else { self.again() }
    }

    /// The server has refused the record: the mutex may have another holder nevertheless, or be
    /// reserved for another waiter.
    fn refused(&mut self, replies: Replies) -> Option<Attempted> {
        self.left -= 1;
        if replies.as_ref().is_err_and(|failure| failure.sent) && self.left > 0 {
            return None;
        }
        if let Some(Reply::Value(item)) = replies.ok().and_then(|mut replies| replies.pop())
            && !is_ours(&item.value, self.token)
            && !self.reservations.is_ours(&item)
        {
            return Some(Attempted::Missed);
        }
        self.error.take().map(Attempted::Failed)
    }

    fn again(&mut self) -> Option<Attempted> {
        self.left -= 1;
        if self.left == 0 {
            return self.unresolved();
        }
        self.take();
        None
    }

    fn unresolved(&mut self) -> Option<Attempted> {
        let unresolved = |error| Attempted::Failed(Error::unresolved(Some(error), "lock"));
        Some(self.error.take().map_or(Attempted::Missed, unresolved))
    }

    /// The item has to be read only if it may have this token, or be reserved for this waiter. A
    /// server that is persistent may have kept a reservation, which counts for nothing while the
    /// server gives no new grants.
    fn take(&mut self) {
        let counts = |version: &Version| self.target.recovers_for(*version).is_zero();
        let claim = self.reservations.claim().filter(counts);
        let reads = self.reads_back() || self.reservations.may_come();
        self.state = State::Take { claim, reads };
    }

    fn reads_back(&self) -> bool {
        self.in_doubt_since.is_some() && !mutation::has(Mutation::NoReadBack)
    }
}
