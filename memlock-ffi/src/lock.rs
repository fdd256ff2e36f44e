//! Mutexes by handle.

use std::ffi::{CString, c_char, c_int, c_void};
use std::time::Duration;

use memlock_core::{Answer, Report};

use crate::boundary::{
    enter, fixed, give, invalid, lent, lent_mut, limit, millis, put, quietly, span, take_back,
    text, to_millis,
};
use crate::client::memlock_client;
use crate::renewal::{Leased, loss_code, memlock_renewal_callback};
use crate::wait::memlock_wait;

/// A mutex that is held. Use a handle from one thread at a time; its fence and its remaining time
/// may be read from several threads at once. A renewed lock allows more: see memlock_lock_renew().
pub struct memlock_lock {
    held: Leased,
    fence: u64,
}

/// The size of a token in bytes, including the NUL.
pub const MEMLOCK_TOKEN_SIZE: usize = 80;

/// A size in bytes, including the NUL, that each statement of memlock_lock_release_sql() fits into.
pub const MEMLOCK_SQL_SIZE: usize = 2048;

/// The holder of a mutex, as read from the server.
#[repr(C)]
pub struct memlock_owner {
    /// Identifies this acquisition, for memlock_mutex_force_unlock().
    pub token: [c_char; MEMLOCK_TOKEN_SIZE],
    /// The holder's host, truncated to fit; empty when the holder does not use memlock.
    pub host: [c_char; 256],
    /// The holder's process id on that host; 0 when the holder does not use memlock.
    pub pid: u32,
    /// The time of the acquisition in Unix seconds, by the holder's clock; 0 when the
    /// holder does not use memlock.
    pub since: i64,
    /// The time until the server expires the mutex, in milliseconds; -1: never.
    pub remaining_ms: i64,
}

/// Locks the mutex `name` for at most `lease_ms` milliseconds (1000 to 31622400000, which is 366
/// days).
///
/// `timeout_ms` is how long to wait for the mutex: 0 does not wait (then MEMLOCK_BUSY or
/// MEMLOCK_RECOVERING), -1 waits without a limit, a positive value waits for that many milliseconds
/// (then MEMLOCK_TIMED_OUT).
/// Acquiring a free mutex takes one round trip.
///
/// Returns MEMLOCK_OK and a handle in *lock, to be released by memlock_unlock() or
/// memlock_lock_drop(). Otherwise *lock is NULL, and the answer is one of the above, or
/// MEMLOCK_INTERRUPTED, MEMLOCK_DEADLOCK, MEMLOCK_INVALID, MEMLOCK_UNREACHABLE, MEMLOCK_UNKNOWN or
/// MEMLOCK_PROTOCOL.
/// Thread-safe.
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
    timeout_ms: i64,
    lock: *mut *mut memlock_lock,
) -> c_int {
    // SAFETY: the caller's promise, and NULL means that there is no wait handle.
    unsafe { memlock_mutex_lock_wait(client, name, lease_ms, timeout_ms, std::ptr::null(), lock) }
}

/// Like memlock_mutex_lock(), but the wait also ends when `wait` is cancelled: see
/// memlock_wait_cancel(). With NULL for `wait` the function is equivalent to memlock_mutex_lock().
///
/// Returns MEMLOCK_INTERRUPTED and NULL in *lock when `wait` was cancelled; nothing is held then,
/// and no entry is left in the queue. If `wait` was cancelled before the call, nothing is sent,
/// whether the mutex is free or not. Returns MEMLOCK_INVALID when `wait` was opened with another
/// client. The other answers are those of memlock_mutex_lock(). Thread-safe; any number of waits
/// may share a handle.
///
/// # Safety
/// `client` is NULL or an open client, `name` is NULL or a NUL-terminated string, `wait` is NULL or
/// a wait handle that is not closed before this call returns, `lock` is NULL or writable.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_mutex_lock_wait(
    client: *const memlock_client,
    name: *const c_char,
    lease_ms: i64,
    timeout_ms: i64,
    wait: *const memlock_wait,
    lock: *mut *mut memlock_lock,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        unsafe { put(lock, std::ptr::null_mut(), "lock") }?;
        // SAFETY: as above.
        let (client, name) = unsafe { (lent(client, "client")?, text(name, "name")?) };
        let mutex = client.core.mutex(name, millis(lease_ms)?)?;
        let mut until = limit(timeout_ms)?;
        // SAFETY: as above.
        if let Some(handle) = unsafe { wait.as_ref() } {
            until = until.unless_cancelled(handle.of(client.number)?);
        }
        match mutex.lock_or_report(&until) {
            Ok(Ok(guard)) => {
                let (fence, held) = (guard.fence(), Leased::new(guard));
                // SAFETY: as above.
                unsafe { put(lock, give(memlock_lock { held, fence }), "lock") }?;
                Ok(Answer::Ok.into())
            }
            Ok(Err(report)) => Ok(report),
            Err(error) => Err(error),
        }
    })
}

