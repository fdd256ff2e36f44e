//! Locks and permits that are held.

use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use memlock::*;

use super::super::{Held, Outcome};
use super::calls::Calls;
use super::{done, duration, millis};

struct Lock {
    handle: *mut memlock_lock,
    calls: Arc<dyn Calls>,
}

struct Permit {
    handle: *mut memlock_permit,
    calls: Arc<dyn Calls>,
}

// SAFETY: the header allows a lock in one thread at a time, whichever it is.
unsafe impl Send for Lock {}
// SAFETY: the header allows permits in one thread at a time, whichever it is.
unsafe impl Send for Permit {}

pub(super) fn lock(handle: *mut memlock_lock, calls: &Arc<dyn Calls>) -> Box<dyn Held> {
    Box::new(Lock { handle, calls: Arc::clone(calls) })
}

pub(super) fn permit(handle: *mut memlock_permit, calls: &Arc<dyn Calls>) -> Box<dyn Held> {
    Box::new(Permit { handle, calls: Arc::clone(calls) })
}

impl Held for Lock {
    fn fence(&self) -> u64 {
        let mut fence = 0;
        // SAFETY: the lock is held and the place is valid.
        assert_eq!(unsafe { memlock_lock_fence(self.handle, &mut fence) }, MEMLOCK_OK);
        fence
    }

    fn remaining(&self) -> Duration {
        let mut remaining = 0;
        // SAFETY: the lock is held and the place is valid.
        assert_eq!(unsafe { memlock_lock_remaining_ms(self.handle, &mut remaining) }, MEMLOCK_OK);
        duration(remaining)
    }

    fn extend(&mut self, lease: Duration) -> Outcome<()> {
        // SAFETY: the lock is held.
        done(unsafe { memlock_lock_extend(self.handle, millis(lease)) })
    }

    fn release(mut self: Box<Self>) -> Outcome<()> {
        self.calls.unlock(std::mem::replace(&mut self.handle, ptr::null_mut()))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // SAFETY: NULL, or a lock that was not given back before.
        unsafe { memlock_lock_drop(self.handle) };
    }
}

impl Held for Permit {
    fn fence(&self) -> u64 {
        panic!("permits have no fence");
    }

    fn remaining(&self) -> Duration {
        let mut remaining = 0;
        // SAFETY: the permits are held and the place is valid.
        assert_eq!(unsafe { memlock_permit_remaining_ms(self.handle, &mut remaining) }, MEMLOCK_OK);
        duration(remaining)
    }

    fn extend(&mut self, lease: Duration) -> Outcome<()> {
        // SAFETY: the permits are held.
        done(unsafe { memlock_permit_extend(self.handle, millis(lease)) })
    }

    fn release(mut self: Box<Self>) -> Outcome<()> {
        self.calls.release(std::mem::replace(&mut self.handle, ptr::null_mut()))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        // SAFETY: NULL, or permits that were not given back before.
        unsafe { memlock_permit_drop(self.handle) };
    }
}
