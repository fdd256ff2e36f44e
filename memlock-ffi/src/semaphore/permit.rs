//! Permits that are held, by handle.

use std::ffi::{c_int, c_void};

use memlock_core::{Answer, Permit};

use crate::boundary::{enter, lent, lent_mut, put, quietly, span, take_back, to_millis};
use crate::renewal::{Hold, memlock_renewal_callback, number};

/// One or several permits of a semaphore that are held. Use it from one thread at a time; reading
/// its remaining time and its count is allowed from several, and more when they are kept: see
/// memlock_permit_renew().
pub struct memlock_permit {
    pub(super) hold: Hold<Permit>,
    pub(super) permits: u32,
}

/// Gives the permits back, all together, in one round trip, or two when others have used the
/// semaphore meanwhile. Any thread may do so. The handle is gone afterwards, **whatever is
/// answered**: MEMLOCK_OK; MEMLOCK_LOST when they were no longer ours; MEMLOCK_NOT_HELD in a child
/// made by fork; after MEMLOCK_UNREACHABLE or MEMLOCK_UNKNOWN the permits are given back at the
/// client's next contact with the server, or come back by themselves when the lease ends.
///
/// # Safety
/// `permit` is NULL or came from memlock_semaphore_acquire() or memlock_semaphore_acquire_wait(),
/// and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_permit_release(permit: *mut memlock_permit) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise. A callback may read the handle until they are kept no
        // longer.
        let kept = unsafe { lent(permit, "permit") }?.hold.end_keeping();
        // SAFETY: the caller's promise.
        let permit = unsafe { take_back(permit) };
        permit.map_or(Ok(Answer::NotHeld.into()), |permit| permit.hold.end(kept))
    })
}

/// Gives the handle back as a destructor does: see memlock_lock_drop(). NULL is allowed.
///
/// # Safety
/// As memlock_permit_release().
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_permit_drop(permit: *mut memlock_permit) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise. A callback may read the handle until they are kept no
        // longer.
        let kept = unsafe { permit.as_ref() }.and_then(|held| held.hold.let_go());
        // SAFETY: the caller's promise.
        let permit = unsafe { take_back(permit) };
        Ok(permit.map_or(Answer::NotHeld.into(), |permit| permit.hold.drop_after(kept)))
    })
}

/// Gives the permits a new lease, counted from now, if they are still ours: MEMLOCK_OK or
/// MEMLOCK_LOST, and MEMLOCK_NOT_HELD in a child made by fork. MEMLOCK_INVALID for a lease out of
/// range (1000 to 31622400000), and for permits that are kept, changes nothing. After
/// MEMLOCK_UNREACHABLE the old lease runs on; after MEMLOCK_UNKNOWN count on the shorter of the
/// two, as memlock_permit_remaining_ms() does. One or two round trips.
///
/// # Safety
/// `permit` is NULL or a permit that is held, used by nobody else during the call.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_permit_extend(
    permit: *mut memlock_permit,
    lease_ms: i64,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        unsafe { lent_mut(permit, "permit") }?.hold.extend(lease_ms)
    })
}

/// Renews their lease from now on by a thread of the client's, each time for the lease that they
/// have now, until they are given back by memlock_permit_release() or lost. The handle stays the
/// same, and may then be used by any number of threads at once, except that
/// memlock_permit_release() must be the last call. No I/O.
///
/// It is renewed no more once `max_hold_ms` have passed, counted from this call, so that a program
/// that hangs does not hold them for ever; then they end with the lease. -1: no bound. `callback`,
/// unless it is NULL, is called when there is something to tell: see memlock_renewal_callback. Once
/// memlock_permit_release() has returned it is not running, and is never called again: then `arg`
/// may be freed. So the thread that gives them back must not hold a mutex for which the callback
/// waits. What memlock_permit_release() finds is its answer, and not told any more.
///
/// MEMLOCK_OK; MEMLOCK_LOST when the lease is over already; MEMLOCK_NOT_HELD in a child made by
/// fork; MEMLOCK_INVALID when they are kept already, or for another `max_hold_ms`: all of these
/// change nothing. MEMLOCK_INTERNAL when no thread can be started: then the permits were
/// **released**, and the handle, which holds nothing any more, is still to be given back.
///
/// In a child made by fork nothing is kept: the child has no such thread, and holds nothing.
///
/// # Safety
/// `permit` is NULL or permits that are held, used by nobody else during the call; `callback` and
/// `arg` are good until it is given back.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_permit_renew(
    permit: *mut memlock_permit,
    max_hold_ms: i64,
    callback: memlock_renewal_callback,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| unsafe { lent_mut(permit, "permit") }?.hold.renew(max_hold_ms, callback, arg))
}

