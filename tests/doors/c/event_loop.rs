//! The event loop of a client. The threads that wait for calls run it, one at a time.

use std::ffi::c_int;
use std::io::{Error, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use memlock::*;

use super::Client;

pub(super) struct EventLoop {
    client: Arc<Client>,
    descriptor: c_int,
    /// Whether a thread runs it.
    runs: Mutex<bool>,
    /// A thread has handed out what had ended, and runs it no more.
    ran: Condvar,
}

impl EventLoop {
    pub(super) fn of(client: &Arc<Client>) -> EventLoop {
        // SAFETY: the client is open.
        let descriptor = unsafe { memlock_client_event_fd(client.0) };
        assert!(descriptor >= 0, "a descriptor can be opened");
        let (client, runs) = (Arc::clone(client), Mutex::default());
        EventLoop { client, descriptor, runs, ran: Condvar::new() }
    }

    /// Returns when the call whose argument points to `has_ended` was handed out.
    pub(super) fn run_until(&self, has_ended: &AtomicBool) {
        let mut runs = self.runs();
        while !has_ended.load(Ordering::SeqCst) {
            if *runs {
                runs = self.ran.wait(runs).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            *runs = true;
            drop(runs);
            let polled = self.poll();
            runs = self.runs();
            *runs = false;
            let handed_out = self.hand_out();
            self.ran.notify_all();
            match polled {
                Ok(()) => assert!(handed_out > 0, "it is readable, but no call has ended"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}"),
            }
        }
    }

    fn poll(&self) -> Result<(), Error> {
        let mut watched = libc::pollfd { fd: self.descriptor, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd is given.
        match unsafe { libc::poll(&raw mut watched, 1, -1) } {
            1 => Ok(()),
            _ => Err(Error::last_os_error()),
        }
    }

    /// Tells the threads whose calls have ended.
    fn hand_out(&self) -> usize {
        let next = || {
            // SAFETY: the client is open.
            let pending = unsafe { memlock_client_next_ended(self.client.0) };
            (!pending.is_null()).then_some(pending)
        };
        let tell = |pending: *mut memlock_pending| {
            // SAFETY: its thread closes it when it has been told.
            let has_ended = unsafe { memlock_pending_arg(pending) }.cast::<AtomicBool>();
            // SAFETY: it lives until its thread has been told, and has the lock that is held here.
            unsafe { &*has_ended }.store(true, Ordering::SeqCst);
        };
        std::iter::from_fn(next).map(tell).count()
    }

    fn runs(&self) -> MutexGuard<'_, bool> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
