//! Held permits.

use super::handle::Semaphore;
use super::operation::{Reclaimable, ServerClock};
use super::snapshot::Confirmation;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::confirmed::Confirmed;
use crate::guard::lease_guard::LeaseGuard;
use crate::mutation::{self, Mutation};
use crate::owner::Token;

/// One or several held permits of a semaphore.
pub type Permit = LeaseGuard<Permits>;

/// The state of held permits.
pub struct Permits {
    pub(super) semaphore: Semaphore,
    pub(super) permits: u32,
    pub(super) confirmed: Confirmed<Confirmation>,
}

/// A granted acquisition.
pub(super) struct Grant {
    pub(super) token: Token,
    pub(super) permits: u32,
    /// From when the lease counts.
    pub(super) counted_from: Moment,
    pub(super) confirmed: Confirmation,
}

impl Grant {
    pub(super) fn into_permit(self, semaphore: Semaphore) -> Permit {
        let Grant { token, permits, counted_from, confirmed } = self;
        let (lease, confirmed) = (semaphore.lease, Confirmed::new(confirmed));
        LeaseGuard::new(Permits { semaphore, permits, confirmed }, token, lease, counted_from)
    }
}

impl Permit {
    /// The number of permits.
    pub fn permits(&self) -> u32 {
        self.kind.permits
    }

    /// What this holder may put back if the server has forgotten it. Nothing if a release was sent:
    /// others may have acquired the permits since, before the server forgot them.
    pub(super) fn reclaimable(&self) -> Option<Reclaimable> {
        let semaphore = &self.kind.semaphore;
        semaphore.target.context.guarantees().guard?;
        let is_certain = !self.release_in_doubt || mutation::has(Mutation::ReclaimReleased);
        is_certain.then(|| Reclaimable {
            known: self.kind.confirmed.get(),
            confirmed: self.kind.confirmed.clone(),
            permits: self.kind.permits,
            until: self.deadline,
        })
    }

    /// After a grant: caps the deadline by what the server's clock leaves, if that may have been
    /// stopped.
    pub(super) fn verify(&mut self, clock: ServerClock) -> Result<()> {
        match clock {
            _ if mutation::has(Mutation::BelieveSlowGrants) => Ok(()),
            ServerClock::Runs => Ok(()),
            ServerClock::KeepsUntil(until) => self.cap_deadline(until),
            ServerClock::MayStand => self.cap_deadline_by_ttl(),
        }
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