/// Unlocks the mutex if the server still has it for this handle, in one round trip. The handle is
/// freed **with every answer**: MEMLOCK_OK; MEMLOCK_LOST when another holder may have had the lock;
/// MEMLOCK_NOT_HELD in a child made by fork; MEMLOCK_UNREACHABLE, MEMLOCK_UNKNOWN or
/// MEMLOCK_PROTOCOL, after which the lock is released at the client's next contact with the server,
/// or expires with its lease; or MEMLOCK_INVALID for NULL.
///
/// # Safety
/// `lock` is NULL or came from memlock_mutex_lock() or memlock_mutex_lock_wait(), and is not used
/// afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_unlock(lock: *mut memlock_lock) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise. A callback may read the handle until the renewal has ended.
        let renewal = unsafe { lent(lock, "lock") }?.held.stop_renewal();
        // SAFETY: the caller's promise.
        let lock = unsafe { take_back(lock) };
        lock.map_or(Ok(Answer::NotHeld.into()), |lock| lock.held.release(renewal))
    })
}

/// Unlocks and frees the handle, as a destructor does: on a best-effort basis. Sends nothing to a
/// server that failed to reply within the last ten seconds; the lock is then released at the
/// client's next contact with that server, or expires with its lease. A program that exits with
/// many locks therefore waits for one timeout for each unresponsive server, where memlock_unlock()
/// would wait for one timeout for each lock. Returns MEMLOCK_OK, MEMLOCK_LOST or MEMLOCK_NOT_HELD
/// as memlock_unlock() does, and MEMLOCK_UNKNOWN when nothing was sent, no reply arrived, or the
/// server refused the request: memlock_last_error() says which. NULL is allowed, and returns
/// MEMLOCK_NOT_HELD.
///
/// # Safety
/// As memlock_unlock().
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_lock_drop(lock: *mut memlock_lock) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise. A callback may read the handle until the renewal has ended.
        let renewal = unsafe { lock.as_ref() }.and_then(|lock| lock.held.stop_renewal_on_drop());
        // SAFETY: the caller's promise.
        let lock = unsafe { take_back(lock) };
        Ok(lock.map_or(Answer::NotHeld.into(), |lock| lock.held.release_on_drop(renewal)))
    })
}

/// Writes into `sql`, which has room for `size` bytes, the SQL statement that releases the lock as
/// a part of a transaction of the caller's, on the PostgreSQL or MySQL that the lock is on. Run it
/// as the last statement of the transaction, by the client library of the database. If it changes
/// one row, commit: the lock is released together with the work. If it changes none, the lock was
/// lost: roll back. From the statement to the end of the transaction no other holder can acquire
/// the lock, whatever happens to its lease. No I/O.
///
/// From this call on memlock_lock_remaining_ms() is 0, and a lock that is renewed automatically is
/// not renewed any more. Once the transaction has ended, call memlock_unlock(): after a commit it
/// returns MEMLOCK_OK and wakes the next waiter, which otherwise finds the lock free within about a
/// second; after a rollback it releases the lock. It returns MEMLOCK_LOST if the lease ended before
/// the transaction did, also after a commit. To keep the lock after a rollback, call
/// memlock_lock_extend() instead.
///
/// Returns MEMLOCK_OK; MEMLOCK_CONFIG when the lock is not on a database; MEMLOCK_INVALID, and an
/// unchanged lock, when `size` is too small (MEMLOCK_SQL_SIZE is always enough), when nothing is
/// held, and in a child made by fork.
///
/// # Safety
/// `lock` is NULL or a lock that is held, used by no other thread during the call; `sql` is NULL or
/// has room for `size` bytes.
#[must_use = "the answer says whether there is a statement"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_lock_release_sql(
    lock: *mut memlock_lock,
    sql: *mut c_char,
    size: usize,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let held = unsafe { &mut lent_mut(lock, "lock")?.held };
        if size < MEMLOCK_SQL_SIZE {
            return Err(invalid(format!(
                "The buffer has {size} bytes: a statement may need {MEMLOCK_SQL_SIZE} \
                 (MEMLOCK_SQL_SIZE)."
            )));
        }
        // SAFETY: as above.
        unsafe { put(sql, 0, "sql") }?;
        let statement = CString::new(held.release_sql()?).unwrap_or_default();
        let bytes = statement.as_bytes_with_nul();
        if bytes.len() > size {
            return Err(invalid("The statement does not fit into the buffer."));
        }
        // SAFETY: `sql` is not NULL, and has room for `size` bytes, of which there are no more.
        unsafe { sql.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(Report::from(Answer::Ok))
    })
}

