//! Starting calls.

use std::ffi::{c_char, c_int, c_void};

use memlock_core::{Answer, Request, Result};

use super::call::{Call, memlock_pending};
use crate::boundary::{enter, lent, millis, put, span, text};
use crate::client::memlock_client;
use crate::lock::memlock_lock;
use crate::semaphore::{memlock_permit, memlock_request, memlock_semaphore};
use crate::taken_over::{Holds, TakenOver};

/// Starts to lock the mutex `name`, like memlock_mutex_lock(), and returns without waiting: a
/// thread of the client does the rest. No I/O, whether the server answers or not. `lease_ms` and
/// `timeout_ms` are those of memlock_mutex_lock(); the timeout counts from the moment at which the
/// thread takes the call up, which is at once unless a server hangs. Any number of calls may be in
/// progress, for any locks; those for one lock get it in the order in which they were started.
///
/// `arg` is the caller's, for memlock_pending_arg(). When the call has ended, the descriptor of
/// memlock_client_event_fd() becomes readable, memlock_client_next_ended() hands the call out, and
/// memlock_pending_take_lock() has its answer and the lock.
///
/// Returns MEMLOCK_OK and a handle in *pending, to be closed by memlock_pending_close(). It is
/// written before another thread can be handed the call. Otherwise nothing was started, and
/// *pending is NULL: MEMLOCK_INVALID, or MEMLOCK_INTERNAL when no descriptor can be opened. All
/// other answers are the call's. Thread-safe.
///
/// # Safety
/// `client` is NULL or an open client, `name` is NULL or a NUL-terminated string, which may be
/// freed afterwards, `pending` is NULL or writable.
#[must_use = "the answer says whether the call was started"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_acquire_start(
    client: *const memlock_client,
    name: *const c_char,
    lease_ms: i64,
    timeout_ms: i64,
    arg: *mut c_void,
    pending: *mut *mut memlock_pending,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        unsafe { put(pending, std::ptr::null_mut(), "pending") }?;
        // SAFETY: as above.
        let (client, name) = unsafe { (lent(client, "client")?, text(name, "name")?) };
        let mutex = client.core.mutex(name, millis(lease_ms)?)?;
        let limit = span(timeout_ms)?;
        let begin = || Call::Lock(mutex.lock_async(limit));
        // SAFETY: as above.
        unsafe { memlock_pending::start(&client.calls, arg, begin, pending) }?;
        Ok(Answer::Ok)
    })
}

/// Starts to acquire the permits that `request` describes (NULL: one permit, priority 0), like
/// memlock_semaphore_acquire_wait(), and returns without waiting: see memlock_acquire_start().
/// memlock_pending_take_permit() has the answer and the permits; for 0 permits, and for more than
/// the semaphore has, that is MEMLOCK_INVALID. The semaphore may be closed while the call is in
/// progress.
///
/// Returns MEMLOCK_OK and a handle in *pending, or MEMLOCK_INVALID or MEMLOCK_INTERNAL and NULL, as
/// memlock_acquire_start() does. Thread-safe.
///
/// # Safety
/// `semaphore` is NULL or an open semaphore, `request` is NULL or readable, `pending` is NULL or
/// writable.
#[must_use = "the answer says whether the call was started"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_semaphore_acquire_start(
    semaphore: *const memlock_semaphore,
    request: *const memlock_request,
    timeout_ms: i64,
    arg: *mut c_void,
    pending: *mut *mut memlock_pending,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        unsafe { put(pending, std::ptr::null_mut(), "pending") }?;
        // SAFETY: as above.
        let (semaphore, request) = unsafe { (lent(semaphore, "semaphore")?, request.as_ref()) };
        let request = request.map_or_else(Request::default, |&request| request.into());
        let limit = span(timeout_ms)?;
        let begin = || Call::Permits(request.permits, semaphore.core.acquire_async(request, limit));
        // SAFETY: as above.
        unsafe { memlock_pending::start(&semaphore.calls, arg, begin, pending) }?;
        Ok(Answer::Ok)
    })
}

/// Starts to unlock the mutex, like memlock_unlock(), and returns without waiting. **The handle
/// `lock` is taken over in every case**: it must not be used afterwards, and is freed when the call
/// has ended. The lock is released whether or not the result is collected, also when the pending
/// call is closed and when the client is closed. Until the call has ended, the callback of a
/// renewed lock may still be called, with the handle valid; afterwards it is never called again, so
/// `arg` of memlock_lock_renew() may be freed.
///
/// `pending` may be NULL, when the outcome is of no interest: there is no call to be collected and
/// closed then, and no way to learn that the lock was lost. `arg` is that of
/// memlock_acquire_start(). memlock_pending_poll() has the answer. While the server does not answer
/// it is asked once a second; the other releases end at once with MEMLOCK_UNREACHABLE. After a
/// failure the lock is released at the client's next contact with the server, or expires with its
/// lease.
///
/// A program that ends does not wait for releases that are in progress: their locks stay until the
/// end of their leases. Collect them, or call memlock_unlock().
///
/// Returns MEMLOCK_OK, and a handle in *pending unless `pending` is NULL. Otherwise *pending is
/// NULL: MEMLOCK_INVALID when `lock` is NULL; MEMLOCK_INTERNAL when no descriptor can be opened: the
/// lock is then released all the same, without a result. If no thread can be started, this function
/// blocks until the lock is released, as memlock_lock_drop() does, and the call ends with
/// MEMLOCK_INTERNAL. Thread-safe.
///
/// # Safety
/// `lock` is NULL or a lock that is held, used by no other thread, and not used afterwards;
/// `pending` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_release_start(
    lock: *mut memlock_lock,
    arg: *mut c_void,
    pending: *mut *mut memlock_pending,
) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| unsafe { release_start(lock, "lock", arg, pending) })
}

/// Starts to release the permits, like memlock_permit_release(), and returns without waiting. The
/// handle `permit` is taken over in every case, and `pending` may be NULL: see
/// memlock_release_start(), whose answers it has.
///
/// # Safety
/// `permit` is NULL or permits that are held, used by no other thread, and not used afterwards;
/// `pending` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_permit_release_start(
    permit: *mut memlock_permit,
    arg: *mut c_void,
    pending: *mut *mut memlock_pending,
) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| unsafe { release_start(permit, "permit", arg, pending) })
}

/// # Safety
/// As [`memlock_release_start`].
unsafe fn release_start<H: Holds>(
    handle: *mut H,
    what: &str,
    arg: *mut c_void,
    pending: *mut *mut memlock_pending,
) -> Result<Answer> {
    if !pending.is_null() {
        // SAFETY: not NULL, and writable by the caller's promise.
        unsafe { pending.write(std::ptr::null_mut()) };
    }
    // SAFETY: the caller's promise.
    unsafe { lent(handle, what) }?;
    // SAFETY: not NULL, and the rest is the caller's promise.
    let handle = unsafe { TakenOver::from_c(handle) };
    let calls = handle.calls();
    if pending.is_null() {
        drop(handle.release_in_background());
        return Ok(Answer::Ok);
    }
    if let Err(error) = calls.prepare() {
        drop(handle.release_in_background());
        return Err(error);
    }
    let begin = || Call::Release(handle.release_in_background());
    // SAFETY: not NULL, and writable by the caller's promise.
    unsafe { memlock_pending::start(&calls, arg, begin, pending) }?;
    Ok(Answer::Ok)
}
