//! Renewal of a lock by the renewal thread: the steps of [`Lock::extend`], one operation and one
//! reply at a time, so that many renewals share a packet.

use std::time::Duration;

use super::lock::{Confirmation, Exclusive, Lock};
use super::reclaim::{self, Reclaim};
use crate::clock::Moment;
use crate::guard::confirmed::Confirmed;
use crate::guard::lease_guard::Kind;
use crate::guard::lease_guard::LATEST_ARRIVAL;
use crate::guard::renewal::renewable::{Check, PendingRenewal, Progress, Renewable, RenewableKind};
use crate::lease::Lease;
use crate::mutation::{self, Mutation};
use crate::name::Key;
use crate::owner::{NOTIFIES, OwnerRecord, Token, is_ours};
use crate::store::{Epoch, Guarantees, Op, Reply, Returns, Stored, Version};

/// A renewal under way.
struct LockRenewal {
    key: Key,
    token: Token,
    value: Vec<u8>,
    version: Version,
    lease: Lease,
    guarantees: Guarantees,
    /// The end of the old lease: no request is sent after it.
    old_deadline: Moment,
    /// Where the lock was last confirmed, if it may be put back: as all threads note it, and as known
    /// before the first step. What another thread has put back since is not missing.
    confirmed: Option<Confirmed<Confirmation>>,
    known: Epoch,
    step: Step,
    /// The new deadline, once the lock is renewed.
    renewed: Option<Moment>,
}

#[derive(Clone, Copy)]
enum Step {
    CompareAndSet,
    /// The version may have changed, so the item is read.
    Read,
    /// The server may have forgotten the lock, which is put back for the new lease.
    Reclaim,
    /// The lock was put back after its lease had ended: the item with this version is removed.
    Remove(Version),
    /// The lock was renewed, but so slowly that the server may have been stopped: the deadline is
    /// capped by the TTL. `first`: when an earlier read of the TTL was sent that was slow, too.
    Believe {
        deadline: Moment,
        first: Option<Moment>,
    },
}

impl PendingRenewal for LockRenewal {
    fn op(&self) -> Op<'_> {
        let LockRenewal { key, version, value, lease, .. } = self;
        let (expiry, returns) = ((*lease).into(), Returns::Version);
        match self.step {
            Step::CompareAndSet
                if mutation::has(Mutation::KeepPutsBack) && version.number() == 0 =>
            {
                Op::add(key, value, expiry, returns)
            }
            Step::CompareAndSet => {
                Op::CompareAndSet { key, version: *version, value, expiry, returns }
            }
            Step::Read | Step::Believe { .. } => Op::get(key),
            Step::Reclaim => reclaim::op(key, value, self.known, expiry),
            Step::Remove(version) => Op::Delete { key, version },
        }
    }

    fn writes(&self) -> bool {
        matches!(self.step, Step::CompareAndSet | Step::Reclaim)
    }

    fn lasts(&self, now: Moment) -> bool {
        now < self.old_deadline || matches!(self.step, Step::Remove(_))
    }

    fn take(&mut self, reply: &Reply, sent: Moment, came: Moment) -> Progress {
        let until = |deadline, it: &mut LockRenewal| {
            it.renewed = Some(deadline);
            Progress::Renewed
        };
        let not_yet = || Progress::NotYet { gone: Vec::new() };
        match (self.step, reply) {
            (Step::Reclaim, &Reply::Stored(Stored { version, .. }))
                if came >= self.old_deadline && !mutation::has(Mutation::TrustLateReclaims) =>
            {
                self.step = Step::Remove(version);
                not_yet()
            }
            (Step::Read | Step::Believe { .. }, Reply::Missing) if self.confirmed.is_some() => {
                self.step = Step::Reclaim;
                not_yet()
            }
            (Step::Reclaim, Reply::Exists) => {
                self.step = Step::Read;
                not_yet()
            }
            (Step::CompareAndSet | Step::Reclaim, &Reply::Stored(Stored { version, .. })) => {
                self.confirm(version);
                let deadline = self.lease.deadline(if mutation::has(Mutation::KeepFromReply) {
                    came
                } else {
                    sent
                });
                if !self.guarantees.is_suspicious(came.since(sent))
                    || mutation::has(Mutation::BelieveSlowRenewals)
                {
                    return until(deadline, self);
                }
                self.step = Step::Believe { deadline, first: None };
                not_yet()
            }
            (Step::CompareAndSet, Reply::Missing) if mutation::has(Mutation::KeepPutsBack) => {
                self.version = Version::new(self.version.epoch(), 0);
                not_yet()
            }
            (Step::CompareAndSet, Reply::VersionMismatch)
                if !mutation::has(Mutation::KeepChangedIsGone) =>
            {
                self.step = Step::Read;
                not_yet()
            }
            (Step::Read, Reply::Value(item))
                if is_ours(&item.value, self.token) || mutation::has(Mutation::KeepAnyones) =>
            {
                self.confirm(item.version);
                // A waiter may have marked the record.
                let marked =
                    |value: &[u8]| OwnerRecord::parse(value).is_some_and(|record| record.notifies);
                if marked(&item.value) && !marked(&self.value) {
                    self.value.extend_from_slice(NOTIFIES);
                }
                self.step = Step::CompareAndSet;
                not_yet()
            }
            (Step::Believe { deadline, first }, Reply::Value(item))
                if is_ours(&item.value, self.token) =>
            {
                self.version = item.version;
                let left = item.remaining.unwrap_or(Duration::MAX);
                match self.guarantees.kept_until(left, sent, came, first) {
                    Some(kept) => until(deadline.min(kept), self),
                    None => {
                        self.step = Step::Believe { deadline, first: Some(sent) };
                        not_yet()
                    }
                }
            }
            _ => Progress::NotYet { gone: vec![self.token] },
        }
    }

    fn apply(&self, guard: &mut dyn Renewable) {
        if let (Some(deadline), Some(lock)) = (self.renewed, guard.as_any().downcast_mut::<Lock>())
        {
            // A concurrent step of the owner may have been faster.
            (lock.kind.version, lock.deadline) = (self.version, lock.deadline.max(deadline));
            lock.kind.notifies |=
                OwnerRecord::parse(&self.value).is_some_and(|record| record.notifies);
            lock.kind.value.clone_from(&self.value);
        }
    }

    fn announce(&self, guard: &mut dyn Renewable) {
        if let (Step::Reclaim, Some(lock)) = (self.step, guard.as_any().downcast_mut::<Lock>()) {
            lock.may_come_back();
        }
    }

    fn has(&self, token: Token) -> bool {
        self.token == token
    }
}

