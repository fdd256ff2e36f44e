//! Calls that are started. Their end is waited for as in an event loop.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use memlock::*;

use super::super::{Outcome, asleep};
use super::calls::Calls;
use super::event_loop::EventLoop;
use super::{Client, done};

pub(super) fn calls_of(client: &Arc<Client>) -> Arc<dyn Calls> {
    Arc::new(Pending(EventLoop::of(client)))
}

/// A held handle keeps the client open: its release ends in the event loop of the client.
struct Pending(EventLoop);

type Take<H> = unsafe extern "C-unwind" fn(*mut memlock_pending, *mut *mut H) -> c_int;

impl Pending {
    /// Starts a call, and returns what `collect` makes of it when it has ended.
    fn call<T>(
        &self,
        start: impl FnOnce(*mut c_void, *mut *mut memlock_pending) -> c_int,
        collect: impl FnOnce(*mut memlock_pending) -> Outcome<T>,
    ) -> Outcome<T> {
        let (has_ended, mut pending) = (AtomicBool::new(false), ptr::null_mut());
        let arg = ptr::from_ref(&has_ended).cast_mut().cast();
        if let Err(no) = done(start(arg, &mut pending)) {
            assert!(pending.is_null(), "a call that was not started has a handle");
            return Err(no);
        }
        asleep::runs_on(std::process::id(), asleep::WORKERS);
        self.0.run_until(&has_ended);
        let outcome = collect(pending);
        // SAFETY: it was handed out to this thread's event loop, and is used no more.
        unsafe { memlock_pending_close(pending) };
        outcome
    }
}

fn answer(pending: *mut memlock_pending) -> Outcome<()> {
    // SAFETY: it is not closed, and only this thread uses it.
    done(unsafe { memlock_pending_poll(pending) })
}

fn take<H>(pending: *mut memlock_pending, take: Take<H>) -> Outcome<*mut H> {
    let (known, mut held) = (answer(pending), ptr::null_mut());
    // SAFETY: it is not closed, only this thread uses it, and the place is valid.
    let taken = done(unsafe { take(pending, &mut held) });
    assert_eq!(taken, known, "taking has the answer and the message of polling");
    assert_eq!(taken.is_ok(), !held.is_null());
    taken.map(|()| held)
}

impl Calls for Pending {
    fn lock(
        &self,
        client: &Client,
        name: &CStr,
        lease_ms: i64,
        wait_ms: i64,
    ) -> Outcome<*mut memlock_lock> {
        self.call(
            // SAFETY: the client is open, and the string and the place are valid.
            |arg, pending| unsafe {
                memlock_acquire_start(client.0, name.as_ptr(), lease_ms, wait_ms, arg, pending)
            },
            |pending| take(pending, memlock_pending_take_lock),
        )
    }

    fn acquire(
        &self,
        semaphore: *const memlock_semaphore,
        request: &memlock_request,
        wait_ms: i64,
    ) -> Outcome<*mut memlock_permit> {
        self.call(
            // SAFETY: the semaphore is open, and the request and the place are valid.
            |arg, pending| unsafe {
                memlock_semaphore_acquire_start(semaphore, request, wait_ms, arg, pending)
            },
            |pending| take(pending, memlock_pending_take_permit),
        )
    }

    fn unlock(&self, lock: *mut memlock_lock) -> Outcome<()> {
        // SAFETY: the lock is held and given back here, once, and the place is valid.
        self.call(|arg, pending| unsafe { memlock_release_start(lock, arg, pending) }, answer)
    }

    fn release(&self, permit: *mut memlock_permit) -> Outcome<()> {
        self.call(
            // SAFETY: the permits are held and given back here, once, and the place is valid.
            |arg, pending| unsafe { memlock_permit_release_start(permit, arg, pending) },
            answer,
        )
    }
}
