//! The plain counter of free permits, for programs that share one with other memcached clients.

use std::ffi::{c_char, c_int};

use memlock_core::{Answer, Counter, Result, Wait};

use crate::boundary::{enter, invalid, lent, limit, put, text};
use crate::client::memlock_client;
use crate::wait::memlock_wait;

/// Creates the item `key` with the given number of free permits. The item never expires.
///
/// A counter is one memcached item that contains the number of free permits in decimal and nothing
/// else. It is meant for use beside programs that already have such an item, and whose plain
/// clients acquire by `gets` and `cas` and release by `incr`. **It has no leases**: the permits of
/// a program that died are lost until the item is written anew, and a program that releases twice
/// creates a permit. Prefer a memlock_semaphore where you can. Unlike other names, `key` is the key
/// of the item itself: 1 to 245 visible ASCII characters, including the prefix from the URL, which
/// is prepended.
///
/// Returns MEMLOCK_OK, MEMLOCK_EXISTS when there is already such an item, which stays unchanged, or
/// MEMLOCK_INVALID, MEMLOCK_UNREACHABLE, MEMLOCK_UNKNOWN or MEMLOCK_PROTOCOL. Thread-safe.
///
/// # Safety
/// `client` is NULL or an open client, `key` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_counter_set_up(
    client: *const memlock_client,
    key: *const c_char,
    permits: u64,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let counter = unsafe { named(client, key) }?;
        Ok(if counter.set_up(permits)? { Answer::Ok.into() } else { counter.report_exists() })
    })
}

/// Acquires one permit if one is free. Two round trips.
///
/// Returns MEMLOCK_OK; MEMLOCK_BUSY when no permit is free; MEMLOCK_NOT_FOUND when there is no such
/// item; MEMLOCK_PROTOCOL also when the item is not a number; MEMLOCK_INVALID; MEMLOCK_UNREACHABLE:
/// nothing was changed; MEMLOCK_UNKNOWN: the request was sent and no reply arrived, so a permit may
/// have been taken that no caller holds. Thread-safe.
///
/// # Safety
/// `client` is NULL or an open client, `key` is NULL or a NUL-terminated string.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_counter_try(
    client: *const memlock_client,
    key: *const c_char,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let counter = unsafe { named(client, key) }?;
        Ok(counter.report(counter.acquire_retrying(&Wait::NEVER)?, &Wait::NEVER))
    })
}

/// Like memlock_counter_try(), but retries until a permit was free or the wait ends, with pauses
/// that grow from 1 to 50 milliseconds. There is no queue and no fairness: callers that retry more
/// often are more likely to succeed.
///
/// `timeout_ms` is how long to retry: 0 tries once (then MEMLOCK_BUSY), -1 retries without a limit,
/// a positive value for that many milliseconds (then MEMLOCK_TIMED_OUT). Returns
/// MEMLOCK_INTERRUPTED when `wait` was cancelled, see memlock_wait_cancel(); `wait` may be NULL.
/// The other answers are those of memlock_counter_try(). Thread-safe.
///
/// # Safety
/// `client` is NULL or an open client, `key` is NULL or a NUL-terminated string, `wait` is NULL or
/// a wait handle that is not closed before this call returns.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_counter_retry(
    client: *const memlock_client,
    key: *const c_char,
    timeout_ms: i64,
    wait: *const memlock_wait,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let (counter, until) = unsafe { (named(client, key)?, until(client, timeout_ms, wait)?) };
        Ok(counter.report(counter.acquire_retrying(&until)?, &until))
    })
}

/// Like memlock_counter_retry(), but waits in a queue, in the order of `priority`, higher first,
/// and of arrival among equals. memlock_counter_release(), in any process, wakes the first waiter.
/// Where plain clients release, queued waiters notice within one second. A free permit goes to the
/// first caller that takes it, so a caller that retries may overtake the queue.
///
/// # Safety
/// As memlock_counter_retry().
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_counter_park(
    client: *const memlock_client,
    key: *const c_char,
    priority: i64,
    timeout_ms: i64,
    wait: *const memlock_wait,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let (counter, until) = unsafe { (named(client, key)?, until(client, timeout_ms, wait)?) };
        Ok(counter.report(counter.acquire_parked(priority, &until)?, &until))
    })
}

/// Releases one permit, whichever process acquired it, and wakes the first waiter in the queue. One
/// round trip.
///
/// Returns MEMLOCK_OK, MEMLOCK_NOT_FOUND when there is no such item, or MEMLOCK_INVALID,
/// MEMLOCK_UNREACHABLE or MEMLOCK_PROTOCOL. After MEMLOCK_UNKNOWN the permit may or may not have
/// been released. Thread-safe.
///
/// # Safety
/// `client` is NULL or an open client, `key` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_counter_release(
    client: *const memlock_client,
    key: *const c_char,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        unsafe { named(client, key) }?.release()?;
        Ok(Answer::Ok)
    })
}

/// Stores the number of free permits in *available. The number is a snapshot. One round trip.
///
/// Returns MEMLOCK_OK, MEMLOCK_NOT_FOUND when there is no such item, MEMLOCK_PROTOCOL also when the
/// item is not a number, MEMLOCK_INVALID or MEMLOCK_UNREACHABLE. Thread-safe.
///
/// # Safety
/// `client` is NULL or an open client, `key` is NULL or a NUL-terminated string, `available` is
/// NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_counter_available(
    client: *const memlock_client,
    key: *const c_char,
    available: *mut u64,
) -> c_int {
    enter(|| {
        if available.is_null() {
            return Err(invalid("The argument \"available\" is NULL: pass a valid pointer."));
        }
        // SAFETY: the caller's promise.
        let counter = unsafe { named(client, key) }?;
        let Some(free) = counter.available()? else { return Ok(counter.report_not_found()) };
        // SAFETY: the caller's promise.
        unsafe { put(available, free, "available") }?;
        Ok(Answer::Ok.into())
    })
}

/// # Safety
/// As [`memlock_counter_try`].
unsafe fn named(client: *const memlock_client, key: *const c_char) -> Result<Counter> {
    // SAFETY: the caller's promise.
    let (client, key) = unsafe { (lent(client, "client")?, text(key, "key")?) };
    client.core.counter(key)
}

/// # Safety
/// As [`memlock_counter_retry`], and `wait` is not closed while the returned value is in use.
unsafe fn until<'a>(
    client: *const memlock_client,
    timeout_ms: i64,
    wait: *const memlock_wait,
) -> Result<Wait<'a>> {
    let until = limit(timeout_ms)?;
    // SAFETY: the caller's promise.
    Ok(match unsafe { wait.as_ref() } {
        Some(handle) => {
            // SAFETY: as above.
            let client = unsafe { lent(client, "client") }?;
            until.unless_cancelled(handle.of(client.number)?)
        }
        None => until,
    })
}
