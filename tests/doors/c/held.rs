//! Locks and permits that are held.

use std::ptr;
use std::time::Duration;

use memlock::*;

use super::super::{Held, Outcome};
use super::{done, duration, millis};

struct Lock(*mut memlock_lock);
struct Permit(*mut memlock_permit);

// SAFETY: the header allows a lock in one thread at a time, whichever it is.
unsafe impl Send for Lock {}
// SAFETY: the header allows permits in one thread at a time, whichever it is.
unsafe impl Send for Permit {}

pub(super) fn lock(handle: *mut memlock_lock) -> Box<dyn Held> {
    Box::new(Lock(handle))
}

pub(super) fn permit(handle: *mut memlock_permit) -> Box<dyn Held> {
    Box::new(Permit(handle))
}

impl Held for Lock {
    fn fence(&self) -> u64 {
        let mut fence = 0;
        // SAFETY: the lock is held and the place is valid.
        assert_eq!(unsafe { memlock_lock_fence(self.0, &mut fence) }, MEMLOCK_OK);
        fence
    }

    fn remaining(&self) -> Duration {
        let mut remaining = 0;
        // SAFETY: the lock is held and the place is valid.
        assert_eq!(unsafe { memlock_lock_remaining_ms(self.0, &mut remaining) }, MEMLOCK_OK);
        duration(remaining)
    }

    fn extend(&mut self, lease: Duration) -> Outcome<()> {
        // SAFETY: the lock is held.
        done(unsafe { memlock_lock_extend(self.0, millis(lease)) })
    }

    fn release(mut self: Box<Self>) -> Outcome<()> {
        let lock = std::mem::replace(&mut self.0, ptr::null_mut());
        // SAFETY: the lock is held and given back here, once.
        done(unsafe { memlock_unlock(lock) })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // SAFETY: NULL, or a lock that was not given back before.
        unsafe { memlock_lock_drop(self.0) };
    }
}

impl Held for Permit {
    fn fence(&self) -> u64 {
        panic!("permits have no fence");
    }

    fn remaining(&self) -> Duration {
        let mut remaining = 0;
        // SAFETY: the permits are held and the place is valid.
        assert_eq!(unsafe { memlock_permit_remaining_ms(self.0, &mut remaining) }, MEMLOCK_OK);
        duration(remaining)
    }

    fn extend(&mut self, lease: Duration) -> Outcome<()> {
        // SAFETY: the permits are held.
        done(unsafe { memlock_permit_extend(self.0, millis(lease)) })
    }

    fn release(mut self: Box<Self>) -> Outcome<()> {
        let permit = std::mem::replace(&mut self.0, ptr::null_mut());
        // SAFETY: the permits are held and given back here, once.
        done(unsafe { memlock_permit_release(permit) })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        // SAFETY: NULL, or permits that were not given back before.
        unsafe { memlock_permit_drop(self.0) };
    }
}
