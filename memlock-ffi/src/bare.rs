//! Burton's six functions, as proposed on the memcached mailing list in 2004, and five functions
//! for the semaphore in the same style.

use std::ffi::{c_char, c_int};

use memlock_core::bare;

use crate::boundary::{enter, seconds, text};

/// Locks the mutex `mutex_key` and waits for it without a timeout.
///
/// `duration` is the lease: the maximum time for which the lock is held, in whole seconds from 1 to
/// 31622400 (366 days). When it has passed, the lock of a dead worker is free. The lock belongs to
/// the process: any of its threads may unlock it, and two of its threads exclude each other. A
/// child made by fork() holds none of its parent's locks.
///
/// Uses the default client, which is configured by memlock_init(url), or by the environment
/// variable MEMLOCK_URL, or by the first line of the file that MEMLOCK_URL_FILE names, or is
/// memcached://127.0.0.1:11211. Acquiring a free mutex takes one round trip.
///
/// Returns MEMLOCK_OK; MEMLOCK_INTERRUPTED; MEMLOCK_DEADLOCK when the calling thread already holds
/// the mutex; MEMLOCK_INVALID, MEMLOCK_UNREACHABLE, MEMLOCK_UNKNOWN, MEMLOCK_PROTOCOL or
/// MEMLOCK_CONFIG. Thread-safe.
///
/// # Safety
/// `mutex_key` is NULL or a NUL-terminated string.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mutex_lock(
    mutex_key: *const c_char,
    duration: libc::time_t,
) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| bare::mutex_lock(unsafe { text(mutex_key, "mutex_key") }?, seconds(duration)?))
}

/// Like mutex_lock(), but does not wait: returns MEMLOCK_BUSY when the mutex is held, also when the
/// calling thread holds it; MEMLOCK_RECOVERING while the server gives no new locks yet, held or
/// not.
///
/// # Safety
/// `mutex_key` is NULL or a NUL-terminated string.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mutex_lock_nonblock(
    mutex_key: *const c_char,
    duration: libc::time_t,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let name = unsafe { text(mutex_key, "mutex_key") }?;
        bare::mutex_lock_nonblock(name, seconds(duration)?)
    })
}

/// Unlocks a mutex that this process has locked, if the server still has it for this process. One
/// round trip.
///
/// Returns MEMLOCK_OK; MEMLOCK_LOST when another holder may have had the mutex;
/// MEMLOCK_NOT_HELD when this process had not locked it; MEMLOCK_INVALID. After
/// MEMLOCK_UNREACHABLE, MEMLOCK_UNKNOWN and MEMLOCK_PROTOCOL this process still holds the mutex:
/// unlock it again, or its lease expires. Thread-safe.
///
/// # Safety
/// `mutex_key` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mutex_unlock(mutex_key: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| bare::mutex_unlock(unsafe { text(mutex_key, "mutex_key") }?))
}

/// Sets up the distinct list `session`. The session and all its keys expire after `duration`
/// seconds (1 to 31622400).
///
/// Returns MEMLOCK_OK, or MEMLOCK_EXISTS when the session was already set up; this process has then
/// joined it. From then on the inserts of this process belong to this particular session: once it
/// is torn down they are refused, even if another session of the same name is set up. Thread-safe.
///
/// # Safety
/// `session` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn distinct_list_set_up(
    session: *const c_char,
    duration: libc::time_t,
) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| bare::distinct_list_set_up(unsafe { text(session, "session") }?, seconds(duration)?))
}

/// Inserts `key`. Returns MEMLOCK_OK to exactly one of all callers that insert the same key,
/// MEMLOCK_DUPLICATE to the others, and MEMLOCK_NOT_FOUND when there is no such session. After
/// MEMLOCK_UNKNOWN the key may or may not be in the list; inserting it again is safe, but may
/// report this process's own key as a duplicate. Thread-safe.
///
/// # Safety
/// `session` and `key` are NULL or NUL-terminated strings.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn distinct_list_insert(
    session: *const c_char,
    key: *const c_char,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let (session, key) = unsafe { (text(session, "session")?, text(key, "key")?) };
        bare::distinct_list_insert(session, key)
    })
}

