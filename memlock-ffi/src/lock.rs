//! The mutex by handle.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use memlock_core::{Answer, Extension, Lock, Release, Waited};

use crate::boundary::{
    enter, fixed, give, invalid, lent, lent_mut, limit, millis, put, take_back, text, to_millis,
};
use crate::client::memlock_client;
use crate::wait::memlock_wait;

/// A mutex that is held. Use it from one thread at a time; reading its fence and its remaining time is allowed
/// from several.
pub struct memlock_lock(pub(crate) Lock);

/// The room for a token, its NUL included.
pub const MEMLOCK_TOKEN_SIZE: usize = 80;

/// Who was seen to hold a mutex.
#[repr(C)]
pub struct memlock_owner {
    /// Names this acquisition: for memlock_mutex_force_unlock().
    pub token: [c_char; MEMLOCK_TOKEN_SIZE],
    /// The holder's host, cut to fit; empty when a plain memcached client holds it.
    pub host: [c_char; 256],
    /// The holder's process id on that host; 0 when a plain memcached client holds it.
    pub pid: u32,
    /// When it was acquired, in Unix seconds of the holder's own clock; 0 when a plain client holds it.
    pub since: i64,
    /// How long the server keeps it yet, in milliseconds; -1: for ever.
    pub remaining_ms: i64,
}

/// Locks the mutex `name` for at most `lease_ms` (1000 to 31622400000, which is 366 days).
///
/// `wait_ms` is how long to wait for it: 0 does not wait (then MEMLOCK_BUSY), -1 waits for ever, more waits
/// that long (then MEMLOCK_TIMED_OUT). A free mutex is taken in one round trip.
///
/// Answers MEMLOCK_OK and a handle in *lock, to be given back by memlock_unlock(); or one of those, or
/// MEMLOCK_INTERRUPTED, MEMLOCK_INVALID, MEMLOCK_UNREACHABLE, MEMLOCK_UNKNOWN, MEMLOCK_PROTOCOL, and NULL in
/// *lock. Thread-safe.
///
/// # Safety
/// `client` is NULL or an open client, `name` is NULL or a NUL-terminated string, `lock` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlock_mutex_lock(
    client: *const memlock_client,
    name: *const c_char,
    lease_ms: i64,
    wait_ms: i64,
    lock: *mut *mut memlock_lock,
) -> c_int {
    // SAFETY: the caller's promise, and NULL is no handle.
    unsafe { memlock_mutex_lock_wait(client, name, lease_ms, wait_ms, std::ptr::null(), lock) }
}

/// As memlock_mutex_lock(), but the wait ends when `wait` is cancelled: see memlock_wait_cancel(). NULL is no
/// handle, and then it is memlock_mutex_lock().
///
/// Answers as memlock_mutex_lock(): MEMLOCK_INTERRUPTED and NULL in *lock when `wait` was cancelled; then
/// nothing is held, and nothing of ours is in the queue. If that was before the call, nothing is sent, whether
/// the mutex is free or not. MEMLOCK_INVALID when `wait` was opened with another client than this one.
/// Thread-safe, and any number of waits may share a handle.
///
/// # Safety
/// `client` is NULL or an open client, `name` is NULL or a NUL-terminated string, `wait` is NULL or a wait
/// handle that is not closed before this call ends, `lock` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlock_mutex_lock_wait(
    client: *const memlock_client,
    name: *const c_char,
    lease_ms: i64,
    wait_ms: i64,
    wait: *const memlock_wait,
    lock: *mut *mut memlock_lock,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        unsafe { put(lock, std::ptr::null_mut(), "lock") }?;
        // SAFETY: as above.
        let (client, name) = unsafe { (lent(client, "client")?, text(name, "name")?) };
        let mutex = client.core.mutex(name, millis(lease_ms)?)?;
        let mut until = limit(wait_ms)?;
        // SAFETY: as above.
        if let Some(handle) = unsafe { wait.as_ref() } {
            until = until.unless_cancelled(handle.of(client.number)?);
        }
        Ok(match mutex.lock_with(&until)? {
            Waited::Done(held) => {
                // SAFETY: as above.
                unsafe { put(lock, give(memlock_lock(held)), "lock") }?;
                Answer::Ok
            }
            Waited::Busy => Answer::Busy,
            Waited::TimedOut => Answer::TimedOut,
            Waited::Interrupted => Answer::Interrupted,
        })
    })
}

