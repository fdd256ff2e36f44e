//! Locks and permits that are held, renewed or not.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use memlock::*;
use memlock_core::{Answer, Loss, Notice};

use super::super::{Held, No, Outcome, Renewed};
use super::{done, duration, millis};

type Notices = Mutex<Vec<Notice>>;

/// The functions for one kind of handle.
struct Calls<H> {
    release: unsafe extern "C-unwind" fn(*mut H) -> c_int,
    drop: unsafe extern "C-unwind" fn(*mut H) -> c_int,
    extend: unsafe extern "C-unwind" fn(*mut H, i64) -> c_int,
    remaining_ms: unsafe extern "C-unwind" fn(*const H, *mut i64) -> c_int,
    is_held: unsafe extern "C-unwind" fn(*const H) -> c_int,
    check: unsafe extern "C-unwind" fn(*const H) -> c_int,
    lost: unsafe extern "C-unwind" fn(*const H, *mut c_int) -> c_int,
    wait_lost: unsafe extern "C-unwind" fn(*const H, i64, *mut c_int) -> c_int,
    renew: unsafe extern "C-unwind" fn(*mut H, i64, memlock_renewal_callback, *mut c_void) -> c_int,
    /// Permits have none.
    fence: Option<unsafe extern "C-unwind" fn(*const H, *mut u64) -> c_int>,
}

pub(super) struct Handle<H> {
    held: *mut H,
    calls: Calls<H>,
    /// Freed after the handle was given back: until then the callback may write to it.
    notices: Box<Notices>,
}

// SAFETY: the header allows what is held in one thread at a time, and in any number what is renewed.
unsafe impl<H> Send for Handle<H> {}
// SAFETY: as above.
unsafe impl<H> Sync for Handle<H> {}

pub(super) fn lock(held: *mut memlock_lock) -> Box<Handle<memlock_lock>> {
    let calls = Calls {
        release: memlock_unlock,
        drop: memlock_lock_drop,
        extend: memlock_lock_extend,
        remaining_ms: memlock_lock_remaining_ms,
        is_held: memlock_lock_is_held,
        check: memlock_lock_check,
        lost: memlock_lock_lost,
        wait_lost: memlock_lock_wait_lost,
        renew: memlock_lock_renew,
        fence: Some(memlock_lock_fence),
    };
    Box::new(Handle { held, calls, notices: Box::default() })
}

pub(super) fn permit(held: *mut memlock_permit) -> Box<Handle<memlock_permit>> {
    let calls = Calls {
        release: memlock_permit_release,
        drop: memlock_permit_drop,
        extend: memlock_permit_extend,
        remaining_ms: memlock_permit_remaining_ms,
        is_held: memlock_permit_is_held,
        check: memlock_permit_check,
        lost: memlock_permit_lost,
        wait_lost: memlock_permit_wait_lost,
        renew: memlock_permit_renew,
        fence: None,
    };
    Box::new(Handle { held, calls, notices: Box::default() })
}

unsafe extern "C" fn notice(what: c_int, left_ms: i64, notices: *mut c_void) {
    let notice = match what {
        MEMLOCK_LEASE_AT_RISK => Notice::AtRisk(duration(left_ms)),
        loss => Notice::Lost(why(loss)),
    };
    // SAFETY: it is what the handle was renewed with, and the handle was not given back yet.
    let notices = unsafe { &*notices.cast::<Notices>() };
    notices.lock().unwrap_or_else(PoisonError::into_inner).push(notice);
}

fn why(loss: c_int) -> Loss {
    match loss {
        MEMLOCK_LOST_EXPIRED => Loss::Expired,
        MEMLOCK_LOST_GONE => Loss::Gone,
        MEMLOCK_LOST_MAX_HOLD => Loss::MaxHold,
        other => panic!("{other} is no reason for a loss"),
    }
}

impl<H: 'static> Handle<H> {
    pub(super) fn renew(self: Box<Self>, max_hold: Option<Duration>) -> Outcome<Box<dyn Renewed>> {
        let arg = ptr::from_ref::<Notices>(&self.notices).cast_mut().cast();
        let longest = max_hold.map_or(-1, millis);
        // SAFETY: it is held, and what the callback is given lives as long as the handle.
        done(unsafe { (self.calls.renew)(self.held, longest, Some(notice), arg) })?;
        Ok(self)
    }

    fn give_back(&mut self) -> Outcome<()> {
        let held = std::mem::replace(&mut self.held, ptr::null_mut());
        // SAFETY: it is given back here, once.
        done(unsafe { (self.calls.release)(held) })
    }
}

impl<H: 'static> Held for Handle<H> {
    fn fence(&self) -> u64 {
        let mut fence = 0;
        let call = self.calls.fence.expect("permits have no fence");
        // SAFETY: the lock is held and the place is valid.
        assert_eq!(unsafe { call(self.held, &mut fence) }, MEMLOCK_OK);
        fence
    }

    fn remaining(&self) -> Duration {
        let mut remaining = 0;
        // SAFETY: it was not given back, and the place is valid.
        let answer = unsafe { (self.calls.remaining_ms)(self.held, &mut remaining) };
        assert_eq!(answer, MEMLOCK_OK);
        duration(remaining)
    }

    fn extend(&mut self, lease: Duration) -> Outcome<()> {
        // SAFETY: it was not given back.
        done(unsafe { (self.calls.extend)(self.held, millis(lease)) })
    }

    fn release(mut self: Box<Self>) -> Outcome<()> {
        self.give_back()
    }
}

impl<H: 'static> Renewed for Handle<H> {
    fn is_held(&self) -> bool {
        // SAFETY: it was not given back.
        unsafe { (self.calls.is_held)(self.held) == 1 }
    }

    fn check(&self) -> Outcome<bool> {
        // SAFETY: it was not given back.
        match done(unsafe { (self.calls.check)(self.held) }) {
            Ok(()) => Ok(true),
            Err(No { answer: Answer::Lost, .. }) => Ok(false),
            Err(no) => Err(no),
        }
    }

    fn lost(&self) -> Option<Loss> {
        let mut loss = 0;
        // SAFETY: it was not given back, and the place is valid.
        match unsafe { (self.calls.lost)(self.held, &mut loss) } {
            MEMLOCK_LOST => Some(why(loss)),
            MEMLOCK_OK => None,
            other => panic!("the answer was {other}"),
        }
    }

    fn wait_lost(&self, limit: Duration) -> Option<Loss> {
        let mut loss = 0;
        // SAFETY: it was not given back, and the place is valid.
        match unsafe { (self.calls.wait_lost)(self.held, millis(limit), &mut loss) } {
            MEMLOCK_LOST => Some(why(loss)),
            MEMLOCK_OK | MEMLOCK_TIMED_OUT => None,
            other => panic!("the answer was {other}"),
        }
    }

    fn notices(&self) -> Vec<Notice> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn release(mut self: Box<Self>) -> Outcome<()> {
        self.give_back()
    }
}

impl<H> Drop for Handle<H> {
    fn drop(&mut self) {
        // SAFETY: NULL, or what was not given back before.
        unsafe { (self.calls.drop)(self.held) };
    }
}
