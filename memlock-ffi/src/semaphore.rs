//! Semaphores by handle.

use std::ffi::{c_char, c_int};

use memlock_core::semaphore::Status;
use memlock_core::{Answer, Mismatch, Report, Request, Result, Semaphore};

use crate::boundary::{
    enter, fixed, give, invalid, lent, limit, millis, put, quietly, take_back, text, to_millis,
};
use crate::client::memlock_client;
use crate::lock::MEMLOCK_TOKEN_SIZE;
use crate::renewal::Leased;
use crate::wait::memlock_wait;

mod permit;

pub use permit::*;

/// For memlock_semaphore_open_with(): the semaphore's number of permits applies, whatever the
/// handle was opened with. A warning is logged, once for each client, semaphore and
/// pair of numbers.
pub const MEMLOCK_MISMATCH_FOLLOW: c_int = 0;
/// The handle's number becomes the semaphore's, as by memlock_semaphore_resize().
pub const MEMLOCK_MISMATCH_RESIZE: c_int = 1;
/// The call returns MEMLOCK_INVALID.
pub const MEMLOCK_MISMATCH_REFUSE: c_int = 2;

/// A semaphore by its name. All functions may use it from any number of threads at once, and in
/// forked children.
pub struct memlock_semaphore {
    core: Semaphore,
    /// The number of the client that it was opened with.
    client: u64,
}

/// What to acquire, and with which priority. `(memlock_request){.permits = 1}` is the request of
/// memlock_semaphore_acquire() for one permit.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memlock_request {
    /// The number of permits, from 1 to all that the semaphore has. They are acquired together or
    /// not at all.
    pub permits: u32,
    /// Waiters of higher priority are served first; waiters of the same priority in FIFO order.
    pub priority: i64,
    /// 0: a waiter that was overtaken 16 times by waiters of higher priority is served next. 1: a
    /// waiter can be overtaken any number of times, so it may wait for ever.
    pub strict: c_int,
}

/// A holder of permits, as read from the server.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct memlock_holder {
    /// Identifies this acquisition.
    pub token: [c_char; MEMLOCK_TOKEN_SIZE],
    /// The holder's host, truncated to 32 characters.
    pub host: [c_char; 256],
    /// The holder's process id on that host.
    pub pid: u32,
    /// The number of permits that it holds.
    pub permits: u32,
    /// The time of the acquisition in Unix seconds, by the holder's clock.
    pub since: i64,
    /// The time until the lease expires on the server, in milliseconds.
    pub remaining_ms: i64,
}

/// Makes a handle of the semaphore `name`. A holder keeps its permits for at most `lease_ms`
/// milliseconds (1000 to 31622400000, which is 366 days), unless it extends or renews the lease.
/// Sends nothing.
///
/// `permits` is the number of permits of the semaphore (1 to 4294967295). All users of a semaphore
/// share that number: the first process that acquires sets the semaphore up with it. If the
/// semaphore has another number, that one applies, and a warning is logged;
/// memlock_semaphore_open_with() changes this, and memlock_semaphore_permits() returns the number.
/// Pass 0 to open an existing semaphore with any number of permits; while there is none, acquiring
/// returns MEMLOCK_NOT_FOUND.
///
/// Returns MEMLOCK_OK and a handle in *semaphore, to be closed by memlock_semaphore_close(), or
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
    // SAFETY: the caller's promise.
    unsafe {
        memlock_semaphore_open_with(
            client,
            name,
            permits,
            lease_ms,
            MEMLOCK_MISMATCH_FOLLOW,
            semaphore,
        )
    }
}

