//! Acquiring a mutex: one acquisition, from its first attempt to the grant.

use std::cell::Cell;
use std::time::Duration;

use super::lock::{Grant, HandoffRequest, Lock, Tenure};
use super::reserve::{Reservations, Reserver, remove};
use super::step::Action;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::orphan;
use crate::lease::Lease;
use crate::mutation::{self, Mutation};
use crate::owner::{NOTIFIES, OwnerRecord, Token, is_ours};
use crate::report::ObservedHolder;
use crate::store::{Admission, Op, Order, Reply, Returns, Version};
use crate::target::{ATTEMPTS, Target};
use crate::wait::policy::TargetState;
use crate::wait::queue::Capacity;
use crate::wait::{Acquire, QueueReceipt, Reserve};
use crate::wait_id::WaitId;

/// How often a woken waiter repeats an attempt that may have overtaken the release, and for how long.
const REPEATS: usize = 6;
const OVERTAKING: Duration = Duration::from_millis(10);

/// One acquisition. All its attempts use the same token.
pub(super) struct Attempt<'a> {
    target: &'a Target,
    lease: Lease,
    token: Token,
    value: Vec<u8>,
    /// When the first request was sent whose reply was lost: since then, this client may hold the
    /// lock without knowing.
    in_doubt_since: Option<Moment>,
    /// When the last such request was sent.
    in_doubt_until: Option<Moment>,
    request: HandoffRequest,
    /// Whether the record says that its holder wakes waiters.
    notifies: bool,
    /// Set when a grant that was given up could not be released.
    left: bool,
    tenure: Reservations,
    /// Whether the last attempt failed because the server gives no new grants yet.
    recovers: bool,
    /// The holder that the last inspection found.
    holder: &'a Cell<ObservedHolder>,
}

impl<'a> Attempt<'a> {
    pub(super) fn new(
        target: &'a Target,
        lease: Lease,
        holder: &'a Cell<ObservedHolder>,
    ) -> Result<Attempt<'a>> {
        let identity = target.context.identity()?;
        let token = identity.token();
        let value = identity.record(token, target.context.clock());
        let request = HandoffRequest { token: identity.token(), lease };
        Ok(Attempt {
            target,
            lease,
            token,
            value,
            in_doubt_since: None,
            in_doubt_until: None,
            request,
            notifies: false,
            left: false,
            tenure: Reservations::default(),
            recovers: false,
            holder,
        })
    }

    /// Until when to look for a grant that a request without a reply may have left.
    pub(super) fn orphan_until(&self) -> Option<Moment> {
        let guarantees = self.target.context.guarantees();
        self.in_doubt_until.map(|sent| guarantees.gone(self.lease, sent))
    }

    /// Whether a grant of this acquisition may be on the server, or on its way there.
    pub(super) fn may_have_left_something(&self) -> bool {
        self.left || self.in_doubt_since.is_some()
    }

    pub(super) fn token(&self) -> Token {
        self.token
    }

    /// Acquires the mutex if it is free. If it was seen to be reserved for this waiter, replaces
    /// that version of the reservation.
    fn take(&self, reserved: Option<Version>) -> Op<'_> {
        let (key, value, expiry) = (&self.target.key, &self.value[..], self.lease.into());
        let returns = Returns::Fence;
        match reserved {
            Some(version) => Op::CompareAndSet { key, version, value, expiry, returns },
            None => Op::Add { key, value, expiry, returns, admission: Admission::Grant },
        }
    }

    /// For how long the server gives no new grants yet in the life that gave this version: a server
    /// that is persistent may have kept a reservation.
    fn recovery(&self, version: Version) -> Option<Duration> {
        Some(self.target.recovers_for(version)).filter(|left| !left.is_zero())
    }

    /// Builds the guard of a mutex that was granted with this version.
    fn grant(&mut self, version: Version, fence: u64, sent: Moment) -> Result<Lock> {
        let (target, lease) = (self.target, self.lease);
        let sent = if mutation::has(Mutation::DeadlineFromReply) { target.now() } else { sent };
        let grant = Grant {
            target: target.clone(),
            token: self.token,
            value: std::mem::take(&mut self.value),
            notifies: self.notifies,
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
            // This token is used up: whatever was granted to it has to be removed.
            let notifies = self.notifies;
            let tenure = std::mem::take(&mut self.tenure);
            *self = Attempt { left, tenure, ..Attempt::new(self.target, self.lease, self.holder)? };
            if notifies {
                self.will_wait();
            }
            return Err(error);
        }
        Ok(lock)
    }

    /// Whether the mutex is held, or reserved for another waiter, although the server has refused the
    /// request with this error: a server that is full does so before it looks for the item.
    fn is_held_nevertheless(&mut self, error: &Error) -> bool {
        let Target { context, route, .. } = self.target;
        let was_reached = context.time(*route).is_some();
        if error.kind() != ErrorKind::Protocol || !was_reached {
            return false;
        }
        match self.target.get() {
            Ok(Some(item)) => !is_ours(&item.value, self.token) && !self.tenure.is_ours(&item),
            _ => false,
        }
    }

    /// Marks the record of a holder that does not know of the queue. The mark changes the item's
    /// version, so the holder notices it on release.
    fn mark_holder(&self) -> Result<TargetState> {
        let target = self.target;
        match target.one(Op::Append { key: &target.key, value: NOTIFIES }) {
            Ok(Reply::Written) => Ok(TargetState::Held { notifies: true, left: None }),
            Ok(_) => Ok(TargetState::Free),
            Err(failure) if failure.error.is_outage() => Err(failure.of_read()),
            Err(_) => Ok(TargetState::Held { notifies: false, left: None }),
        }
    }
}

