//! The mutex by handle.

use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

use memlock_core::{Answer, Lock};

use crate::boundary::{
    enter, fixed, give, invalid, lent, lent_mut, limit, millis, put, quietly, span, take_back,
    text, to_millis,
};
use crate::client::memlock_client;
use crate::renewal::{Hold, memlock_renewal_callback, number};
use crate::wait::memlock_wait;

/// A mutex that is held. Use it from one thread at a time; reading its fence and its remaining time
/// is allowed from several, and more when it is kept: see memlock_lock_renew().
pub struct memlock_lock {
    hold: Hold<Lock>,
    fence: u64,
}

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
    /// When it was acquired, in Unix seconds of the holder's own clock; 0 when a plain client holds
    /// it.
    pub since: i64,
    /// How long the server keeps it yet, in milliseconds; -1: for ever.
    pub remaining_ms: i64,
}

/// Locks the mutex `name` for at most `lease_ms` (1000 to 31622400000, which is 366 days).
///
/// `wait_ms` is how long to wait for it: 0 does not wait (then MEMLOCK_BUSY), -1 waits for ever,
/// more waits that long (then MEMLOCK_TIMED_OUT). A free mutex is taken in one round trip.
///
/// Answers MEMLOCK_OK and a handle in *lock, to be given back by memlock_unlock(); or one of those,
/// or MEMLOCK_INTERRUPTED, MEMLOCK_INVALID, MEMLOCK_UNREACHABLE, MEMLOCK_UNKNOWN, MEMLOCK_PROTOCOL,
/// and NULL in *lock. Thread-safe.
///
/// # Safety
/// `client` is NULL or an open client, `name` is NULL or a NUL-terminated string, `lock` is NULL or
/// writable.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_mutex_lock(
    client: *const memlock_client,
    name: *const c_char,
    lease_ms: i64,
    wait_ms: i64,
    lock: *mut *mut memlock_lock,
) -> c_int {
    // SAFETY: the caller's promise, and NULL is no handle.
    unsafe { memlock_mutex_lock_wait(client, name, lease_ms, wait_ms, std::ptr::null(), lock) }
}

/// As memlock_mutex_lock(), but the wait ends when `wait` is cancelled: see memlock_wait_cancel().
/// NULL is no handle, and then it is memlock_mutex_lock().
///
/// Answers as memlock_mutex_lock(): MEMLOCK_INTERRUPTED and NULL in *lock when `wait` was
/// cancelled; then nothing is held, and nothing of ours is in the queue. If that was before the
/// call, nothing is sent, whether the mutex is free or not. MEMLOCK_INVALID when `wait` was opened
/// with another client than this one. Thread-safe, and any number of waits may share a handle.
///
/// # Safety
/// `client` is NULL or an open client, `name` is NULL or a NUL-terminated string, `wait` is NULL or
/// a wait handle that is not closed before this call ends, `lock` is NULL or writable.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_mutex_lock_wait(
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
        match mutex.lock_or_report(&until) {
            Ok(Ok(held)) => {
                let (fence, hold) = (held.fence(), Hold::new(held));
                // SAFETY: as above.
                unsafe { put(lock, give(memlock_lock { hold, fence }), "lock") }?;
                Ok(Answer::Ok.into())
            }
            Ok(Err(report)) => Ok(report),
            Err(error) => Err(error),
        }
    })
}

/// Unlocks, in one round trip, and only if it is still ours. The handle is gone afterwards,
/// **whatever is answered**: MEMLOCK_OK; MEMLOCK_LOST when it was no longer ours; MEMLOCK_NOT_HELD
/// in a child made by fork; after MEMLOCK_UNREACHABLE or MEMLOCK_UNKNOWN the lock is taken off at
/// the client's next contact with the server, or ends with its lease.
///
/// # Safety
/// `lock` is NULL or came from memlock_mutex_lock() or memlock_mutex_lock_wait(), and is not used
/// any more.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_unlock(lock: *mut memlock_lock) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise. A callback may read the handle until it is kept no longer.
        let kept = unsafe { lent(lock, "lock") }?.hold.end_keeping();
        // SAFETY: the caller's promise.
        let lock = unsafe { take_back(lock) };
        lock.map_or(Ok(Answer::NotHeld.into()), |lock| lock.hold.end(kept))
    })
}