/// Like memlock_semaphore_open(). `mismatch` is what the handle does at its first use if the
/// semaphore has another number of permits than `permits`: MEMLOCK_MISMATCH_FOLLOW, which is what
/// memlock_semaphore_open() does, MEMLOCK_MISMATCH_RESIZE or MEMLOCK_MISMATCH_REFUSE. It has no
/// effect if `permits` is 0.
///
/// Returns the answers of memlock_semaphore_open(); MEMLOCK_INVALID also for another `mismatch`.
/// Thread-safe.
///
/// # Safety
/// As for memlock_semaphore_open().
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_semaphore_open_with(
    client: *const memlock_client,
    name: *const c_char,
    permits: u32,
    lease_ms: i64,
    mismatch: c_int,
    semaphore: *mut *mut memlock_semaphore,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        unsafe { put(semaphore, std::ptr::null_mut(), "semaphore") }?;
        // SAFETY: as above.
        let (client, name) = unsafe { (lent(client, "client")?, text(name, "name")?) };
        let (lease, mismatch) = (millis(lease_ms)?, mismatch_of(mismatch)?);
        let core = match permits {
            0 => client.core.open_semaphore(name, lease)?,
            _ => client.core.semaphore(name, permits, lease)?.with_mismatch(mismatch),
        };
        // SAFETY: as above.
        unsafe {
            put(semaphore, give(memlock_semaphore { core, client: client.number }), "semaphore")
        }?;
        Ok(Answer::Ok)
    })
}

fn mismatch_of(number: c_int) -> Result<Mismatch> {
    match number {
        MEMLOCK_MISMATCH_FOLLOW => Ok(Mismatch::Follow),
        MEMLOCK_MISMATCH_RESIZE => Ok(Mismatch::Resize),
        MEMLOCK_MISMATCH_REFUSE => Ok(Mismatch::Refuse),
        _ => Err(invalid(format!(
            "mismatch is {number}: give one of MEMLOCK_MISMATCH_FOLLOW to _REFUSE."
        ))),
    }
}

/// Closes a handle. The semaphore is not affected, nor are permits that were acquired with the
/// handle. NULL is allowed. Thread-safe, but not while a call with this handle is in progress.
///
/// # Safety
/// `semaphore` is NULL or came from memlock_semaphore_open(), and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_semaphore_close(semaphore: *mut memlock_semaphore) {
    // SAFETY: the caller's promise.
    quietly(|| drop(unsafe { take_back(semaphore) }));
}

/// Acquires `permits` permits, together or not at all.
///
/// `timeout_ms` is how long to wait for them: 0 does not wait (then MEMLOCK_BUSY or
/// MEMLOCK_RECOVERING), -1 waits without a limit, a positive value waits for that many milliseconds
/// (then MEMLOCK_TIMED_OUT). Waiters are served in FIFO order. Acquiring available permits takes
/// one round trip, or two when other processes have used the semaphore meanwhile.
///
/// Returns MEMLOCK_OK and a handle in *permit, to be released by memlock_permit_release() or
/// memlock_permit_drop(). Otherwise *permit is NULL, and the answer is one of the above, or
/// MEMLOCK_INTERRUPTED; MEMLOCK_DEADLOCK; MEMLOCK_NOT_FOUND when the handle was opened with 0 and
/// the semaphore does not exist; MEMLOCK_INVALID, also for 0 permits, for more permits than the
/// semaphore has, and, with MEMLOCK_MISMATCH_REFUSE, when the number of permits is not the one that
/// the handle was opened with; MEMLOCK_UNREACHABLE, MEMLOCK_UNKNOWN or MEMLOCK_PROTOCOL.
/// Thread-safe.
///
/// # Safety
/// `semaphore` is NULL or an open semaphore, `permit` is NULL or writable.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_semaphore_acquire(
    semaphore: *const memlock_semaphore,
    permits: u32,
    timeout_ms: i64,
    permit: *mut *mut memlock_permit,
) -> c_int {
    let request = memlock_request { permits, priority: 0, strict: 0 };
    // SAFETY: the caller's promise, a valid request, and NULL means that there is no wait handle.
    unsafe {
        memlock_semaphore_acquire_wait(
            semaphore,
            &raw const request,
            timeout_ms,
            std::ptr::null(),
            permit,
        )
    }
}

