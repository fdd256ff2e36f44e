//! Wait handles, by which another thread ends single waits.

use std::ffi::c_int;

use memlock_core::{Answer, Cancel};

use crate::boundary::{enter, give, invalid, lent, put, quietly, take_back};
use crate::client::memlock_client;

/// Cancels the waits of one client that it was passed to. All functions may use it from any number
/// of threads at once.
pub struct memlock_wait {
    cancel: Cancel,
    /// The number of the client whose waits it cancels.
    client: u64,
}

impl memlock_wait {
    /// The cancel handle, for a wait of the client with this number.
    pub(crate) fn of(&self, client: u64) -> memlock_core::Result<&Cancel> {
        if self.client == client {
            return Ok(&self.cancel);
        }
        Err(invalid(
            "The argument \"wait\" belongs to another client: open one by memlock_wait_open() with \
         the client that waits.",
        ))
    }
}

/// Makes a handle for memlock_mutex_lock_wait(), memlock_semaphore_acquire_wait(),
/// memlock_counter_retry() and memlock_counter_park(), by which waits of this client can be ended
/// individually, where memlock_client_cancel_waits() ends all of them. Sends nothing.
///
/// A wait needs a handle only if it must be possible to end it alone; waits that end together may
/// share one. The client may be closed before the handle. A child made by fork() has its own copy
/// of the handle, which is cancelled if the parent's was cancelled at the fork, and ends only the
/// child's waits.
///
/// Returns MEMLOCK_OK, or MEMLOCK_INVALID and NULL in *wait. Thread-safe.
///
/// # Safety
/// `client` is NULL or an open client, `wait` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_wait_open(
    client: *const memlock_client,
    wait: *mut *mut memlock_wait,
) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        unsafe { put(wait, std::ptr::null_mut(), "wait") }?;
        // SAFETY: as above.
        let client = unsafe { lent(client, "client") }?;
        let opened = memlock_wait { cancel: client.core.cancel_handle(), client: client.number };
        // SAFETY: as above.
        unsafe { put(wait, give(opened), "wait") }?;
        Ok(Answer::Ok)
    })
}

/// Ends all waits that use this handle, in all threads, and every later one that is passed it. Each
/// returns MEMLOCK_INTERRUPTED, within a few milliseconds unless it is waiting for a reply of the
/// server, and leaves no lock, no permit and no queue entry behind. A cancelled handle stays
/// cancelled: open another one for further waits. A wait that has just been granted what it waited
/// for may still return MEMLOCK_OK.
///
/// Returns MEMLOCK_OK, also when the handle was already cancelled, or MEMLOCK_INVALID for NULL. No
/// I/O. Thread-safe and async-signal-safe.
///
/// # Safety
/// `wait` is NULL or an open wait handle.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_wait_cancel(wait: *const memlock_wait) -> c_int {
    enter(|| {
        // SAFETY: the caller's promise.
        unsafe { lent(wait, "wait") }?.cancel.cancel();
        Ok(Answer::Ok)
    })
}

/// Closes a wait handle. NULL is allowed. Thread-safe, but not while a wait uses the handle: cancel
/// the handle and let the wait return first.
///
/// # Safety
/// `wait` is NULL or came from memlock_wait_open(), and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_wait_close(wait: *mut memlock_wait) {
    // SAFETY: the caller's promise.
    quietly(|| drop(unsafe { take_back(wait) }));
}
