//! A held mutex.

use crate::clock::Moment;
use crate::error::Result;
use crate::guard::confirmed::Confirmed;
use crate::guard::lease_guard::LeaseGuard;
use crate::guard::outcome::Release;
use crate::lease::Lease;
use crate::notify::Successors;
use crate::owner::Token;
use crate::store::{Epoch, Version};
use crate::target::Target;
use crate::wait::QueueReceipt;
use crate::wait_id::WaitId;

/// The kind of target, for messages.
pub(super) const KIND: &str = "lock";

/// A held mutex.
pub type Lock = LeaseGuard<Exclusive>;

/// The state of a held mutex.
pub struct Exclusive {
    pub(super) target: Target,
    pub(super) value: Vec<u8>,
    pub(super) version: Version,
    /// Where the lock was last confirmed, put back or found; `None` without a guard.
    pub(super) confirmed: Option<Confirmed<Confirmation>>,
    pub(super) fence: u64,
    /// Set when a request whose reply was lost may still be under way: the time until which to look
    /// for the grant that it may leave.
    pub(super) orphan: Option<Moment>,
    /// Set when there may be waiters: the record says that its holder wakes them, so the release
    /// reads the queue.
    pub(super) notifies: bool,
    /// Set when no wake-up message was received, so that one of the holder's entries should still
    /// be in the queue.
    pub(super) unwoken: bool,
    /// The waiters after this holder.
    pub(super) successors: Successors,
    /// The one of these waiters that was woken ahead.
    pub(super) woken_ahead: Option<WaitId>,
    pub(super) tenure: Tenure,
}

/// Where a lock was last confirmed, put back or found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Confirmation {
    /// In which life of the server: it is not put back there again.
    pub(super) life: Epoch,
    /// A request of a check, to put it back, got no reply: until when to look for what it may leave.
    pub(super) in_doubt: Option<Moment>,
}

impl Confirmed<Confirmation> {
    /// From now on, the lock is not put back in this life of the server.
    pub(super) fn note(&self, life: Epoch) {
        self.change(|last| last.life = life);
    }
}

impl Confirmation {
    fn of(version: Version) -> Confirmation {
        Confirmation { life: version.epoch(), in_doubt: None }
    }
}

/// The tenure of this process: from its acquisition of the mutex until another process acquires it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tenure {
    pub(super) began: Moment,
    /// How often the mutex was handed off within the process.
    pub(super) handoffs: u32,
}

/// What a releasing thread of this process needs to hand the mutex off to the waiter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandoffRequest {
    /// A separate token: the token of the waiter's own attempts may be on its way to the server.
    pub(super) token: Token,
    pub(super) lease: Lease,
}

/// A granted acquisition.
pub(super) struct Grant {
    pub(super) target: Target,
    pub(super) token: Token,
    pub(super) value: Vec<u8>,
    pub(super) notifies: bool,
    pub(super) version: Version,
    pub(super) fence: u64,
    pub(super) lease: Lease,
    /// When the granted request was sent.
    pub(super) sent: Moment,
    pub(super) orphan: Option<Moment>,
    pub(super) tenure: Tenure,
}

impl Grant {
    pub(super) fn into_lock(self) -> Lock {
        let Grant { target, token, value, notifies, version, fence, lease, sent, orphan, tenure } =
            self;
        let has_guard = target.context.guarantees().guard.is_some();
        let kind = Exclusive {
            target,
            value,
            version,
            confirmed: has_guard.then(|| Confirmed::new(Confirmation::of(version))),
            fence,
            orphan,
            notifies,
            unwoken: false,
            successors: Successors::default(),
            woken_ahead: None,
            tenure,
        };
        LeaseGuard::new(kind, token, lease, sent)
    }
}

impl Lock {
    /// A request that puts the lock back may be carried out after the release: what it leaves is
    /// removed until then.
    pub(super) fn may_come_back(&mut self, until: Moment) {
        self.kind.orphan = self.kind.orphan.max(Some(until));
        self.server_until = self.server_until.max(until);
    }

    pub(super) fn remember_entries(&mut self, entry_ids: QueueReceipt) {
        self.entry_ids.extend(entry_ids.ids);
        self.kind.unwoken = entry_ids.unwoken;
        if entry_ids.successors != Successors::default() {
            self.kind.successors = entry_ids.successors;
        }
    }

    /// The fencing token: greater than that of every earlier holder of this mutex. Pass it to the
    /// resource, which rejects any token below the greatest that it has seen; then even a holder
    /// that overslept its lease does no harm.
    pub fn fence(&self) -> u64 {
        self.kind.fence
    }

    /// The same as [`LeaseGuard::release`].
    ///
    /// # Errors
    /// As [`LeaseGuard::release`].
    pub fn unlock(&mut self) -> Result<Release> {
        self.release()
    }
}
