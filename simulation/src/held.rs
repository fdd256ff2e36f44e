//! What a thread holds, a mutex or permits: both are held in the same way.

use std::time::Duration;

use memlock_core::clock::Moment;
use memlock_core::{Extension, Lock, Permit, Release, Result};

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

    pub(crate) fn is_permit(&self) -> bool {
        matches!(self, Held::Permit(_))
    }
}