/// Whether they are certainly ours, unless the server has lost them. **No answer but a truth**: 1
/// for yes, 0 for no, also for NULL and in a child made by fork. No I/O: by the clock, and by what
/// was found out so far.
///
/// # Safety
/// `permit` is NULL or permits that are held.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_permit_is_held(permit: *const memlock_permit) -> c_int {
    let mut held = 0;
    quietly(|| {
        // SAFETY: the caller's promise.
        let permit = unsafe { permit.as_ref() };
        held = c_int::from(permit.is_some_and(|permit| !permit.hold.remaining().is_zero()));
    });
    held
}

/// Asks the server whether they are ours: MEMLOCK_OK when they are; MEMLOCK_LOST when not, and what
/// is kept is lost from then on; MEMLOCK_NOT_HELD in a child made by fork; MEMLOCK_UNREACHABLE or
/// MEMLOCK_PROTOCOL. One round trip, or none when the lease is over.
///
/// # Safety
/// `permit` is NULL or permits that are held.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_permit_check(permit: *const memlock_permit) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| unsafe { lent(permit, "permit") }?.hold.check())
}

/// Why they were lost: MEMLOCK_LOST, and MEMLOCK_LOST_EXPIRED, MEMLOCK_LOST_GONE or
/// MEMLOCK_LOST_MAX_HOLD in *why; MEMLOCK_OK when they were not, as far as is known;
/// MEMLOCK_NOT_HELD in a child made by fork. What is not kept is lost when its lease is over. No
/// I/O.
///
/// # Safety
/// `permit` is NULL or permits that are held; `why` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_permit_lost(
    permit: *const memlock_permit,
    why: *mut c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { memlock_permit_wait_lost(permit, 0, why) }
}

/// As memlock_permit_lost(), but waits for it: `wait_ms` is for how long, 0 not at all, -1 for
/// ever. Answers MEMLOCK_TIMED_OUT when that has passed (MEMLOCK_OK when it was 0). It is no wait
/// for a server: nothing cancels it.
///
/// # Safety
/// `permit` is NULL or permits that are held, and not given back before this call ends, unless by
/// its callback; `why` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_permit_wait_lost(
    permit: *const memlock_permit,
    wait_ms: i64,
    why: *mut c_int,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let permit = unsafe { lent(permit, "permit") }?;
        let (loss, report) = permit.hold.wait_lost(span(wait_ms)?);
        if let Some(loss) = loss {
            // SAFETY: the caller's promise.
            unsafe { put(why, number(loss), "why") }?;
        }
        Ok(report)
    })
}

/// How long the permits are certainly ours yet, in milliseconds; 0 when they are not. No I/O.
///
/// # Safety
/// `permit` is NULL or a permit that is held; `remaining_ms` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_permit_remaining_ms(
    permit: *const memlock_permit,
    remaining_ms: *mut i64,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let remaining = unsafe { lent(permit, "permit") }?.hold.remaining();
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
pub unsafe extern "C-unwind" fn memlock_permit_count(
    permit: *const memlock_permit,
    permits: *mut u32,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let count = unsafe { lent(permit, "permit") }?.permits;
        // SAFETY: the caller's promise.
        unsafe { put(permits, count, "permits") }?;
        Ok(Answer::Ok)
    })
}
