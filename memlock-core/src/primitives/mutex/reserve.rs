//! Reserving the mutex for the next waiter, which may not hear that it is woken.
//!
//! A release wakes the next waiter by a datagram, and a firewall may drop that in silence. If the
//! lock were simply free then, any client that happens to inspect it would take it, and an
//! unreachable waiter would be passed over for ever. So where the next waiter is not proven
//! reachable, the releaser puts an item of 1 to 3 seconds in the lock's place that names it:
//!
//! | a waiter that sees it | does |
//! | --- | --- |
//! | the waiter that is named | swaps it for its own record, by its version: one atomic step, and the lock is held |
//! | any other | goes on waiting; once it has seen the same one for 0.3 s, it removes it: that waiter is dead, or too slow |
//!
//! A releaser may be so slow to reserve it that the waiter has found the lock free, held it and
//! released it meanwhile. Then there is no waiter to claim it. Both write the queue afterwards: the
//! second one finds the entry gone and removes the reservation (`Reserve::withdraw`), before it
//! wakes the next waiter.
//!
//! It is a lock without a holder, so nothing that is true of the lock's item changes: plain clients
//! are kept out, and the server ends it by itself. A reachable waiter says so in its queue entry;
//! hence such waiters pay for nothing, and the others one round trip more.

use std::time::Duration;

use crate::clock::Moment;
use crate::error::{ErrorKind, Result};
use crate::mutation::{self, Mutation};
use crate::owner::OwnerRecord;
use crate::store::{Expiry, Item, Op, Reply, Returns, Version};
use crate::target::Target;
use crate::wait::Reserve;
use crate::wait_id::WaitId;

/// For so long it is there at least, unless it is removed.
const LIFE: Duration = Duration::from_secs(1);
/// A waiter that has not claimed it after this time is taken for dead. It looks more often than
/// that.
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
        let add =
            Op::Add { key, value: &value, expiry: Expiry::After(LIFE), returns: Returns::Version };
        matches!(self.target.one(add), Ok(Reply::Stored(_)))
    }

    /// If it fails, the reservation ends by itself.
    fn withdraw(&self, ids: &[WaitId]) {
        if let Ok(Some(item)) = self.target.get() {
            self.withdraw_if(&item, ids);
        }
    }
}

impl Reserver<'_> {
    /// Frees it if this is a reservation for one of these. True if it is free now.
    pub(super) fn withdraw_if(&self, item: &Item, ids: &[WaitId]) -> bool {
        let delete = Op::Delete { key: &self.target.key, version: item.version };
        let is_theirs = reserved_for(item).is_some_and(|id| ids.contains(&id));
        is_theirs && matches!(self.target.one(delete), Ok(Reply::Deleted))
    }
}

/// The waiter that it is reserved for, if any.
fn reserved_for(item: &Item) -> Option<WaitId> {
    OwnerRecord::parse(&item.value)?.reserved_for
}

/// Removes a reservation. True when the mutex is free now.
pub(super) fn remove(target: &Target, version: Version) -> Result<bool> {
    match target.one(Op::Delete { key: &target.key, version }) {
        Ok(reply) => Ok(matches!(reply, Reply::Deleted | Reply::Missing)),
        Err(failure) if failure.error.kind() == ErrorKind::Protocol => Err(failure.error),
        Err(failure) => Err(failure.of_read()),
    }
}

/// What a waiter knows of reservations.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    /// The ids of our entries in the queue.
    ids: Vec<WaitId>,
    /// Whether it may be reserved for one of them without a wake-up that reaches us.
    unproven: bool,
    /// The version that was seen last, and whether it was another one before.
    last: Option<Version>,
    moved: bool,
    /// The version by which it is reserved for us.
    claim: Option<Version>,
    /// The version of a reservation for another waiter, and since when we know of it.
    others: Option<(Version, Moment)>,
}

impl Reservations {
    /// We stand in the queue under these ids.
    pub(super) fn joined(&mut self, ids: &[WaitId], proven: bool) {
        self.ids = ids.to_vec();
        self.unproven |= !proven;
    }

    /// It was seen with this version.
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

    /// The version to be replaced, once.
    pub(super) fn claim(&mut self) -> Option<Version> {
        self.claim.take()
    }

    /// Whether it is reserved for us; if so, this is what to claim.
    pub(super) fn is_ours(&mut self, item: &Item) -> bool {
        let ours = reserved_for(item).is_some_and(|waiter| self.ids.contains(&waiter));
        let ours = ours || !self.ids.is_empty() && mutation::has(Mutation::ClaimAnything);
        self.claim = ours.then_some(item.version);
        ours
    }

    /// For how long yet another waiter may claim it that it is reserved for, as far as we saw.
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
