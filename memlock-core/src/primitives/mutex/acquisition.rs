//! Acquiring a mutex: one acquisition, from its first attempt to the grant.

use std::cell::Cell;
use std::time::Duration;

use super::attempt::{Attempt, Attempted};
use super::lock::{Grant, HandoffRequest, Lock, Tenure};
use super::reserve::{Reserver, remove};
use super::step::Action;
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::guard::orphan;
use crate::lease::Lease;
use crate::mutation::{self, Mutation};
use crate::owner::{NOTIFIES, OwnerRecord, Token};
use crate::report::ObservedHolder;
use crate::store::{Op, Reply, Version};
use crate::target::Target;
use crate::wait::policy::TargetState;
use crate::wait::queue::Capacity;
use crate::wait::{Acquire, QueueReceipt, Reserve};
use crate::wait_id::WaitId;

/// One acquisition.
pub(super) struct Acquisition<'a> {
    attempt: Attempt<'a>,
    request: HandoffRequest,
    /// Set when a grant that was given up could not be released.
    left_behind: bool,
    /// Whether the last attempt failed because the server gives no new grants yet.
    recovers: bool,
    /// The holder that the last inspection found.
    holder: &'a Cell<ObservedHolder>,
}

impl<'a> Acquisition<'a> {
    pub(super) fn new(
        target: &'a Target,
        lease: Lease,
        holder: &'a Cell<ObservedHolder>,
    ) -> Result<Acquisition<'a>> {
        let request = HandoffRequest { token: target.context.identity()?.token(), lease };
        let attempt = Attempt::new(target, lease)?;
        Ok(Acquisition { attempt, request, left_behind: false, recovers: false, holder })
    }

    /// Until when to look for a grant that a request without a reply may have left.
    pub(super) fn orphan_until(&self) -> Option<Moment> {
        self.attempt.orphan_until()
    }

    /// Whether a grant of this acquisition may be on the server, or on its way there.
    pub(super) fn may_have_left_something(&self) -> bool {
        self.left_behind || self.attempt.orphan_until().is_some()
    }

    pub(super) fn token(&self) -> Token {
        self.attempt.token
    }

    /// Builds the guard of a mutex that was granted with this version.
    fn grant(&mut self, version: Version, fence: u64, sent: Moment) -> Result<Lock> {
        let (target, lease) = (self.attempt.target, self.attempt.lease);
        let sent = if mutation::has(Mutation::DeadlineFromReply) { target.now() } else { sent };
        let grant = Grant {
            target: target.clone(),
            token: self.attempt.token,
            value: std::mem::take(&mut self.attempt.value),
            notifies: self.attempt.notifies,
            version,
            fence,
            lease,
            sent,
            orphan: self.orphan_until(),
            tenure: Tenure { began: sent, handoffs: 0 },
        };
        let mut lock = grant.into_lock();
        if target.context.guarantees().is_suspicious(target.now().since(sent))
            && !mutation::has(Mutation::BelieveSlowGrants)
            && let Err(error) = lock.resolve(Action::Verify)
        {
            // The grant is released, so that no waiter has to wait until its lease ends.
            let left = match lock.unlock() {
                Ok(_) => self.may_have_left_something(),
                Err(_) => {
                    lock.abandon();
                    true
                }
            };
            let error = if left { Error::unresolved(Some(error), "lock") } else { error };
            self.left_behind = left;
            self.attempt.change_token()?;
            return Err(error);
        }
        Ok(lock)
    }

    /// Marks the record of a holder that does not know of the queue. The mark changes the item's
    /// version, so the holder notices it on release.
    fn mark_holder(&self) -> Result<TargetState> {
        let target = self.attempt.target;
        match target.one(Op::Append { key: &target.key, value: NOTIFIES }) {
            Ok(Reply::Written) => Ok(TargetState::Held { notifies: true, left: None }),
            Ok(_) => Ok(TargetState::Free),
            Err(failure) if failure.error.is_outage() => Err(failure.of_read()),
            Err(_) => Ok(TargetState::Held { notifies: false, left: None }),
        }
    }
}

