//! Permits that are held, by handle.

use std::ffi::c_int;

use memlock_core::{Answer, Extension, Permit, Release};

use crate::boundary::{enter, invalid, lent, lent_mut, millis, put, take_back, to_millis};

/// One or several permits of a semaphore that are held. Use it from one thread at a time; reading its remaining
/// time and its count is allowed from several.
pub struct memlock_permit(pub(super) Permit);

/// Gives the permits back, all together, in one round trip, or two when others have used the semaphore
/// meanwhile. Any thread may do so. The handle is gone afterwards, **whatever is answered**: MEMLOCK_OK;
/// MEMLOCK_LOST when they were no longer ours; MEMLOCK_NOT_HELD in a child made by fork; after
/// MEMLOCK_UNREACHABLE or MEMLOCK_UNKNOWN the permits are given back at the client's next contact with the
/// server, or come back by themselves when the lease ends.
///
/// # Safety
/// `permit` is NULL or came from memlock_semaphore_acquire() or memlock_semaphore_acquire_wait(), and is not used
/// any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlock_permit_release(permit: *mut memlock_permit) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let Some(mut permit) = (unsafe { take_back(permit) }) else {
            return Err(invalid("The argument \"permit\" is NULL."));
        };
        match permit.0.release() {
            Ok(Release::Released) => Ok(Answer::Ok),
            Ok(Release::Lost) => Ok(Answer::Lost),
            Ok(Release::NotHeld) => Ok(Answer::NotHeld),
            Err(error) => {
                permit.0.abandon();
                Err(error)
            }
        }
    })
}

/// Gives the permits a new lease, counted from now, if they are still ours: MEMLOCK_OK or MEMLOCK_LOST, and
/// MEMLOCK_NOT_HELD in a child made by fork. MEMLOCK_INVALID for a lease out of range (1000 to 31622400000)
/// changes nothing. After MEMLOCK_UNREACHABLE the old lease runs on; after MEMLOCK_UNKNOWN count on the shorter
/// of the two, as memlock_permit_remaining_ms() does. One or two round trips.
///
/// # Safety
/// `permit` is NULL or a permit that is held, used by nobody else during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlock_permit_extend(permit: *mut memlock_permit, lease_ms: i64) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let permit = unsafe { lent_mut(permit, "permit") }?;
        Ok(match permit.0.extend(millis(lease_ms)?)? {
            Extension::Extended => Answer::Ok,
            Extension::Lost => Answer::Lost,
            Extension::NotHeld => Answer::NotHeld,
        })
    })
}

/// How long the permits are certainly ours yet, in milliseconds; 0 when they are not. No I/O.
///
/// # Safety
/// `permit` is NULL or a permit that is held; `remaining_ms` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlock_permit_remaining_ms(
    permit: *const memlock_permit,
    remaining_ms: *mut i64,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let remaining = unsafe { lent(permit, "permit") }?.0.remaining();
        // SAFETY: the caller's promise.
        unsafe { put(remaining_ms, to_millis(remaining), "remaining_ms") }?;
        Ok(Answer::Ok)
    })
}

/// How many permits these are: as many as were asked for. No I/O.
///
/// # Safety
/// `permit` is NULL or a permit that is held; `permits` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlock_permit_count(permit: *const memlock_permit, permits: *mut u32) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let count = unsafe { lent(permit, "permit") }?.0.permits();
        // SAFETY: the caller's promise.
        unsafe { put(permits, count, "permits") }?;
        Ok(Answer::Ok)
    })
}