/// Gives the lock a new lease of `lease_ms` milliseconds, counted from now, if the server still has
/// it for this handle. Returns MEMLOCK_OK; MEMLOCK_LOST when another holder may have had the lock;
/// and MEMLOCK_NOT_HELD in a child made by fork. The fence does not change. Returns
/// MEMLOCK_INVALID, and changes nothing, for a lease out of range (1000 to 31622400000) and for a
/// lock that is renewed automatically. After MEMLOCK_UNREACHABLE the old lease still applies. After
/// MEMLOCK_UNKNOWN and MEMLOCK_PROTOCOL assume the shorter of the two leases, as
/// memlock_lock_remaining_ms() does.
///
/// # Safety
/// `lock` is NULL or a lock that is held, used by no other thread during the call.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_lock_extend(
    lock: *mut memlock_lock,
    lease_ms: i64,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        unsafe { lent_mut(lock, "lock") }?.held.extend(lease_ms)
    })
}

/// Renews the lease automatically from now on, in a background thread of the client, each time by
/// the lease that the lock has now, until the lock is released by memlock_unlock() or lost. The
/// handle stays the same, and any number of threads may use it at once, except that
/// memlock_unlock() must be the last call. No I/O.
///
/// The lease is not renewed any more when `max_hold_ms` have passed since this call, so that a
/// program that hangs does not hold the lock for ever; the lock then ends with its lease. -1: no
/// limit. `callback`, unless NULL, is called when the lease is at risk and when the lock is lost:
/// see memlock_renewal_callback. Once memlock_unlock() has returned, the callback is not running
/// and is never called again, so `arg` may be freed. The thread that calls memlock_unlock() must
/// therefore not hold a mutex for which the callback waits. A loss that memlock_unlock() itself
/// detects is reported by its answer only, not by the callback.
///
/// Returns MEMLOCK_OK. Returns MEMLOCK_LOST when the lease has already expired, MEMLOCK_NOT_HELD in
/// a child made by fork, MEMLOCK_INVALID when the lock is already renewed or `max_hold_ms` is out
/// of range; none of these changes anything. Returns MEMLOCK_INTERNAL when no thread can be
/// started: the lock was then **released**, and the handle, which holds nothing, must still be
/// freed.
///
/// In a child made by fork nothing is renewed: the child has no such thread, and holds nothing.
///
/// # Safety
/// `lock` is NULL or a lock that is held, used by no other thread during the call; `callback` and
/// `arg` are valid until the handle is freed.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_lock_renew(
    lock: *mut memlock_lock,
    max_hold_ms: i64,
    callback: memlock_renewal_callback,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| unsafe { lent_mut(lock, "lock") }?.held.renew(max_hold_ms, callback, arg))
}

/// Binds the lock to the calling thread until the handle is freed: only this thread will unlock it.
/// From then on a wait of this thread for the same mutex returns MEMLOCK_DEADLOCK if it has neither
/// a timeout nor a wait handle, by whatever function and client, since only this thread could end
/// it. If the lock was bound to another thread, that ends. Without this call the lock is bound to
/// no thread, and such a wait goes on until another thread unlocks, or the lease ends.
///
/// Returns MEMLOCK_OK, also for a lock that is lost; MEMLOCK_NOT_HELD in a child made by fork, and
/// when the handle holds nothing; MEMLOCK_INVALID for NULL. No I/O.
///
/// # Safety
/// `lock` is NULL or a lock that is held, used by no other thread during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_lock_bind(lock: *mut memlock_lock) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| Ok(unsafe { lent_mut(lock, "lock") }?.held.bind()))
}

/// Whether the lock is guaranteed to be held, provided that the server has not lost it. **Returns a
/// truth value, not an answer**: 1 for yes, 0 for no, also for NULL and in a child made by fork. No
/// I/O: decided by the clock and by what earlier calls and renewals have found.
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
        held = c_int::from(lock.is_some_and(|lock| !lock.held.remaining().is_zero()));
    });
    held
}

