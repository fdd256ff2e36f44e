//! Renewing a lock by its renewer: the same steps as [`Lock::extend`], one reply at a time, so that
//! many go in one packet.

use std::time::Duration;

use super::Lock;
use crate::clock::Moment;
use crate::guard::lease_guard::LATEST_ARRIVAL;
use crate::lease::{Lease, SUSPICIOUS_DELAY, kept_until};
use crate::mutation::{self, Mutation};
use crate::name::Key;
use crate::owner::{NOTIFIES, OwnerRecord, Token, is_ours};
use crate::store::{Op, Reply, Route, Version};

/// A renewal on its way.
pub(crate) struct LockRenewal {
    pub(crate) route: Route,
    key: Key,
    token: Token,
    value: Vec<u8>,
    version: Version,
    lease: Lease,
    /// Until when the old lease lasts: nothing is sent afterwards.
    pub(crate) old_deadline: Moment,
    step: Step,
}

#[derive(Clone, Copy)]
enum Step {
    CompareAndSet,
    /// The version may be another.
    Read,
    /// It was renewed, but so slowly that the server may have stood still: to be believed as far as
    /// it says. `first`: when a look at that left which was as slow.
    Believe {
        deadline: Moment,
        first: Option<Moment>,
    },
}

/// What came of a step.
pub(crate) enum Progress {
    /// It is ours until then, by this version.
    Until { deadline: Moment, version: Version, value: Vec<u8> },
    /// It is not ours any more.
    Gone,
    /// There is another step to take.
    NotYet,
}

impl LockRenewal {
    pub(crate) fn op(&self) -> Op<'_> {
        let LockRenewal { key, version, value, lease, .. } = self;
        match self.step {
            Step::CompareAndSet if mutation::has(Mutation::KeepPutsBack) && version.cas == 0 => {
                Op::Add { key, value, ttl: lease.ttl() }
            }
            Step::CompareAndSet => {
                Op::CompareAndSet { key, version: *version, value, ttl: lease.ttl() }
            }
            Step::Read | Step::Believe { .. } => Op::Get { key },
        }
    }

    /// Whether the next step changes anything, so that its outcome would be in doubt without a
    /// reply.
    pub(crate) fn writes(&self) -> bool {
        matches!(self.step, Step::CompareAndSet)
    }

    /// The reply to a step that was sent then, and answered then.
    pub(crate) fn take(&mut self, reply: &Reply, sent: Moment, came: Moment) -> Progress {
        let until = |deadline, it: &LockRenewal| Progress::Until {
            deadline,
            version: it.version,
            value: it.value.clone(),
        };
        match (self.step, reply) {
            (Step::CompareAndSet, &Reply::Stored(version)) => {
                self.version = version;
                let deadline = self.lease.deadline(if mutation::has(Mutation::KeepFromReply) {
                    came
                } else {
                    sent
                });
                if came.since(sent) <= SUSPICIOUS_DELAY
                    || mutation::has(Mutation::BelieveSlowRenewals)
                {
                    return until(deadline, self);
                }
                self.step = Step::Believe { deadline, first: None };
                Progress::NotYet
            }
            (Step::CompareAndSet, Reply::Missing) if mutation::has(Mutation::KeepPutsBack) => {
                self.version.cas = 0;
                Progress::NotYet
            }
            (Step::CompareAndSet, Reply::VersionMismatch)
                if !mutation::has(Mutation::KeepChangedIsGone) =>
            {
                self.step = Step::Read;
                Progress::NotYet
            }
            (Step::Read, Reply::Value(item))
                if is_ours(&item.value, self.token) || mutation::has(Mutation::KeepAnyones) =>
            {
                self.version = item.version;
                // A waiter may have written into our record that it waits.
                let marked =
                    |value: &[u8]| OwnerRecord::parse(value).is_some_and(|record| record.notifies);
                if marked(&item.value) && !marked(&self.value) {
                    self.value.extend_from_slice(NOTIFIES);
                }
                self.step = Step::CompareAndSet;
                Progress::NotYet
            }
            (Step::Believe { deadline, first }, Reply::Value(item))
                if is_ours(&item.value, self.token) =>
            {
                self.version = item.version;
                match kept_until(item.remaining.unwrap_or(Duration::MAX), sent, came, first) {
                    Some(kept) => until(deadline.min(kept), self),
                    None => {
                        self.step = Step::Believe { deadline, first: Some(sent) };
                        Progress::NotYet
                    }
                }
            }
            _ => Progress::Gone,
        }
    }
}

impl Lock {
    /// Begins a renewal; `in_doubt`: an earlier one got no reply. `None` when there is nothing to
    /// renew.
    pub(crate) fn renewal(&mut self, in_doubt: bool) -> Option<LockRenewal> {
        let now = self.kind.target.now();
        if self.remaining().is_zero() && !mutation::has(Mutation::KeepPastTheEnd) {
            return None;
        }
        // It may reach the server at any time until its reply is given up.
        self.server_until = self.server_until.max(self.lease.gone(now) + LATEST_ARRIVAL);
        Some(LockRenewal {
            route: self.kind.target.route,
            key: self.kind.target.key.clone(),
            token: self.token,
            value: self.kind.value.clone(),
            version: self.kind.version,
            lease: self.lease,
            old_deadline: self.deadline,
            step: if in_doubt { Step::Read } else { Step::CompareAndSet },
        })
    }

    /// It was renewed. A step of the owner's own may have been faster.
    pub(crate) fn renewed(&mut self, deadline: Moment, version: Version, value: Vec<u8>) {
        (self.kind.version, self.deadline) = (version, self.deadline.max(deadline));
        self.kind.notifies |= OwnerRecord::parse(&value).is_some_and(|record| record.notifies);
        self.kind.value = value;
    }
}
