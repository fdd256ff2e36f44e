//! The semaphore by handle.

use std::ffi::{c_char, c_int};

use memlock_core::{Answer, Request, Semaphore};

use crate::boundary::{
    enter, fixed, give, invalid, lent, limit, millis, put, quietly, take_back, text, to_millis,
};
use crate::client::memlock_client;
use crate::lock::MEMLOCK_TOKEN_SIZE;
use crate::renewal::Hold;
use crate::wait::memlock_wait;

mod permit;

pub use permit::*;

/// A semaphore by its name. It may be used from any number of threads at once, and in forked
/// children.
pub struct memlock_semaphore {
    core: Semaphore,
    /// The number of the client that it was opened with.
    client: u64,
}

/// What to acquire, and in which order with others. `(memlock_request){.permits = 1}` is what
/// memlock_semaphore_acquire() asks for.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memlock_request {
    /// How many permits, from 1 to all that there are: together or not at all.
    pub permits: u32,
    /// Waiters of higher priority come first; among equals whoever came first.
    pub priority: i64,
    /// 0: a waiter that was overtaken 16 times by others of higher priority comes next. 1: it never
    /// does, so that it may wait for ever.
    pub strict: c_int,
}

/// Who was seen to hold permits.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memlock_holder {
    /// Names this acquisition.
    pub token: [c_char; MEMLOCK_TOKEN_SIZE],
    /// The holder's host, cut at 32 characters.
    pub host: [c_char; 256],
    /// The holder's process id on that host.
    pub pid: u32,
    /// How many permits it holds.
    pub permits: u32,
    /// When it acquired them, in Unix seconds of its own clock.
    pub since: i64,
    /// How long the server keeps them for it yet, in milliseconds.
    pub remaining_ms: i64,
}

/// Makes a handle on the semaphore `name`, of which a holder keeps what it acquires for at most
/// `lease_ms` (1000 to 31622400000, which is 366 days) unless it extends it. Nothing is sent.
///
/// `permits` is how many permits it has (1 to 4294967295), and part of what all share: the first
/// one to acquire sets it up with as many, and whoever opens it with another number gets
/// MEMLOCK_INVALID at the first use. 0: however many it has; then somebody else is to set it up,
/// and until then acquiring answers MEMLOCK_NOT_FOUND.
///
/// Answers MEMLOCK_OK and a handle in *semaphore, to be given back by memlock_semaphore_close(); or
/// MEMLOCK_INVALID and NULL in *semaphore. Thread-safe.
///
/// # Safety
/// `client` is NULL or an open client, `name` is NULL or a NUL-terminated string, `semaphore` is
/// NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_semaphore_open(
    client: *const memlock_client,
    name: *const c_char,
    permits: u32,
    lease_ms: i64,
    semaphore: *mut *mut memlock_semaphore,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        unsafe { put(semaphore, std::ptr::null_mut(), "semaphore") }?;
        // SAFETY: as above.
        let (client, name) = unsafe { (lent(client, "client")?, text(name, "name")?) };
        let lease = millis(lease_ms)?;
        let core = match permits {
            0 => client.core.open_semaphore(name, lease)?,
            _ => client.core.semaphore(name, permits, lease)?,
        };
        // SAFETY: as above.
        unsafe {
            put(semaphore, give(memlock_semaphore { core, client: client.number }), "semaphore")
        }?;
        Ok(Answer::Ok)
    })
}

/// Gives a handle back. The semaphore goes on, and so do permits that were acquired with the
/// handle. NULL is allowed. Thread-safe, but not while a call with this handle goes on.
///
/// # Safety
/// `semaphore` is NULL or came from memlock_semaphore_open() and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_semaphore_close(semaphore: *mut memlock_semaphore) {
    // SAFETY: the caller's promise.
    quietly(|| drop(unsafe { take_back(semaphore) }));
}