/// Asks the server whether the lock is still held. Returns MEMLOCK_OK when it is; MEMLOCK_LOST when
/// it is not, or its lease has expired, and a renewed lock is then lost for good; MEMLOCK_NOT_HELD
/// in a child made by fork; MEMLOCK_UNREACHABLE or MEMLOCK_PROTOCOL. One round trip, or none when
/// the lease has expired.
///
/// # Safety
/// `lock` is NULL or a lock that is held.
#[must_use = "the answer says whether anything is held"]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_lock_check(lock: *const memlock_lock) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| unsafe { lent(lock, "lock") }?.held.check())
}

/// Reports whether and why the lock was lost. Returns MEMLOCK_LOST, and MEMLOCK_LOST_EXPIRED,
/// MEMLOCK_LOST_GONE or MEMLOCK_LOST_MAX_HOLD in *why; MEMLOCK_OK when no loss is known;
/// MEMLOCK_NOT_HELD in a child made by fork. A lock that is not renewed is reported as lost as soon
/// as its lease has expired; memlock_unlock() and memlock_lock_extend() may then still succeed, see
/// MEMLOCK_LOST. No I/O.
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

/// Like memlock_lock_lost(), but waits for the loss for at most `timeout_ms`: 0 does not wait, -1
/// waits without a limit. Returns MEMLOCK_TIMED_OUT when that time has passed (MEMLOCK_OK if it was
/// 0). No I/O. memlock_wait_cancel() and memlock_client_cancel_waits() do not end this wait.
///
/// # Safety
/// `lock` is NULL or a lock that is held, and is not freed before this call returns, except by its
/// callback; `why` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_lock_wait_lost(
    lock: *const memlock_lock,
    timeout_ms: i64,
    why: *mut c_int,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        let lock = unsafe { lent(lock, "lock") }?;
        let (loss, report) = lock.held.wait_lost(span(timeout_ms)?);
        if let Some(loss) = loss {
            // SAFETY: the caller's promise.
            unsafe { put(why, loss_code(loss), "why") }?;
        }
        Ok(report)
    })
}

/// Stores the time for which the lock is guaranteed to be held, in milliseconds; 0 when it is not.
/// No I/O.
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
        let remaining = unsafe { lent(lock, "lock") }?.held.remaining();
        // SAFETY: the caller's promise.
        unsafe { put(remaining_ms, to_millis(remaining), "remaining_ms") }?;
        Ok(Answer::Ok)
    })
}

/// Stores the fencing token: a number that is greater than the fence of every earlier holder of
/// this mutex. Pass it to the resource that the lock protects; the resource refuses any number
/// below the greatest it has accepted. No I/O.
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

/// Reads the holder of the mutex `name`. Returns MEMLOCK_BUSY and *owner when the mutex is held,
/// and MEMLOCK_NOT_HELD when it is free. The result is a snapshot, for diagnostics and not for
/// decisions. *owner is written only with MEMLOCK_BUSY. One round trip. Thread-safe.
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
            return Err(invalid("The argument \"owner\" is NULL: pass a valid pointer."));
        }
        // SAFETY: the caller's promise.
        let (client, name) = unsafe { (lent(client, "client")?, text(name, "name")?) };
        // The lease does not matter for reading the holder.
        let mutex = client.core.mutex(name, Duration::from_secs(1))?;
        let Some(holder) = mutex.owner()? else { return Ok(mutex.report_not_held()) };
        let record = holder.record.as_ref();
        let result = memlock_owner {
            token: fixed(&holder.token()),
            host: fixed(record.map_or("", |record| &record.host)),
            pid: record.map_or(0, |record| record.pid),
            since: record.map_or(0, |record| i64::try_from(record.since).unwrap_or(i64::MAX)),
            remaining_ms: holder.remaining.map_or(-1, to_millis),
        };
        // SAFETY: the caller's promise.
        unsafe { put(owner, result, "owner") }?;
        Ok(mutex.report_held_by(&holder))
    })
}

/// Releases the mutex `name` on behalf of the holder that memlock_mutex_owner() identified by
/// `token`. For operators who know that this holder is dead. Returns MEMLOCK_OK, or
/// MEMLOCK_NOT_HELD when that acquisition no longer holds the mutex. A later holder is never
/// affected. Thread-safe.
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
