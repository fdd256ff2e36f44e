//! The plain counter of free permits, for use beside programs that have one already.

use std::ffi::{c_char, c_int};

use memlock_core::{Answer, Counter, Result, Wait};

use crate::boundary::{enter, invalid, lent, limit, put, text};
use crate::client::memlock_client;
use crate::wait::memlock_wait;

/// Creates the item `key` with so many free permits, to be kept for ever.
///
/// A counter is one item of memcached, which holds the number of free permits in decimal and
/// nothing else: for use beside programs that have such an item already, with plain clients that do
/// `gets` and `cas` to take one and `incr` to give it back. **It has no leases**: what a program
/// had that died is gone until somebody writes the item anew, and whoever releases twice makes a
/// permit up. Take a memlock_semaphore wherever you are free to. Unlike other names, `key` is the
/// item's key as it is: 1 to 245 visible ASCII characters, the URL's prefix included, which stands
/// before it.
///
/// Answers MEMLOCK_OK, MEMLOCK_EXISTS when there is such an item, which is left as it is, or
/// MEMLOCK_INVALID, MEMLOCK_UNREACHABLE, MEMLOCK_UNKNOWN, MEMLOCK_PROTOCOL. Thread-safe.
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
        Ok(if counter.set_up(permits)? { Answer::Ok } else { Answer::Exists })
    })
}

/// Takes one permit if one is free. Two round trips.
///
/// Answers MEMLOCK_OK, MEMLOCK_BUSY when none is free, MEMLOCK_NOT_FOUND when there is no such
/// item, MEMLOCK_PROTOCOL also when it is not a number; MEMLOCK_INVALID; MEMLOCK_UNREACHABLE:
/// nothing was changed; MEMLOCK_UNKNOWN: sent, and no reply came, so that a permit may be gone that
/// nobody has. Thread-safe.
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

/// As memlock_counter_try(), but tries again until a permit was free or the wait ends, with pauses
/// that grow from 1 to 50 milliseconds. Nobody's turn is kept: who tries more often comes first.
///
/// `wait_ms` is how long to go on: 0 tries once (then MEMLOCK_BUSY), -1 for ever, more that long
/// (then MEMLOCK_TIMED_OUT). MEMLOCK_INTERRUPTED when `wait` was cancelled, see
/// memlock_wait_cancel(); NULL is no handle. The others as memlock_counter_try(). Thread-safe.
///
/// # Safety
/// `client` is NULL or an open client, `key` is NULL or a NUL-terminated string, `wait` is NULL or
/// a wait handle that is not closed before this call ends.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_counter_retry(
    client: *const memlock_client,
    key: *const c_char,
    wait_ms: i64,
    wait: *const memlock_wait,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let (counter, until) = unsafe { (named(client, key)?, until(client, wait_ms, wait)?) };
        Ok(counter.report(counter.acquire_retrying(&until)?, &until))
    })
}

/// As memlock_counter_retry(), but waits in a queue: those of higher `priority` first, and among
/// equals who came first. Whoever releases by memlock_counter_release(), in any process, wakes the
/// next one. Where plain clients release, those who are parked find out by themselves within a
/// second. A free permit goes to whoever is there first, so that one who retries may come before
/// one who is parked.
///
/// # Safety
/// As memlock_counter_retry().
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_counter_park(
    client: *const memlock_client,
    key: *const c_char,
    priority: i64,
    wait_ms: i64,
    wait: *const memlock_wait,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let (counter, until) = unsafe { (named(client, key)?, until(client, wait_ms, wait)?) };
        Ok(counter.report(counter.acquire_parked(priority, &until)?, &until))
    })
}

/// Gives one permit back, whoever took it, and wakes the next one who is parked. One round trip.
///
/// Answers MEMLOCK_OK, MEMLOCK_NOT_FOUND when there is no such item, or MEMLOCK_INVALID,
/// MEMLOCK_UNREACHABLE, MEMLOCK_PROTOCOL; after MEMLOCK_UNKNOWN it may or may not have been given
/// back. Thread-safe.
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

/// How many permits are free, in *available. What is read is already past. One round trip.
///
/// Answers MEMLOCK_OK, MEMLOCK_NOT_FOUND when there is no such item, MEMLOCK_PROTOCOL also when it
/// is not a number, MEMLOCK_INVALID, MEMLOCK_UNREACHABLE. Thread-safe.
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
            return Err(invalid("The argument \"available\" is NULL."));
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
/// As [`memlock_counter_retry`], and `wait` is not closed as long as what is returned is used.
unsafe fn until<'a>(
    client: *const memlock_client,
    wait_ms: i64,
    wait: *const memlock_wait,
) -> Result<Wait<'a>> {
    let until = limit(wait_ms)?;
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
