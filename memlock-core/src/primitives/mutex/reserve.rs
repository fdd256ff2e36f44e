//! Reserving the mutex for the next waiter, which may not receive its wake-up message.
//!
//! A release wakes the next waiter by a datagram, which a firewall may drop without notice. If the
//! lock were free then, any client that happens to inspect it would acquire it, and an unreachable
//! waiter could be passed over forever. If the next waiter is not proven to be reachable, the
//! releaser therefore puts an item with a life of 1 to 3 seconds in place of the lock, which names
//! that waiter:
//!
//! | a waiter that sees the reservation | reaction |
//! | --- | --- |
//! | the named waiter | replaces the reservation by its own record, by its version: one atomic step, which acquires the lock |
//! | any other waiter | keeps waiting, and removes a reservation that it has seen for 0.3 s: the named waiter is dead, or too slow |
//!
//! A releaser may be so slow that the waiter finds the lock free, holds it and releases it before
//! the reservation is added. No waiter claims this reservation. Both the waiter and the releaser
//! write the queue afterwards: the second of them finds the entry removed, and removes the
//! reservation (`Reserve::withdraw`) before it wakes the next waiter.
//!
//! A reservation is a lock without a holder, so all that holds for the lock's item still holds:
//! plain clients are excluded, and the server removes the item when its TTL ends. The entry of a
//! waiter in the queue says whether the waiter is reachable. Reachable waiters therefore cost
//! nothing extra, and each other waiter costs one more round trip.

use std::time::Duration;

use crate::clock::Moment;
use crate::error::{ErrorKind, Result};
use crate::mutation::{self, Mutation};
use crate::owner::OwnerRecord;
use crate::store::{Admission, Expiry, Item, Op, Reply, Returns, Version};
use crate::target::Target;
use crate::wait::Reserve;
use crate::wait_id::WaitId;

/// The minimum life of a reservation that is not removed.
const LIFE: Duration = Duration::from_secs(1);
/// A waiter that has not claimed its reservation within this time is considered dead. Waiters poll
/// more often than that.
const WINDOW: Duration = Duration::from_millis(300);

/// Reserves a mutex.
pub(super) struct Reserver<'a> {
    pub(super) target: &'a Target,
}

impl Reserve for Reserver<'_> {
    fn reserve(&self, id: WaitId) -> bool {
        if mutation::has(Mutation::ReserveForNobody) {
            return true;
        }
        let Target { context, key, .. } = self.target;
        let Ok(identity) = context.identity() else { return false };
        let value = identity.reservation(id, context.clock());
        let add = Op::Add {
            key,
            value: &value,
            expiry: Expiry::After(LIFE),
            returns: Returns::Version,
            admission: Admission::Grant,
        };
        matches!(self.target.one(add), Ok(Reply::Stored(_)))
    }

    /// If this fails, the reservation stays until it expires.
    fn withdraw(&self, ids: &[WaitId]) {
        if let Ok(Some(item)) = self.target.get() {
            self.withdraw_if(&item, ids);
        }
    }
}

impl Reserver<'_> {
    /// Removes the item if it is a reservation for one of these ids. True if the mutex is free now.
    pub(super) fn withdraw_if(&self, item: &Item, ids: &[WaitId]) -> bool {
        let delete = Op::Delete { key: &self.target.key, version: item.version };
        let is_theirs = reserved_for(item).is_some_and(|id| ids.contains(&id));
        is_theirs && matches!(self.target.one(delete), Ok(Reply::Deleted))
    }
}

/// The waiter for which the item is a reservation, if it is one.
fn reserved_for(item: &Item) -> Option<WaitId> {
    OwnerRecord::parse(&item.value)?.reserved_for
}

/// Removes a reservation. True if the mutex is free now.
pub(super) fn remove(target: &Target, version: Version) -> Result<bool> {
    match target.one(Op::Delete { key: &target.key, version }) {
        Ok(reply) => Ok(matches!(reply, Reply::Deleted | Reply::Missing)),
        Err(failure) if failure.error.kind() == ErrorKind::Protocol => Err(failure.error),
        Err(failure) => Err(failure.of_read()),
    }
}

/// What a waiter knows about reservations.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    /// The ids of the waiter's entries in the queue.
    ids: Vec<WaitId>,
    /// Whether the mutex may be reserved for one of these ids without a wake-up that reaches the
    /// waiter.
    unproven: bool,
    /// The version at the last inspection, and whether it differed from the one before.
    last: Option<Version>,
    moved: bool,
    /// The version of the reservation for this waiter.
    claim: Option<Version>,
    /// The version of a reservation for another waiter, and since when it has been known.
    others: Option<(Version, Moment)>,
}

impl Reservations {
    /// Records that the waiter is in the queue under these ids.
    pub(super) fn joined(&mut self, ids: &[WaitId], proven: bool) {
        self.ids = ids.to_vec();
        self.unproven |= !proven;
    }

    /// Records that the item was seen with this version.
    pub(super) fn saw(&mut self, version: Version) {
        let last = self.last.replace(version);
        self.moved = last.is_some_and(|last| last != version);
    }

    pub(super) fn has_changed_hands(&self) -> bool {
        self.moved
    }

    pub(super) fn may_come(&self) -> bool {
        self.unproven && !self.ids.is_empty()
    }

    /// Takes the version of the reservation for this waiter, which the next attempt replaces.
    pub(super) fn claim(&mut self) -> Option<Version> {
        self.claim.take()
    }

    /// Whether the item is a reservation for this waiter; if so, its version is what to claim.
    pub(super) fn is_ours(&mut self, item: &Item) -> bool {
        let ours = reserved_for(item).is_some_and(|waiter| self.ids.contains(&waiter));
        let ours = ours || !self.ids.is_empty() && mutation::has(Mutation::ClaimAnything);
        self.claim = ours.then_some(item.version);
        ours
    }

    /// The time for which another waiter may still claim this reservation, counted from when this
    /// waiter first saw it. `None` if the item is not a reservation.
    pub(super) fn awaits(
        &mut self,
        item: &Item,
        record: &OwnerRecord,
        now: Moment,
    ) -> Option<Duration> {
        let seen = self.others.take().filter(|(version, _)| *version == item.version);
        if record.reserved_for.is_none() && !mutation::has(Mutation::BreakWhatIsHeld) {
            return None;
        }
        let (_, since) = *self.others.insert(seen.unwrap_or((item.version, now)));
        Some(WINDOW.saturating_sub(now.since(since)))
    }
}
