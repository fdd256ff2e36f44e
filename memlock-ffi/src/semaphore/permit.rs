//! Permits by handle.

use std::ffi::{c_int, c_void};

use memlock_core::Answer;

use crate::boundary::{enter, lent, lent_mut, put, quietly, span, take_back, to_millis};
use crate::renewal::{Leased, loss_code, memlock_renewal_callback};

/// One or several permits of a semaphore that are held. Use a handle from one thread at a time; its
/// remaining time and its count may be read from several threads at once. Renewed permits allow
/// more: see memlock_permit_renew().
pub struct memlock_permit {
    pub(super) held: Leased,
    pub(super) permits: u32,
}

/// Releases the permits, all together, in one round trip, or two when other processes have used the
/// semaphore meanwhile. Any thread may call this. The handle is freed **with every answer**:
/// MEMLOCK_OK; MEMLOCK_LOST when another holder may have had the permits;
/// MEMLOCK_NOT_HELD in a child made by fork; MEMLOCK_UNREACHABLE, MEMLOCK_UNKNOWN or
/// MEMLOCK_PROTOCOL, after which the permits are released at the client's next contact with the
/// server, or expire with the lease; or MEMLOCK_INVALID for NULL.
///
/// # Safety
/// `permit` is NULL or came from memlock_semaphore_acquire() or memlock_semaphore_acquire_wait(),
/// and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_permit_release(permit: *mut memlock_permit) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise. A callback may read the handle until the renewal has ended.
        let renewal = unsafe { lent(permit, "permit") }?.held.stop_renewal();
        // SAFETY: the caller's promise.
        let permit = unsafe { take_back(permit) };
        permit.map_or(Ok(Answer::NotHeld.into()), |permit| permit.held.release(renewal))
    })
}

/// Releases the permits and frees the handle, as a destructor does: see memlock_lock_drop(). NULL
/// is allowed.
///
/// # Safety
/// As memlock_permit_release().
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_permit_drop(permit: *mut memlock_permit) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise. A callback may read the handle until the renewal has ended.
        let renewal =
            unsafe { permit.as_ref() }.and_then(|permit| permit.held.stop_renewal_on_drop());
        // SAFETY: the caller's promise.
        let permit = unsafe { take_back(permit) };
        Ok(permit.map_or(Answer::NotHeld.into(), |permit| permit.held.release_on_drop(renewal)))
    })
}

/// Gives the permits a new lease of `lease_ms` milliseconds, counted from now, if the server still
/// has them for this handle. Returns MEMLOCK_OK; MEMLOCK_LOST when another holder may have had the
/// permits; and MEMLOCK_NOT_HELD in a child made by fork. Returns MEMLOCK_INVALID, and
/// changes nothing, for a lease out of range (1000 to 31622400000) and for permits that are renewed
/// automatically. After MEMLOCK_UNREACHABLE the old lease still applies. After MEMLOCK_UNKNOWN and
/// MEMLOCK_PROTOCOL assume the shorter of the two leases, as memlock_permit_remaining_ms() does.
/// One or two round trips.
///
/// # Safety
/// `permit` is NULL or a permit that is held, used by no other thread during the call.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_permit_extend(
    permit: *mut memlock_permit,
    lease_ms: i64,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        unsafe { lent_mut(permit, "permit") }?.held.extend(lease_ms)
    })
}

/// Renews the lease automatically from now on, in a background thread of the client, each time by
/// the lease that the permits have now, until they are released by memlock_permit_release() or
/// lost. The handle stays the same, and any number of threads may use it at once, except that
/// memlock_permit_release() must be the last call. No I/O.
///
/// The lease is not renewed any more when `max_hold_ms` have passed since this call, so that a
/// program that hangs does not hold the permits for ever; they then end with their lease. -1: no
/// limit. `callback`, unless NULL, is called when the lease is at risk and when the permits are
/// lost: see memlock_renewal_callback. Once memlock_permit_release() has returned, the callback is
/// not running and is never called again, so `arg` may be freed. The thread that calls
/// memlock_permit_release() must therefore not hold a mutex for which the callback waits. A loss
/// that memlock_permit_release() itself detects is reported by its answer only, not by the
/// callback.
///
/// Returns MEMLOCK_OK. Returns MEMLOCK_LOST when the lease has already expired, MEMLOCK_NOT_HELD in
/// a child made by fork, MEMLOCK_INVALID when the permits are already renewed or `max_hold_ms` is
/// out of range; none of these changes anything. Returns MEMLOCK_INTERNAL when no thread can be
/// started: the permits were then **released**, and the handle, which holds nothing, must still be
/// freed.
///
/// In a child made by fork nothing is renewed: the child has no such thread, and holds nothing.
///
/// # Safety
/// `permit` is NULL or permits that are held, used by no other thread during the call; `callback`
/// and `arg` are valid until the handle is freed.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_permit_renew(
    permit: *mut memlock_permit,
    max_hold_ms: i64,
    callback: memlock_renewal_callback,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| unsafe { lent_mut(permit, "permit") }?.held.renew(max_hold_ms, callback, arg))
}