/// Gives the handle back as a destructor does: unlocks as well as that can be done. A server that
/// did not answer within the last ten seconds is left alone: the lock is then taken off at the
/// client's next contact with it, or ends with its lease. So a program that ends with many locks
/// waits for one timeout for each server that hangs, where memlock_unlock() would wait for each
/// lock. Answers as memlock_unlock(); and MEMLOCK_UNKNOWN where the server was left alone, or did
/// not answer. NULL is allowed, and gives MEMLOCK_NOT_HELD.
///
/// # Safety
/// As memlock_unlock().
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_lock_drop(lock: *mut memlock_lock) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise. A callback may read the handle until it is kept no longer.
        let kept = unsafe { lock.as_ref() }.and_then(|held| held.hold.let_go());
        // SAFETY: the caller's promise.
        let lock = unsafe { take_back(lock) };
        Ok(lock.map_or(Answer::NotHeld.into(), |lock| lock.hold.drop_after(kept)))
    })
}

/// Gives the lock a new lease, counted from now, if it is still ours: MEMLOCK_OK or MEMLOCK_LOST,
/// and MEMLOCK_NOT_HELD in a child made by fork. The fence stays. MEMLOCK_INVALID for a lease out
/// of range, and for a lock that is kept, changes nothing. After MEMLOCK_UNREACHABLE the old lease
/// runs on; after MEMLOCK_UNKNOWN count on the shorter of the two, as memlock_lock_remaining_ms()
/// does.
///
/// # Safety
/// `lock` is NULL or a lock that is held, used by nobody else during the call.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_lock_extend(
    lock: *mut memlock_lock,
    lease_ms: i64,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        unsafe { lent_mut(lock, "lock") }?.hold.extend(lease_ms)
    })
}

/// Renews its lease from now on by a thread of the client's, each time for the lease that it has
/// now, until it is given back by memlock_unlock() or lost. The handle stays the same, and may then
/// be used by any number of threads at once, except that memlock_unlock() must be the last call. No
/// I/O.
///
/// It is renewed no more once `max_hold_ms` have passed, counted from this call, so that a program
/// that hangs does not hold it for ever; then it ends with the lease. -1: no bound. `callback`,
/// unless it is NULL, is called when there is something to tell: see memlock_renewal_callback. Once
/// memlock_unlock() has returned it is not running, and is never called again: then `arg` may be
/// freed. So the thread that gives it back must not hold a mutex for which the callback waits. What
/// memlock_unlock() finds is its answer, and not told any more.
///
/// MEMLOCK_OK; MEMLOCK_LOST when the lease is over already; MEMLOCK_NOT_HELD in a child made by
/// fork; MEMLOCK_INVALID when it is kept already, or for another `max_hold_ms`: all of these change
/// nothing. MEMLOCK_INTERNAL when no thread can be started: then the lock was **released**, and the
/// handle, which holds nothing any more, is still to be given back.
///
/// In a child made by fork nothing is kept: the child has no such thread, and holds nothing.
///
/// # Safety
/// `lock` is NULL or a lock that is held, used by nobody else during the call; `callback` and `arg`
/// are good until it is given back.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_lock_renew(
    lock: *mut memlock_lock,
    max_hold_ms: i64,
    callback: memlock_renewal_callback,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| unsafe { lent_mut(lock, "lock") }?.hold.renew(max_hold_ms, callback, arg))
}

/// Whether it is certainly ours, unless the server has lost it. **No answer but a truth**: 1 for
/// yes, 0 for no, also for NULL and in a child made by fork. No I/O: by the clock, and by what was
/// found out so far.
///
/// # Safety
/// `lock` is NULL or a lock that is held.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_lock_is_held(lock: *const memlock_lock) -> c_int {
    let mut held = 0;
    quietly(|| {
        // SAFETY: the caller's promise.
        let lock = unsafe { lock.as_ref() };
        held = c_int::from(lock.is_some_and(|lock| !lock.hold.remaining().is_zero()));
    });
    held
}