/// Like memlock_semaphore_acquire(), but acquires what `request` describes (NULL: one permit,
/// priority 0), and the wait also ends when `wait` is cancelled: see memlock_wait_cancel(). `wait`
/// may be NULL.
///
/// Returns MEMLOCK_INTERRUPTED and NULL in *permit when `wait` was cancelled; nothing is held then,
/// and no entry is left in the queue. If `wait` was cancelled before the call, nothing is sent.
/// Returns MEMLOCK_INVALID when `wait` was opened with another client than the semaphore. The other
/// answers are those of memlock_semaphore_acquire(). Thread-safe; any number of waits may share a
/// handle.
///
/// # Safety
/// `semaphore` is NULL or an open semaphore, `request` is NULL or readable, `wait` is NULL or a
/// wait handle that is not closed before this call returns, `permit` is NULL or writable.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_semaphore_acquire_wait(
    semaphore: *const memlock_semaphore,
    request: *const memlock_request,
    timeout_ms: i64,
    wait: *const memlock_wait,
    permit: *mut *mut memlock_permit,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        unsafe { put(permit, std::ptr::null_mut(), "permit") }?;
        // SAFETY: as above.
        let (semaphore, request) = unsafe { (lent(semaphore, "semaphore")?, request.as_ref()) };
        let request = request.map_or_else(
            Request::default,
            |&memlock_request { permits, priority, strict }| Request {
                permits,
                priority,
                ages: strict == 0,
            },
        );
        let mut until = limit(timeout_ms)?;
        // SAFETY: as above.
        if let Some(handle) = unsafe { wait.as_ref() } {
            until = until.unless_cancelled(handle.of(semaphore.client)?);
        }
        Ok(match semaphore.core.acquire_or_report(request, &until)? {
            Ok(guard) => {
                let handle = memlock_permit { held: Leased::new(guard), permits: request.permits };
                // SAFETY: as above.
                unsafe { put(permit, give(handle), "permit") }?;
                Answer::Ok.into()
            }
            Err(report) => report,
        })
    })
}

/// Sets the semaphore up with the number of permits that it was opened with. The semaphore expires
/// `life_ms` milliseconds (1000 to 31622400000, which is 366 days) after its last use. If this
/// function is not called, the first process that acquires sets the semaphore up, with a lifetime
/// of one day.
///
/// Returns MEMLOCK_OK, or MEMLOCK_EXISTS when the semaphore was already set up; its lifetime is
/// then unchanged, and so is its number of permits, unless the handle was opened with
/// MEMLOCK_MISMATCH_RESIZE. Returns MEMLOCK_INVALID also when the semaphore has another number of
/// permits and the handle was opened with MEMLOCK_MISMATCH_REFUSE; MEMLOCK_NOT_FOUND when there is
/// no semaphore and the handle was opened with 0; MEMLOCK_UNREACHABLE, MEMLOCK_UNKNOWN or
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
        let semaphore = &unsafe { lent(semaphore, "semaphore") }?.core;
        Ok(semaphore.report_set_up(semaphore.set_up(millis(life_ms)?)?))
    })
}

/// Removes the semaphore for all processes. Holders lose their permits. Waiters whose handle was
/// opened with 0 get MEMLOCK_NOT_FOUND. The handle must still be closed.
///
/// Returns MEMLOCK_OK, MEMLOCK_NOT_FOUND when there was no semaphore, or MEMLOCK_INVALID,
/// MEMLOCK_UNREACHABLE, MEMLOCK_UNKNOWN or MEMLOCK_PROTOCOL. Thread-safe.
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

/// Changes the number of permits (1 to 4294967295) for all processes. The new number may be lower
/// than the number of held permits: no holder loses any, and no permit is granted until enough were
/// released.
///
/// Returns MEMLOCK_OK, MEMLOCK_NOT_FOUND when there is no such semaphore, or MEMLOCK_INVALID,
/// MEMLOCK_UNREACHABLE, MEMLOCK_UNKNOWN or MEMLOCK_PROTOCOL. Thread-safe.
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