impl LockRenewal {
    /// The server has the lock with this version.
    fn confirm(&mut self, version: Version) {
        (self.version, self.known) = (version, version.epoch());
        if let Some(confirmed) = &self.confirmed {
            confirmed.found(version);
        }
    }
}

impl RenewableKind for Exclusive {
    fn fence(lock: &Lock) -> Option<u64> {
        Some(lock.fence())
    }

    fn renewed_subject(&self) -> String {
        self.subject()
    }

    fn check(lock: &Lock) -> Check {
        let (target, token) = (lock.kind.target.clone(), lock.token);
        let confirmed = lock.kind.confirmed.clone();
        Box::new(move || reclaim::is_there(&target, token, confirmed.as_ref()))
    }

    fn reclaimer(lock: &mut Lock) -> Option<Check> {
        let Reclaim { confirmed, deadline, .. } = lock.reclaim()?;
        let confirmed = confirmed.clone();
        lock.may_come_back();
        let (target, token) = (lock.kind.target.clone(), lock.token);
        let value = lock.kind.value.clone();
        Some(Box::new(move || {
            Reclaim { target: &target, value: &value, confirmed: &confirmed, deadline }.check(token)
        }))
    }

    fn begin(lock: &mut Lock, in_doubt: bool) -> Option<Box<dyn PendingRenewal>> {
        let now = lock.kind.target.now();
        if lock.remaining().is_zero() && !mutation::has(Mutation::KeepPastTheEnd) {
            return None;
        }
        // The request may reach the server at any time until its reply is given up.
        let guarantees = *lock.kind.target.context.guarantees();
        lock.server_until =
            lock.server_until.max(guarantees.gone(lock.lease, now) + LATEST_ARRIVAL);
        let confirmed = lock.reclaim().map(|reclaim| reclaim.confirmed.clone());
        Some(Box::new(LockRenewal {
            key: lock.kind.target.key.clone(),
            token: lock.token,
            value: lock.kind.value.clone(),
            version: lock.kind.version,
            lease: lock.lease,
            guarantees,
            old_deadline: lock.deadline,
            known: confirmed.as_ref().map_or(lock.kind.version.epoch(), |it| it.get().life),
            confirmed,
            step: if in_doubt { Step::Read } else { Step::CompareAndSet },
            renewed: None,
        }))
    }
}
