//! A mutex that is held.

use crate::clock::Moment;
use crate::error::Result;
use crate::guard::lease_guard::LeaseGuard;
use crate::guard::outcome::Release;
use crate::lease::Lease;
use crate::notify::Successors;
use crate::owner::Token;
use crate::store::Version;
use crate::target::Target;
use crate::wait::QueueReceipt;
use crate::wait_id::WaitId;

/// What sentences call it.
pub(super) const KIND: &str = "lock";

/// A mutex that is held.
pub type Lock = LeaseGuard<Exclusive>;

/// What is held of a mutex.
pub struct Exclusive {
    pub(super) target: Target,
    pub(super) value: Vec<u8>,
    pub(super) version: Version,
    pub(super) fence: u64,
    /// Set when a request of ours may still be under way: until when to look for what it may have
    /// left.
    pub(super) orphan: Option<Moment>,
    /// Others may be waiting: our record says that we wake them, so the queue is read at the
    /// release.
    pub(super) notifies: bool,
    /// No wake-up message was heard, so that one of our lines should still be there.
    pub(super) unwoken: bool,
    /// The waiters behind us.
    pub(super) successors: Successors,
    /// The one of them that was woken ahead.
    pub(super) woken_ahead: Option<WaitId>,
    pub(super) tenure: Tenure,
}

/// This process's turn: from when it got the mutex until another one gets it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tenure {
    pub(super) began: Moment,
    /// How often it was handed over within the process.
    pub(super) handoffs: u32,
}

/// What a holder of this process needs to know to hand the mutex over to us.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandoffRequest {
    /// A token of its own: that of our attempts may be on its way to the server.
    pub(super) token: Token,
    pub(super) lease: Lease,
}

/// What was granted.
pub(super) struct Grant {
    pub(super) target: Target,
    pub(super) token: Token,
    pub(super) value: Vec<u8>,
    pub(super) notifies: bool,
    pub(super) version: Version,
    pub(super) fence: u64,
    pub(super) lease: Lease,
    /// When the request left that was granted.
    pub(super) sent: Moment,
    pub(super) orphan: Option<Moment>,
    pub(super) tenure: Tenure,
}

impl Grant {
    pub(super) fn into_lock(self) -> Lock {
        let Grant { target, token, value, notifies, version, fence, lease, sent, orphan, tenure } =
            self;
        let kind = Exclusive {
            target,
            value,
            version,
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
    pub(super) fn stood_in_line(&mut self, stood: QueueReceipt) {
        self.stood.extend(stood.ids);
        self.kind.unwoken = stood.unwoken;
        if stood.successors != Successors::default() {
            self.kind.successors = stood.successors;
        }
    }

    /// The fencing token: greater than that of every earlier holder of this mutex. Hand it to the
    /// resource, which refuses anything below the greatest it has seen; then even a holder that
    /// overslept its lease does no harm.
    pub fn fence(&self) -> u64 {
        self.kind.fence
    }

    /// The same as [`LeaseGuard::release`].
    ///
    /// # Errors
    /// As that.
    pub fn unlock(&mut self) -> Result<Release> {
        self.release()
    }
}