/// Stores the number of permits of the semaphore, held or not, in *permits: all users share it, so
/// it may not be the number that the handle was opened with. A snapshot. One round trip.
///
/// Returns the answers of memlock_semaphore_available(). Thread-safe.
///
/// # Safety
/// `semaphore` is NULL or an open semaphore, `permits` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_semaphore_permits(
    semaphore: *const memlock_semaphore,
    permits: *mut u32,
) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| unsafe { put_status(semaphore, permits, "permits", |status| status.permits) })
}

/// Stores the number of permits that no process holds in *available. The number is a snapshot, for
/// diagnostics and not for decisions. One round trip.
///
/// Returns MEMLOCK_OK; MEMLOCK_NOT_FOUND when there is no such semaphore, because it was not set up
/// and not acquired yet, was torn down, or has expired; MEMLOCK_INVALID, MEMLOCK_UNREACHABLE or
/// MEMLOCK_PROTOCOL. Thread-safe.
///
/// # Safety
/// `semaphore` is NULL or an open semaphore, `available` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_semaphore_available(
    semaphore: *const memlock_semaphore,
    available: *mut u32,
) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| unsafe { put_status(semaphore, available, "available", |status| status.available) })
}

/// Reads the semaphore's state, and stores what `of` makes of it.
///
/// # Safety
/// `semaphore` is NULL or an open semaphore, `place` is NULL or writable.
unsafe fn put_status(
    semaphore: *const memlock_semaphore,
    place: *mut u32,
    argument: &str,
    of: impl FnOnce(Status) -> u32,
) -> Result<Report> {
    if place.is_null() {
        return Err(invalid(format!("The argument \"{argument}\" is NULL: pass a valid pointer.")));
    }
    // SAFETY: the caller's promise.
    let semaphore = &unsafe { lent(semaphore, "semaphore") }?.core;
    let Some(status) = semaphore.status()? else { return Ok(semaphore.report_not_found()) };
    // SAFETY: as above.
    unsafe { put(place, of(status), argument) }?;
    Ok(Answer::Ok.into())
}

/// Stores the number of holders in *count, and the first `capacity` of them in `holders`, which may
/// be NULL if `capacity` is 0. The result is a snapshot, for diagnostics and not for decisions. One
/// round trip.
///
/// Returns the answers of memlock_semaphore_available(). Thread-safe.
///
/// # Safety
/// `semaphore` is NULL or an open semaphore, `holders` is NULL or has space for `capacity` entries,
/// `count` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_semaphore_holders(
    semaphore: *const memlock_semaphore,
    holders: *mut memlock_holder,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    enter(|| {
        if count.is_null() {
            return Err(invalid("The argument \"count\" is NULL: pass a valid pointer."));
        }
        if capacity > 0 && holders.is_null() {
            return Err(invalid(
                "The argument \"holders\" is NULL: pass a valid pointer, or 0 for \"capacity\".",
            ));
        }
        // SAFETY: the caller's promise.
        let semaphore = &unsafe { lent(semaphore, "semaphore") }?.core;
        let Some(status) = semaphore.status()? else { return Ok(semaphore.report_not_found()) };
        for (index, holder) in status.holders.iter().take(capacity).enumerate() {
            let entry = memlock_holder {
                token: fixed(&holder.token.to_string()),
                host: fixed(&holder.host),
                pid: holder.pid,
                permits: holder.permits,
                since: i64::try_from(holder.since).unwrap_or(i64::MAX),
                remaining_ms: to_millis(holder.remaining),
            };
            // SAFETY: not NULL, since `capacity` is not 0, and there is space for this entry by the
            // caller's promise.
            unsafe { holders.add(index).write(entry) };
        }
        // SAFETY: the caller's promise.
        unsafe { put(count, status.holders.len(), "count") }?;
        Ok(Answer::Ok.into())
    })
}
