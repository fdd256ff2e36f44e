//! Burton's six functions, as he proposed them on the memcached list in 2004; and the semaphore in
//! their manner.

use std::ffi::{c_char, c_int};

use memlock_core::bare;

use crate::boundary::{enter, seconds, text};

/// Locks the mutex `mutex_key`, waiting for it for as long as it takes.
///
/// `duration` is the longest time that it is held, in whole seconds from 1 to 31622400 (366 days):
/// after it, a dead worker's lock is free. The lock belongs to the process: any of its threads may
/// unlock it, and two of its threads exclude each other. A child made by fork() holds nothing of
/// its parent's.
///
/// Uses the default client: memlock_init(url), or the environment's MEMLOCK_URL, or
/// memcached://127.0.0.1:11211. A free mutex is taken in one round trip.
///
/// Answers MEMLOCK_OK or MEMLOCK_INTERRUPTED; MEMLOCK_DEADLOCK when this thread holds it already;
/// MEMLOCK_INVALID, MEMLOCK_UNREACHABLE, MEMLOCK_UNKNOWN, MEMLOCK_PROTOCOL, MEMLOCK_CONFIG.
/// Thread-safe.
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

/// As mutex_lock(), but does not wait: MEMLOCK_BUSY when another holds it, this thread included.
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

/// Unlocks a mutex that this process locked, in one round trip, and only if it is still ours.
///
/// Answers MEMLOCK_OK, MEMLOCK_LOST when it was no longer ours, MEMLOCK_NOT_HELD when this process
/// did not lock it. After MEMLOCK_UNREACHABLE or MEMLOCK_UNKNOWN it is still held, and may be
/// unlocked again; else it ends with its duration. Thread-safe.
///
/// # Safety
/// `mutex_key` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mutex_unlock(mutex_key: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| bare::mutex_unlock(unsafe { text(mutex_key, "mutex_key") }?))
}

/// Sets up the distinct list `session`, which ends after `duration` seconds (1 to 31622400) with
/// all its keys.
///
/// Answers MEMLOCK_OK, or MEMLOCK_EXISTS when it was set up already: then we are in it too. From
/// now on this process's inserts belong to that very session: once it is torn down they are
/// refused, even if somebody sets up another of the same name. Thread-safe.
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

/// Inserts `key`: MEMLOCK_OK for exactly one of all who insert it, MEMLOCK_DUPLICATE for the
/// others, and MEMLOCK_NOT_FOUND when there is no such session. After MEMLOCK_UNKNOWN the key may
/// be in the list or not; inserting it again is safe, and may then call our own key a duplicate.
/// Thread-safe.
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

/// Ends the session for everybody, in one atomic step. MEMLOCK_NOT_FOUND when there was none, or
/// another one than this process set up. Thread-safe.
///
/// # Safety
/// `session` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn distinct_list_tear_down(session: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| bare::distinct_list_tear_down(unsafe { text(session, "session") }?))
}

/// Sets up the semaphore `name` with so many permits (1 to 4294967295), to be kept for `duration`
/// seconds (1 to 31622400) after it was used last.
///
/// Answers MEMLOCK_OK, or MEMLOCK_EXISTS when it was set up already: then its life stays as it is.
/// MEMLOCK_INVALID also when there is one with another number of permits; MEMLOCK_UNREACHABLE,
/// MEMLOCK_UNKNOWN, MEMLOCK_PROTOCOL, MEMLOCK_CONFIG. Thread-safe.
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

/// Acquires one permit of the semaphore `name`, waiting for it for as long as it takes, in the
/// order of coming.
///
/// `duration` is the longest time that it is held, in whole seconds from 1 to 31622400 (366 days):
/// after it, a dead worker's permit is available again. The permit belongs to the process: any of
/// its threads may release it. A process may acquire several, and wait for ever for one that it
/// holds itself. A child made by fork() holds nothing of its parent's.
///
/// Answers MEMLOCK_OK or MEMLOCK_INTERRUPTED; MEMLOCK_NOT_FOUND when there is no such semaphore: it
/// was never set up, has expired or was torn down; MEMLOCK_INVALID, MEMLOCK_UNREACHABLE,
/// MEMLOCK_UNKNOWN, MEMLOCK_PROTOCOL, MEMLOCK_CONFIG. Thread-safe.
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

/// As semaphore_acquire(), but does not wait: MEMLOCK_BUSY when no permit is available, or all that
/// are are being gathered for a waiter that wants several.
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

/// Releases a permit that this process acquired by semaphore_acquire(): the one that this thread
/// acquired last, or if it has none, the one that the process has had for the longest.
///
/// Answers MEMLOCK_OK, MEMLOCK_LOST when it was no longer ours, MEMLOCK_NOT_HELD when this process
/// has none. After MEMLOCK_UNREACHABLE or MEMLOCK_UNKNOWN it is still held, and may be released
/// again; else it comes back when its duration ends. Thread-safe.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn semaphore_release(name: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| bare::semaphore_release(unsafe { text(name, "name") }?))
}

/// Removes the semaphore `name` for everybody. Who holds permits finds them lost, and who waits is
/// answered MEMLOCK_NOT_FOUND.
///
/// Answers MEMLOCK_OK, MEMLOCK_NOT_FOUND when there was none, or MEMLOCK_INVALID,
/// MEMLOCK_UNREACHABLE, MEMLOCK_UNKNOWN, MEMLOCK_PROTOCOL, MEMLOCK_CONFIG. Thread-safe.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn semaphore_tear_down(name: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| bare::semaphore_tear_down(unsafe { text(name, "name") }?))
}