/// Acquires `permits` permits, together or not at all.
///
/// `wait_ms` is how long to wait for them: 0 does not wait (then MEMLOCK_BUSY), -1 waits for ever,
/// more waits that long (then MEMLOCK_TIMED_OUT). Who waits is served in the order of coming. Where
/// they are available this takes one round trip, or two when others have used the semaphore
/// meanwhile.
///
/// Answers MEMLOCK_OK and a handle in *permit, to be given back by memlock_permit_release(); or one
/// of those, or MEMLOCK_INTERRUPTED; MEMLOCK_NOT_FOUND when the handle was opened without a number
/// and nobody has set the semaphore up; MEMLOCK_INVALID, also for 0 permits, for more than there
/// are, and when there are not as many as the handle was opened with; MEMLOCK_UNREACHABLE,
/// MEMLOCK_UNKNOWN, MEMLOCK_PROTOCOL; and NULL in *permit. Thread-safe.
///
/// # Safety
/// `semaphore` is NULL or an open semaphore, `permit` is NULL or writable.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_semaphore_acquire(
    semaphore: *const memlock_semaphore,
    permits: u32,
    wait_ms: i64,
    permit: *mut *mut memlock_permit,
) -> c_int {
    let request = memlock_request { permits, priority: 0, strict: 0 };
    // SAFETY: the caller's promise, a request of our own, and NULL is no handle.
    unsafe {
        memlock_semaphore_acquire_wait(
            semaphore,
            &raw const request,
            wait_ms,
            std::ptr::null(),
            permit,
        )
    }
}

/// As memlock_semaphore_acquire(), but acquires what `request` says (NULL: one permit of priority
/// 0), and the wait ends when `wait` is cancelled: see memlock_wait_cancel(). NULL is no handle.
///
/// Answers as memlock_semaphore_acquire(): MEMLOCK_INTERRUPTED and NULL in *permit when `wait` was
/// cancelled; then nothing is held, and nothing of ours is in the queue. If that was before the
/// call, nothing is sent. MEMLOCK_INVALID when `wait` was opened with another client than the
/// semaphore. Thread-safe, and any number of waits may share a handle.
///
/// # Safety
/// `semaphore` is NULL or an open semaphore, `request` is NULL or readable, `wait` is NULL or a
/// wait handle that is not closed before this call ends, `permit` is NULL or writable.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_semaphore_acquire_wait(
    semaphore: *const memlock_semaphore,
    request: *const memlock_request,
    wait_ms: i64,
    wait: *const memlock_wait,
    permit: *mut *mut memlock_permit,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        unsafe { put(permit, std::ptr::null_mut(), "permit") }?;
        // SAFETY: as above.
        let (semaphore, wanted) = unsafe { (lent(semaphore, "semaphore")?, request.as_ref()) };
        let wanted = wanted.map_or_else(
            Request::default,
            |&memlock_request { permits, priority, strict }| Request {
                permits,
                priority,
                ages: strict == 0,
            },
        );
        let mut until = limit(wait_ms)?;
        // SAFETY: as above.
        if let Some(handle) = unsafe { wait.as_ref() } {
            until = until.unless_cancelled(handle.of(semaphore.client)?);
        }
        Ok(match semaphore.core.acquire_or_report(wanted, &until)? {
            Ok(held) => {
                let held = memlock_permit { hold: Hold::new(held), permits: wanted.permits };
                // SAFETY: as above.
                unsafe { put(permit, give(held), "permit") }?;
                Answer::Ok.into()
            }
            Err(report) => report,
        })
    })
}

/// Sets the semaphore up with the number of permits that it was opened with, to be kept for
/// `life_ms` (1000 to 31622400000, which is 366 days) after it was used last. Where nobody does,
/// the first to acquire sets it up, to be kept for a day.
///
/// Answers MEMLOCK_OK, or MEMLOCK_EXISTS when it was set up already: then its life stays as it is.
/// MEMLOCK_INVALID also when there is one with another number of permits; MEMLOCK_NOT_FOUND when
/// there is none and the handle was opened without a number; MEMLOCK_UNREACHABLE, MEMLOCK_UNKNOWN,
/// MEMLOCK_PROTOCOL. Thread-safe.
///
/// # Safety
/// `semaphore` is NULL or an open semaphore.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_semaphore_set_up(
    semaphore: *const memlock_semaphore,
    life_ms: i64,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let set_up = unsafe { lent(semaphore, "semaphore") }?.core.set_up(millis(life_ms)?)?;
        Ok(Answer::from(set_up))
    })
}