/// Asks the server whether it is ours: MEMLOCK_OK when it is; MEMLOCK_LOST when not, and what is
/// kept is lost from then on; MEMLOCK_NOT_HELD in a child made by fork; MEMLOCK_UNREACHABLE or
/// MEMLOCK_PROTOCOL. One round trip, or none when the lease is over.
///
/// # Safety
/// `lock` is NULL or a lock that is held.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_lock_check(lock: *const memlock_lock) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| unsafe { lent(lock, "lock") }?.hold.check())
}

/// Why it was lost: MEMLOCK_LOST, and MEMLOCK_LOST_EXPIRED, MEMLOCK_LOST_GONE or
/// MEMLOCK_LOST_MAX_HOLD in *why; MEMLOCK_OK when it was not, as far as is known; MEMLOCK_NOT_HELD
/// in a child made by fork. What is not kept is lost when its lease is over. No I/O.
///
/// # Safety
/// `lock` is NULL or a lock that is held; `why` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_lock_lost(
    lock: *const memlock_lock,
    why: *mut c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { memlock_lock_wait_lost(lock, 0, why) }
}

/// As memlock_lock_lost(), but waits for it: `wait_ms` is for how long, 0 not at all, -1 for ever.
/// Answers MEMLOCK_TIMED_OUT when that has passed (MEMLOCK_OK when it was 0). It is no wait for a
/// server: nothing cancels it.
///
/// # Safety
/// `lock` is NULL or a lock that is held, and not given back before this call ends, unless by its
/// callback; `why` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_lock_wait_lost(
    lock: *const memlock_lock,
    wait_ms: i64,
    why: *mut c_int,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let lock = unsafe { lent(lock, "lock") }?;
        let (loss, report) = lock.hold.wait_lost(span(wait_ms)?);
        if let Some(loss) = loss {
            // SAFETY: the caller's promise.
            unsafe { put(why, number(loss), "why") }?;
        }
        Ok(report)
    })
}

/// How long the lock is certainly ours yet, in milliseconds; 0 when it is not. No I/O.
///
/// # Safety
/// `lock` is NULL or a lock that is held; `remaining_ms` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_lock_remaining_ms(
    lock: *const memlock_lock,
    remaining_ms: *mut i64,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let remaining = unsafe { lent(lock, "lock") }?.hold.remaining();
        // SAFETY: the caller's promise.
        unsafe { put(remaining_ms, to_millis(remaining), "remaining_ms") }?;
        Ok(Answer::Ok)
    })
}

/// The fencing token: greater than that of every earlier holder of this mutex. Hand it to the
/// resource, which refuses anything below the greatest it has seen. No I/O.
///
/// # Safety
/// `lock` is NULL or a lock that is held; `fence` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_lock_fence(
    lock: *const memlock_lock,
    fence: *mut u64,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let number = unsafe { lent(lock, "lock") }?.fence;
        // SAFETY: the caller's promise.
        unsafe { put(fence, number, "fence") }?;
        Ok(Answer::Ok)
    })
}

/// Who holds the mutex `name`: MEMLOCK_BUSY and *owner when somebody does, MEMLOCK_NOT_HELD when
/// nobody does. What is read is already past: it is for people, not for decisions. *owner is
/// written only with MEMLOCK_BUSY. One round trip.
///
/// # Safety
/// `client` is NULL or an open client, `name` is NULL or a NUL-terminated string, `owner` is NULL
/// or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_mutex_owner(
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
        let mutex = client.core.mutex(name, Duration::from_secs(1))?;
        let Some(seen) = mutex.owner()? else { return Ok(mutex.report_not_held()) };
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
        Ok(mutex.report_held_by(&seen))
    })
}

/// Takes the mutex `name` away from the acquisition that memlock_mutex_owner() named by `token`:
/// for operators who know that its holder is dead. MEMLOCK_OK, or MEMLOCK_NOT_HELD when that
/// acquisition does not hold it any more. A later holder is never touched.
///
/// # Safety
/// `client` is NULL or an open client; `name` and `token` are NULL or NUL-terminated strings.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_mutex_force_unlock(
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
        Ok(if taken { Answer::Ok.into() } else { mutex.report_not_held() })
    })
}
