//! Held permits.

use super::handle::Semaphore;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::lease_guard::LeaseGuard;
use crate::owner::Token;

/// One or several held permits of a semaphore.
pub type Permit = LeaseGuard<Permits>;

/// The state of held permits.
pub struct Permits {
    pub(super) semaphore: Semaphore,
    pub(super) permits: u32,
    /// The token of the semaphore that the permits belong to.
    pub(super) of: Token,
}

/// A granted acquisition.
pub(super) struct Grant {
    pub(super) token: Token,
    pub(super) permits: u32,
    /// From when the lease counts.
    pub(super) counted_from: Moment,
    /// The token of the semaphore.
    pub(super) semaphore: Token,
}

impl Grant {
    pub(super) fn into_permit(self, semaphore: Semaphore) -> Permit {
        let Grant { token, permits, counted_from, semaphore: of } = self;
        let lease = semaphore.lease;
        LeaseGuard::new(Permits { semaphore, permits, of }, token, lease, counted_from)
    }
}

impl Permit {
    /// The number of permits.
    pub fn permits(&self) -> u32 {
        self.kind.permits
    }

    /// After a suspiciously slow grant: caps the deadline by what the server's clock leaves.
    pub(super) fn cap_deadline_by_ttl(&mut self) -> Result<()> {
        let snapshot = self.kind.semaphore.inspect_closely()?;
        let now = || self.kind.semaphore.target.now();
        self.cap_deadline(snapshot.map_or_else(now, |snapshot| snapshot.keeps_until(self.token)))
    }

    /// Caps the deadline at `until`. Fails if no time is left.
    pub(super) fn cap_deadline(&mut self, until: Moment) -> Result<()> {
        self.deadline = self.deadline.min(until);
        if self.remaining().is_zero() {
            return Err(Error::new(
                ErrorKind::Unreachable,
                "The server took longer to answer than the lease lasts; nothing is held. Ask for a \
                 longer lease.",
            ));
        }
        Ok(())
    }
}