impl Acquire for Acquisition<'_> {
    type HandoffRequest = HandoffRequest;
    type Guard = Lock;

    fn attempt(&mut self, called: bool, is_over: &dyn Fn() -> bool) -> Result<Option<Lock>> {
        let target = self.attempt.target;
        // An orphaned grant of this client may be what blocks the mutex.
        orphan::reap(target);
        self.attempt.begin(called);
        let attempted = loop {
            let sent = target.now();
            let replies = target.run(&self.attempt.ops());
            if let Some(attempted) = self.attempt.on(replies, sent, is_over) {
                break attempted;
            }
        };
        self.recovers = matches!(attempted, Attempted::Recovering);
        match attempted {
            Attempted::Granted { version, fence, sent } => {
                self.grant(version, fence, sent).map(Some)
            }
            Attempted::Missed | Attempted::Recovering => Ok(None),
            Attempted::Failed(error) => Err(error),
        }
    }

    fn recovers(&self) -> bool {
        self.recovers
    }

    fn inspection(&self) -> Op<'_> {
        Op::get(&self.attempt.target.key)
    }

    fn capacity(&mut self, reply: &Reply, _leaves: bool) -> Option<Capacity> {
        let free = match self.state(reply, false) {
            Ok(TargetState::Free) => true,
            // This waiter leaves: its reservation is removed for the next waiter.
            Ok(TargetState::Reserved) => self
                .attempt
                .reservations
                .claim()
                .is_some_and(|version| remove(self.attempt.target, version).unwrap_or(false)),
            _ => false,
        };
        free.then_some(Capacity::MUTEX)
    }

    fn state(&mut self, reply: &Reply, _first: bool) -> Result<TargetState> {
        let Reply::Value(item) = reply else {
            let Target { context, route, .. } = self.attempt.target;
            let recovers = context.recovery(*route).map(|recovery| recovery.left);
            if let Some(left) = recovers {
                self.holder.set(ObservedHolder::Recovering(left));
            }
            return Ok(TargetState::of_missing(recovers));
        };
        self.attempt.reservations.saw(item.version);
        // A plain client's lock is left unchanged, and its holder wakes no waiter.
        let Some(record) = OwnerRecord::parse(&item.value) else {
            self.holder.set(ObservedHolder::Foreign);
            return Ok(TargetState::Held { notifies: false, left: item.remaining });
        };
        if record.token == self.attempt.token {
            // Granted to this token by a request without a reply: the next attempt finds out.
            return Ok(TargetState::Free);
        }
        if self.attempt.reservations.is_ours(item) {
            // A server that is persistent may have kept the reservation.
            let left = self.attempt.target.recovers_for(item.version);
            if left.is_zero() {
                return Ok(TargetState::Reserved);
            }
            self.holder.set(ObservedHolder::Recovering(left));
            return Ok(TargetState::of_missing(Some(left)));
        }
        match self.attempt.reservations.awaits(item, &record, self.attempt.target.now()) {
            Some(left) if !left.is_zero() => return Ok(TargetState::ReservedForOther(left)),
            Some(_) if remove(self.attempt.target, item.version)? => return Ok(TargetState::Free),
            _ => {}
        }
        if record.reserved_for.is_none() {
            self.holder.set(ObservedHolder::Memlock {
                host: record.host,
                pid: record.pid,
                others: 0,
            });
        }
        let seen = if record.notifies {
            TargetState::Held { notifies: true, left: None }
        } else {
            self.mark_holder()?
        };
        Ok(match seen {
            TargetState::Held { notifies, .. } => {
                TargetState::Held { notifies, left: item.remaining }
            }
            free => free,
        })
    }

    fn needs(&self, reply: &Reply, held: &[Token]) -> bool {
        let Reply::Value(item) = reply else { return false };
        // Beyond the lease, the server keeps it for this long.
        let longer = self.attempt.target.context.guarantees().covering(Duration::ZERO);
        if item.remaining.is_some_and(|left| left <= longer) {
            return false;
        }
        OwnerRecord::parse(&item.value).is_some_and(|record| held.contains(&record.token))
    }

    fn has_changed_hands(&self) -> bool {
        self.attempt.reservations.has_changed_hands()
    }

    fn joined(&mut self, ids: &[WaitId], proven: bool) {
        self.attempt.reservations.joined(ids, proven);
    }

    fn reserver(&self) -> Option<Box<dyn Reserve + '_>> {
        Some(Box::new(Reserver { target: self.attempt.target }))
    }

    fn handoff_request(&self) -> HandoffRequest {
        self.request
    }

    fn will_wait(&mut self) {
        self.attempt.will_wait();
    }

    fn acquired_from_queue(&mut self, lock: &mut Lock, receipt: QueueReceipt) {
        lock.remember_entries(receipt);
    }

    fn give_back(&mut self, mut lock: Lock) {
        if lock.unlock().is_err() {
            lock.abandon();
        }
    }
}