/// Ends the session for all processes, in one atomic step. Returns MEMLOCK_NOT_FOUND when there was
/// no session, or another one than this process has set up. Thread-safe.
///
/// # Safety
/// `session` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn distinct_list_tear_down(session: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| bare::distinct_list_tear_down(unsafe { text(session, "session") }?))
}

/// Sets up the semaphore `name` with `permits` permits (1 to 4294967295). The semaphore expires
/// `duration` seconds (1 to 31622400) after its last use.
///
/// Returns MEMLOCK_OK, or MEMLOCK_EXISTS when the semaphore was already set up; its expiry time and
/// its number of permits are then unchanged: if it has another number, that one applies, and a
/// warning is logged. Otherwise returns MEMLOCK_INVALID, MEMLOCK_UNREACHABLE, MEMLOCK_UNKNOWN,
/// MEMLOCK_PROTOCOL or MEMLOCK_CONFIG. Thread-safe.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn semaphore_set_up(
    name: *const c_char,
    permits: u32,
    duration: libc::time_t,
) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| bare::semaphore_set_up(unsafe { text(name, "name") }?, permits, seconds(duration)?))
}

/// Acquires one permit of the semaphore `name` and waits for it without a timeout. Waiters are
/// served in FIFO order.
///
/// `duration` is the lease: the maximum time for which the permit is held, in whole seconds from 1
/// to 31622400 (366 days). When it has passed, the permit of a dead worker is available again. The
/// permit belongs to the process: any of its threads may release it. A process may acquire several
/// permits; if it holds all of them itself and acquires another one, it waits until one is released
/// or expires. A child made by fork() holds none of its parent's permits.
///
/// Returns MEMLOCK_OK; MEMLOCK_INTERRUPTED; MEMLOCK_DEADLOCK; MEMLOCK_NOT_FOUND when there is no
/// such semaphore, because it was never set up, has expired or was torn down; MEMLOCK_INVALID,
/// MEMLOCK_UNREACHABLE, MEMLOCK_UNKNOWN, MEMLOCK_PROTOCOL or MEMLOCK_CONFIG. Thread-safe.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn semaphore_acquire(
    name: *const c_char,
    duration: libc::time_t,
) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| bare::semaphore_acquire(unsafe { text(name, "name") }?, seconds(duration)?))
}

/// Like semaphore_acquire(), but does not wait: returns MEMLOCK_BUSY when no permit is available,
/// or when the available permits are reserved for a waiter that wants several; MEMLOCK_RECOVERING
/// when the server gives no new permits yet.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn semaphore_acquire_nonblock(
    name: *const c_char,
    duration: libc::time_t,
) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| bare::semaphore_acquire_nonblock(unsafe { text(name, "name") }?, seconds(duration)?))
}

/// Releases a permit that this process acquired by semaphore_acquire(): the one that the calling
/// thread acquired last or, if it has none, the one that the process has held for the longest time.
///
/// Returns MEMLOCK_OK; MEMLOCK_LOST when another holder may have had the permit;
/// MEMLOCK_NOT_HELD when this process has none; MEMLOCK_INVALID. After MEMLOCK_UNREACHABLE,
/// MEMLOCK_UNKNOWN and MEMLOCK_PROTOCOL this process still holds the permit: release it again, or
/// its lease expires. Thread-safe.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn semaphore_release(name: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| bare::semaphore_release(unsafe { text(name, "name") }?))
}

/// Removes the semaphore `name` for all processes. Holders lose their permits, and waiters get
/// MEMLOCK_NOT_FOUND.
///
/// Returns MEMLOCK_OK, MEMLOCK_NOT_FOUND when there was no such semaphore, or MEMLOCK_INVALID,
/// MEMLOCK_UNREACHABLE, MEMLOCK_UNKNOWN, MEMLOCK_PROTOCOL or MEMLOCK_CONFIG. Thread-safe.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn semaphore_tear_down(name: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| bare::semaphore_tear_down(unsafe { text(name, "name") }?))
}
