//! Locks and permits whose lease is renewed.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use memlock::*;
use memlock_core::{Answer, Loss, Notice};

use super::super::{No, Outcome, Renewed};
use super::calls::Calls;
use super::{done, duration, millis};

type Notices = Mutex<Vec<Notice>>;

/// The functions for one kind of handle.
struct Functions<H> {
    release: fn(&dyn Calls, *mut H) -> Outcome<()>,
    drop: unsafe extern "C-unwind" fn(*mut H) -> c_int,
    is_held: unsafe extern "C-unwind" fn(*const H) -> c_int,
    check: unsafe extern "C-unwind" fn(*const H) -> c_int,
    lost: unsafe extern "C-unwind" fn(*const H, *mut c_int) -> c_int,
    wait_lost: unsafe extern "C-unwind" fn(*const H, i64, *mut c_int) -> c_int,
}

struct Handle<H: 'static> {
    held: *mut H,
    calls: Arc<dyn Calls>,
    functions: Functions<H>,
    /// Freed after the handle was given back: until then the callback may write to it.
    notices: Box<Notices>,
}

// SAFETY: the header allows what is renewed in any number of threads.
unsafe impl<H> Send for Handle<H> {}
// SAFETY: as above.
unsafe impl<H> Sync for Handle<H> {}

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

type Renew<H> =
    unsafe extern "C-unwind" fn(*mut H, i64, memlock_renewal_callback, *mut c_void) -> c_int;

fn renew<H: 'static>(
    held: *mut H,
    max_hold: Option<Duration>,
    renew: Renew<H>,
    calls: &Arc<dyn Calls>,
    functions: Functions<H>,
) -> Outcome<Box<dyn Renewed>> {
    let handle = Handle { held, calls: Arc::clone(calls), functions, notices: Box::default() };
    let arg = ptr::from_ref::<Notices>(&handle.notices).cast_mut().cast();
    // SAFETY: the handle is held, and what the callback is given lives as long as the handle.
    done(unsafe { renew(held, max_hold.map_or(-1, millis), Some(notice), arg) })?;
    Ok(Box::new(handle))
}

pub(super) fn lock(
    held: *mut memlock_lock,
    calls: &Arc<dyn Calls>,
    max_hold: Option<Duration>,
) -> Outcome<Box<dyn Renewed>> {
    let functions = Functions {
        release: |calls, held| calls.unlock(held),
        drop: memlock_lock_drop,
        is_held: memlock_lock_is_held,
        check: memlock_lock_check,
        lost: memlock_lock_lost,
        wait_lost: memlock_lock_wait_lost,
    };
    renew(held, max_hold, memlock_lock_renew, calls, functions)
}

pub(super) fn permit(
    held: *mut memlock_permit,
    calls: &Arc<dyn Calls>,
    max_hold: Option<Duration>,
) -> Outcome<Box<dyn Renewed>> {
    let functions = Functions {
        release: |calls, held| calls.release(held),
        drop: memlock_permit_drop,
        is_held: memlock_permit_is_held,
        check: memlock_permit_check,
        lost: memlock_permit_lost,
        wait_lost: memlock_permit_wait_lost,
    };
    renew(held, max_hold, memlock_permit_renew, calls, functions)
}

impl<H> Renewed for Handle<H> {
    fn is_held(&self) -> bool {
        // SAFETY: it was not given back.
        unsafe { (self.functions.is_held)(self.held) == 1 }
    }

    fn check(&self) -> Outcome<bool> {
        // SAFETY: it was not given back.
        match done(unsafe { (self.functions.check)(self.held) }) {
            Ok(()) => Ok(true),
            Err(No { answer: Answer::Lost, .. }) => Ok(false),
            Err(no) => Err(no),
        }
    }

    fn lost(&self) -> Option<Loss> {
        let mut loss = 0;
        // SAFETY: it was not given back, and the place is valid.
        match unsafe { (self.functions.lost)(self.held, &mut loss) } {
            MEMLOCK_LOST => Some(why(loss)),
            MEMLOCK_OK => None,
            other => panic!("the answer was {other}"),
        }
    }

    fn wait_lost(&self, limit: Duration) -> Option<Loss> {
        let mut loss = 0;
        // SAFETY: it was not given back, and the place is valid.
        match unsafe { (self.functions.wait_lost)(self.held, millis(limit), &mut loss) } {
            MEMLOCK_LOST => Some(why(loss)),
            MEMLOCK_OK | MEMLOCK_TIMED_OUT => None,
            other => panic!("the answer was {other}"),
        }
    }

    fn notices(&self) -> Vec<Notice> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn release(mut self: Box<Self>) -> Outcome<()> {
        let held = std::mem::replace(&mut self.held, ptr::null_mut());
        (self.functions.release)(&*self.calls, held)
    }
}

impl<H> Drop for Handle<H> {
    fn drop(&mut self) {
        // SAFETY: NULL, or what was not given back before.
        unsafe { (self.functions.drop)(self.held) };
    }
}