impl Acquire for Attempt<'_> {
    type HandoffRequest = HandoffRequest;
    type Guard = Lock;

    fn attempt(&mut self, called: bool, is_over: &dyn Fn() -> bool) -> Result<Option<Lock>> {
        let Target { context, key, .. } = self.target;
        // An orphaned grant of this client may be what blocks the mutex.
        orphan::reap(self.target);
        self.recovers = false;
        let (mut error, began) = (None, context.clock().now());
        let may_overtake = called && context.guarantees().order == Order::Close;
        let (mut left, mut repeats) = (ATTEMPTS, if may_overtake { REPEATS } else { 0 });
        while left > 0 {
            left -= 1;
            let sent = context.clock().now();
            // The item has to be read only if it may have this token, or be reserved for this
            // waiter.
            let in_doubt = self.in_doubt_since.is_some() && !mutation::has(Mutation::NoReadBack);
            let claim = self.tenure.claim().filter(|version| self.recovery(*version).is_none());
            let take = self.take(claim);
            let ran = if in_doubt || self.tenure.may_come() {
                self.target.run(&[take, Op::Get { key, fence: true }])
            } else {
                self.target.run(&[take])
            };
            match ran {
                Ok(replies) => match (replies.first(), replies.get(1)) {
                    (Some(&Reply::Stored(stored)), _) => {
                        return self.grant(stored.version, stored.fence, sent).map(Some);
                    }
                    (_, Some(Reply::Value(item))) if is_ours(&item.value, self.token) => {
                        let (version, fence) = (item.version, item.fence);
                        if OwnerRecord::parse(&item.value).is_some_and(|record| record.notifies) {
                            self.will_wait();
                        }
                        let sent = self.in_doubt_since.unwrap_or(sent);
                        return self.grant(version, fence, sent).map(Some);
                    }
                    (Some(Reply::NotAdmitted), _) => {
                        self.recovers = true;
                        return Ok(None);
                    }
                    (_, Some(Reply::Value(item))) if self.tenure.is_ours(item) => {}
                    // The item in the way may have been this client's own, and the server has lost
                    // it since.
                    (Some(Reply::Exists), Some(Reply::Missing)) if in_doubt => {}
                    // The reservation is gone.
                    _ if claim.is_some() => {}
                    // The release that this waiter was woken for may still be on its way.
                    _ if repeats > 0
                        && context.clock().now().since(began) < OVERTAKING
                        && !is_over() =>
                    {
                        (left, repeats) = (left + 1, repeats - 1);
                    }
                    _ => return Ok(None),
                },
                Err(failure) => {
                    if failure.sent {
                        self.in_doubt_since.get_or_insert(sent);
                        self.in_doubt_until = Some(sent);
                    }
                    if self.in_doubt_since.is_none() {
                        let is_held = self.is_held_nevertheless(&failure.error);
                        return if is_held { Ok(None) } else { Err(failure.error) };
                    }
                    error = Some(failure.error);
                    if is_over() {
                        break;
                    }
                }
            }
        }
        error.map_or(Ok(None), |error| Err(Error::unresolved(Some(error), "lock")))
    }

    fn recovers(&self) -> bool {
        self.recovers
    }

    fn inspection(&self) -> Op<'_> {
        Op::get(&self.target.key)
    }

    fn capacity(&mut self, reply: &Reply, _leaves: bool) -> Option<Capacity> {
        let free = match self.state(reply, false) {
            Ok(TargetState::Free) => true,
            // This waiter leaves: its reservation is removed for the next waiter.
            Ok(TargetState::Reserved) => self
                .tenure
                .claim()
                .is_some_and(|version| remove(self.target, version).unwrap_or(false)),
            _ => false,
        };
        free.then_some(Capacity::MUTEX)
    }

    fn state(&mut self, reply: &Reply, _first: bool) -> Result<TargetState> {
        let Reply::Value(item) = reply else {
            let Target { context, route, .. } = self.target;
            let recovers = context.recovery(*route).map(|recovery| recovery.left);
            if let Some(left) = recovers {
                self.holder.set(ObservedHolder::Recovering(left));
            }
            return Ok(TargetState::of_missing(recovers));
        };
        self.tenure.saw(item.version);
        // A plain client's lock is left unchanged, and its holder wakes no waiter.
        let Some(record) = OwnerRecord::parse(&item.value) else {
            self.holder.set(ObservedHolder::Foreign);
            return Ok(TargetState::Held { notifies: false, left: item.remaining });
        };
        if record.token == self.token {
            // Granted to this token by a request without a reply: the next attempt finds out.
            return Ok(TargetState::Free);
        }
        if self.tenure.is_ours(item) {
            let Some(left) = self.recovery(item.version) else { return Ok(TargetState::Reserved) };
            self.holder.set(ObservedHolder::Recovering(left));
            return Ok(TargetState::of_missing(Some(left)));
        }
        match self.tenure.awaits(item, &record, self.target.now()) {
            Some(left) if !left.is_zero() => return Ok(TargetState::ReservedForOther(left)),
            Some(_) if remove(self.target, item.version)? => return Ok(TargetState::Free),
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
        OwnerRecord::parse(&item.value).is_some_and(|record| held.contains(&record.token))
    }

    fn has_changed_hands(&self) -> bool {
        self.tenure.has_changed_hands()
    }

    fn joined(&mut self, ids: &[WaitId], proven: bool) {
        self.tenure.joined(ids, proven);
    }

    fn reserver(&self) -> Option<Box<dyn Reserve + '_>> {
        Some(Box::new(Reserver { target: self.target }))
    }

    fn handoff_request(&self) -> HandoffRequest {
        self.request
    }

    fn will_wait(&mut self) {
        if !self.notifies {
            self.notifies = true;
            self.value.extend_from_slice(NOTIFIES);
        }
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
