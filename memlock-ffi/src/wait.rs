//! The wait handle, by which another thread ends one wait.

use std::ffi::c_int;

use memlock_core::{Answer, Cancel};

use crate::boundary::{enter, give, invalid, lent, put, quietly, take_back};
use crate::client::memlock_client;

/// Ends waits of one client from outside: each that is given it. It may be used from any number of
/// threads at once.
pub struct memlock_wait {
    cancel: Cancel,
    /// The number of the client whose waits it ends.
    client: u64,
}

impl memlock_wait {
    /// What ends a wait of the client of this number.
    pub(crate) fn of(&self, client: u64) -> memlock_core::Result<&Cancel> {
        if self.client == client {
            return Ok(&self.cancel);
        }
        Err(invalid(
            "The argument \"wait\" belongs to another client: open one with the client that waits.",
        ))
    }
}

/// Makes a handle for memlock_mutex_lock_wait(), memlock_semaphore_acquire_wait() and those of the
/// counter, by which waits of this client can be ended one by one, where
/// memlock_client_cancel_waits() ends all of them. Nothing is sent.
///
/// A wait needs one only if it is to be ended alone: waits that end together may share one. The
/// client may be closed before it. A child made by fork() has a handle of its own, which is as
/// cancelled as its parent's was at the fork, and ends the child's waits only.
///
/// Answers MEMLOCK_OK, or MEMLOCK_INVALID and NULL in *wait. Thread-safe.
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

/// Ends the waits that go on with this handle, in whichever thread, and every later one that is
/// given it: each answers MEMLOCK_INTERRUPTED, within a few milliseconds unless it is waiting for
/// the server's reply, and leaves neither a lock or permit nor a place in the queue behind. It is
/// done once and for all: open another handle for waits that are to go on. A wait that has what it
/// waited for already, and is only about to say so, may answer MEMLOCK_OK.
///
/// Answers MEMLOCK_OK, also when it was cancelled before, or MEMLOCK_INVALID for NULL. No I/O. May
/// be called from any thread, and from a signal handler.
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

/// Gives a wait handle back. NULL is allowed. Thread-safe, but not while a wait goes on with it:
/// cancel it, and let the wait end first.
///
/// # Safety
/// `wait` is NULL or came from memlock_wait_open() and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn memlock_wait_close(wait: *mut memlock_wait) {
    // SAFETY: the caller's promise.
    quietly(|| drop(unsafe { take_back(wait) }));
}