/// Removes the semaphore for everybody. Who holds permits finds them lost; who waits, and opened it
/// without a number, is answered MEMLOCK_NOT_FOUND. The handle stays, to be closed.
///
/// Answers MEMLOCK_OK, MEMLOCK_NOT_FOUND when there was none, or MEMLOCK_INVALID,
/// MEMLOCK_UNREACHABLE, MEMLOCK_UNKNOWN, MEMLOCK_PROTOCOL. Thread-safe.
///
/// # Safety
/// `semaphore` is NULL or an open semaphore.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_semaphore_tear_down(
    semaphore: *const memlock_semaphore,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let semaphore = &unsafe { lent(semaphore, "semaphore") }?.core;
        Ok(if semaphore.tear_down()? { Answer::Ok.into() } else { semaphore.report_not_found() })
    })
}

/// Changes how many permits there are (1 to 4294967295), for everybody. Fewer than are held is
/// allowed: nobody loses any, and no more are given until enough came back. A handle that is opened
/// afterwards has to be opened with the new number.
///
/// Answers MEMLOCK_OK, MEMLOCK_NOT_FOUND when there is no such semaphore, or MEMLOCK_INVALID,
/// MEMLOCK_UNREACHABLE, MEMLOCK_UNKNOWN, MEMLOCK_PROTOCOL. Thread-safe.
///
/// # Safety
/// `semaphore` is NULL or an open semaphore.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_semaphore_resize(
    semaphore: *const memlock_semaphore,
    permits: u32,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let semaphore = &unsafe { lent(semaphore, "semaphore") }?.core;
        let before = semaphore.resize(permits)?;
        Ok(if before.is_some() { Answer::Ok.into() } else { semaphore.report_not_found() })
    })
}

/// How many permits nobody holds, in *available: what is read is already past, so it is for people,
/// not for decisions. One round trip.
///
/// Answers MEMLOCK_OK; MEMLOCK_NOT_FOUND when there is no such semaphore, because nobody has set it
/// up or acquired of it yet, or it was torn down or is over; MEMLOCK_INVALID, MEMLOCK_UNREACHABLE,
/// MEMLOCK_PROTOCOL. Thread-safe.
///
/// # Safety
/// `semaphore` is NULL or an open semaphore, `available` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_semaphore_available(
    semaphore: *const memlock_semaphore,
    available: *mut u32,
) -> c_int {
    enter(|| {
        if available.is_null() {
            return Err(invalid("The argument \"available\" is NULL."));
        }
        // SAFETY: the caller's promise.
        let semaphore = &unsafe { lent(semaphore, "semaphore") }?.core;
        let Some(status) = semaphore.status()? else { return Ok(semaphore.report_not_found()) };
        // SAFETY: the caller's promise.
        unsafe { put(available, status.available, "available") }?;
        Ok(Answer::Ok.into())
    })
}

/// Who holds permits: how many holders there are in *count, and the first `room` of them in
/// `holders`, which may be NULL where `room` is 0. What is read is already past: it is for people,
/// not for decisions. One round trip.
///
/// Answers as memlock_semaphore_available(). Thread-safe.
///
/// # Safety
/// `semaphore` is NULL or an open semaphore, `holders` is NULL or has room for `room` entries,
/// `count` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_semaphore_holders(
    semaphore: *const memlock_semaphore,
    holders: *mut memlock_holder,
    room: usize,
    count: *mut usize,
) -> c_int {
    enter(|| {
        if count.is_null() {
            return Err(invalid("The argument \"count\" is NULL."));
        }
        if room > 0 && holders.is_null() {
            return Err(invalid("The argument \"holders\" is NULL."));
        }
        // SAFETY: the caller's promise.
        let semaphore = &unsafe { lent(semaphore, "semaphore") }?.core;
        let Some(status) = semaphore.status()? else { return Ok(semaphore.report_not_found()) };
        for (place, holder) in status.holders.iter().take(room).enumerate() {
            let known = memlock_holder {
                token: fixed(&holder.token.to_string()),
                host: fixed(&holder.host),
                pid: holder.pid,
                permits: holder.permits,
                since: i64::try_from(holder.since).unwrap_or(i64::MAX),
                remaining_ms: to_millis(holder.remaining),
            };
            // SAFETY: not NULL, since `room` is not 0, and there is room for so many by the
            // caller's promise.
            unsafe { holders.add(place).write(known) };
        }
        // SAFETY: the caller's promise.
        unsafe { put(count, status.holders.len(), "count") }?;
        Ok(Answer::Ok.into())
    })
}