/// Unlocks, in one round trip, and only if it is still ours. The handle is gone afterwards, **whatever is
/// answered**: MEMLOCK_OK; MEMLOCK_LOST when it was no longer ours; MEMLOCK_NOT_HELD in a child made by fork;
/// after MEMLOCK_UNREACHABLE or MEMLOCK_UNKNOWN the lock is taken off at the client's next contact with the
/// server, or ends with its lease.
///
/// # Safety
/// `lock` is NULL or came from memlock_mutex_lock() or memlock_mutex_lock_wait(), and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlock_unlock(lock: *mut memlock_lock) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let Some(mut lock) = (unsafe { take_back(lock) }) else {
            return Err(invalid("The argument \"lock\" is NULL."));
        };
        match lock.0.unlock() {
            Ok(Release::Released) => Ok(Answer::Ok),
            Ok(Release::Lost) => Ok(Answer::Lost),
            Ok(Release::NotHeld) => Ok(Answer::NotHeld),
            Err(error) => {
                lock.0.abandon();
                Err(error)
            }
        }
    })
}

/// Gives the lock a new lease, counted from now, if it is still ours: MEMLOCK_OK or MEMLOCK_LOST, and
/// MEMLOCK_NOT_HELD in a child made by fork. The fence stays. MEMLOCK_INVALID for a lease out of range changes
/// nothing. After MEMLOCK_UNREACHABLE the old lease runs on; after MEMLOCK_UNKNOWN count on the shorter of the
/// two, as memlock_lock_remaining_ms() does.
///
/// # Safety
/// `lock` is NULL or a lock that is held, used by nobody else during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlock_lock_extend(lock: *mut memlock_lock, lease_ms: i64) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let lock = unsafe { lent_mut(lock, "lock") }?;
        Ok(match lock.0.extend(millis(lease_ms)?)? {
            Extension::Extended => Answer::Ok,
            Extension::Lost => Answer::Lost,
            Extension::NotHeld => Answer::NotHeld,
        })
    })
}

/// How long the lock is certainly ours yet, in milliseconds; 0 when it is not. No I/O.
///
/// # Safety
/// `lock` is NULL or a lock that is held; `remaining_ms` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlock_lock_remaining_ms(
    lock: *const memlock_lock,
    remaining_ms: *mut i64,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let remaining = unsafe { lent(lock, "lock") }?.0.remaining();
        // SAFETY: the caller's promise.
        unsafe { put(remaining_ms, to_millis(remaining), "remaining_ms") }?;
        Ok(Answer::Ok)
    })
}

/// The fencing token: greater than that of every earlier holder of this mutex. Hand it to the resource, which
/// refuses anything below the greatest it has seen. No I/O.
///
/// # Safety
/// `lock` is NULL or a lock that is held; `fence` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlock_lock_fence(lock: *const memlock_lock, fence: *mut u64) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let number = unsafe { lent(lock, "lock") }?.0.fence();
        // SAFETY: the caller's promise.
        unsafe { put(fence, number, "fence") }?;
        Ok(Answer::Ok)
    })
}

/// Who holds the mutex `name`: MEMLOCK_BUSY and *owner when somebody does, MEMLOCK_NOT_HELD when nobody does.
/// What is read is already past: it is for people, not for decisions. *owner is written only with MEMLOCK_BUSY. One
/// round trip.
///
/// # Safety
/// `client` is NULL or an open client, `name` is NULL or a NUL-terminated string, `owner` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlock_mutex_owner(
    client: *const memlock_client,
    name: *const c_char,
    owner: *mut memlock_owner,
) -> c_int {
    enter(|| {
        if owner.is_null() {
            return Err(invalid("The argument \"owner\" is NULL."));
        }
        // SAFETY: the caller's promise.
        let (client, name) = unsafe { (lent(client, "client")?, text(name, "name")?) };
        // The lease does not matter for looking.
        let Some(seen) = client.core.mutex(name, Duration::from_secs(1))?.owner()? else {
            return Ok(Answer::NotHeld);
        };
        let record = seen.record.as_ref();
        let known = memlock_owner {
            token: fixed(&seen.token()),
            host: fixed(record.map_or("", |record| &record.host)),
            pid: record.map_or(0, |record| record.pid),
            since: record.map_or(0, |record| i64::try_from(record.since).unwrap_or(i64::MAX)),
            remaining_ms: seen.remaining.map_or(-1, to_millis),
        };
        // SAFETY: the caller's promise.
        unsafe { put(owner, known, "owner") }?;
        Ok(Answer::Busy)
    })
}

/// Takes the mutex `name` away from the acquisition that memlock_mutex_owner() named by `token`: for operators
/// who know that its holder is dead. MEMLOCK_OK, or MEMLOCK_NOT_HELD when that acquisition does not hold it any
/// more. A later holder is never touched.
///
/// # Safety
/// `client` is NULL or an open client; `name` and `token` are NULL or NUL-terminated strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlock_mutex_force_unlock(
    client: *const memlock_client,
    name: *const c_char,
    token: *const c_char,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let (client, name, token) =
            unsafe { (lent(client, "client")?, text(name, "name")?, text(token, "token")?) };
        let mutex = client.core.mutex(name, Duration::from_secs(1))?;
        let taken = mutex.force_unlock(&String::from_utf8_lossy(token))?;
        Ok(if taken { Answer::Ok } else { Answer::NotHeld })
    })
}