/// Binds the permits to the calling thread until the handle is freed: only this thread will release
/// them. From then on a wait of this thread returns MEMLOCK_DEADLOCK if it cannot end without these
/// permits, and has neither a timeout nor a wait handle: see memlock_lock_bind().
///
/// Returns MEMLOCK_OK, also for permits that are lost; MEMLOCK_NOT_HELD in a child made by fork,
/// and when the handle holds nothing; MEMLOCK_INVALID for NULL. No I/O.
///
/// # Safety
/// `permit` is NULL or permits that are held, used by no other thread during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_permit_bind(permit: *mut memlock_permit) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| Ok(unsafe { lent_mut(permit, "permit") }?.held.bind()))
}

/// Whether the permits are guaranteed to be held, provided that the server has not lost them.
/// **Returns a truth value, not an answer**: 1 for yes, 0 for no, also for NULL and in a child made
/// by fork. No I/O: decided by the clock and by what earlier calls and renewals have found.
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
        held = c_int::from(permit.is_some_and(|permit| !permit.held.remaining().is_zero()));
    });
    held
}

/// Asks the server whether the permits are still held. Returns MEMLOCK_OK when they are;
/// MEMLOCK_LOST when they are not, or their lease has expired, and renewed permits are then lost
/// for good; MEMLOCK_NOT_HELD in a child made by fork; MEMLOCK_UNREACHABLE or MEMLOCK_PROTOCOL. One
/// round trip, or none when the lease has expired.
///
/// # Safety
/// `permit` is NULL or permits that are held.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_permit_check(permit: *const memlock_permit) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| unsafe { lent(permit, "permit") }?.held.check())
}

/// Reports whether and why the permits were lost. Returns MEMLOCK_LOST, and MEMLOCK_LOST_EXPIRED,
/// MEMLOCK_LOST_GONE or MEMLOCK_LOST_MAX_HOLD in *why; MEMLOCK_OK when no loss is known;
/// MEMLOCK_NOT_HELD in a child made by fork. Permits that are not renewed are reported as lost as
/// soon as their lease has expired; memlock_permit_release() and memlock_permit_extend() may then
/// still succeed, see MEMLOCK_LOST. No I/O.
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

/// Like memlock_permit_lost(), but waits for the loss for at most `timeout_ms`: 0 does not wait, -1
/// waits without a limit. Returns MEMLOCK_TIMED_OUT when that time has passed (MEMLOCK_OK if it was
/// 0). No I/O. memlock_wait_cancel() and memlock_client_cancel_waits() do not end this wait.
///
/// # Safety
/// `permit` is NULL or permits that are held, and is not freed before this call returns, except by
/// its callback; `why` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_permit_wait_lost(
    permit: *const memlock_permit,
    timeout_ms: i64,
    why: *mut c_int,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let permit = unsafe { lent(permit, "permit") }?;
        let (loss, report) = permit.held.wait_lost(span(timeout_ms)?);
        if let Some(loss) = loss {
            // SAFETY: the caller's promise.
            unsafe { put(why, loss_code(loss), "why") }?;
        }
        Ok(report)
    })
}

/// Stores the time for which the permits are guaranteed to be held, in milliseconds; 0 when they
/// are not. No I/O.
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
        let remaining = unsafe { lent(permit, "permit") }?.held.remaining();
        // SAFETY: the caller's promise.
        unsafe { put(remaining_ms, to_millis(remaining), "remaining_ms") }?;
        Ok(Answer::Ok)
    })
}

/// Stores the number of permits of this handle: as many as were requested. No I/O.
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
