//! A mutex or permits: both are held in the same way.

use std::time::Duration;

use memlock_core::clock::Moment;
use memlock_core::{Extension, Lock, Permit, Release, RenewOptions, Renewal, Result, Token};

#[expect(clippy::large_enum_variant, reason = "there are few of them, and they live long")]
pub(crate) enum Held {
    Lock(Lock),
    Permit(Permit),
}

impl Held {
    pub(crate) fn deadline(&self) -> Moment {
        match self {
            Held::Lock(lock) => lock.deadline(),
            Held::Permit(permit) => permit.deadline(),
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        match self {
            Held::Lock(lock) => lock.remaining(),
            Held::Permit(permit) => permit.remaining(),
        }
    }

    pub(crate) fn extend(&mut self, lease: Duration) -> Result<Extension> {
        match self {
            Held::Lock(lock) => lock.extend(lease),
            Held::Permit(permit) => permit.extend(lease),
        }
    }

    pub(crate) fn release(&mut self) -> Result<Release> {
        match self {
            Held::Lock(lock) => lock.unlock(),
            Held::Permit(permit) => permit.release(),
        }
    }

    pub(crate) fn abandon(self) {
        match self {
            Held::Lock(lock) => lock.abandon(),
            Held::Permit(permit) => permit.abandon(),
        }
    }

    pub(crate) fn renew(self, renew: RenewOptions) -> Result<Renewal> {
        match self {
            Held::Lock(lock) => lock.renew(renew),
            Held::Permit(permit) => permit.renew(renew),
        }
    }

    pub(crate) fn token(&self) -> Token {
        match self {
            Held::Lock(lock) => lock.token(),
            Held::Permit(permit) => permit.token(),
        }
    }

    pub(crate) fn is_permit(&self) -> bool {
        matches!(self, Held::Permit(_))
    }
}
