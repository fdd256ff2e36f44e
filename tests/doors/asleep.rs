//! Whether a waiter sleeps in its wait, wherever its thread is.
//!
//! No API shows the waiters of every store in every language. The kernel does: memlock's waits,
//! and nothing else of what a call does, sleep in `ppoll`, or in a `FUTEX_WAIT` with a time limit.
//! Locks and condition variables of the standard libraries wait without a limit, or by another
//! operation.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

/// The thread that a waiter's call runs on: of this process, or of a driver.
#[derive(Clone, Debug, Default)]
pub struct WaitingThread(Arc<Mutex<Option<(u32, u32)>>>);

thread_local! {
    static CURRENT: RefCell<Option<WaitingThread>> = const { RefCell::new(None) };
}

impl WaitingThread {
    /// From now on the calls of the current thread are the waiter's.
    pub fn is_this_one(&self) {
        // SAFETY: gettid has no preconditions.
        let thread = unsafe { libc::gettid() };
        self.set(std::process::id(), u32::try_from(thread).expect("a thread's id is positive"));
        CURRENT.with(|current| *current.borrow_mut() = Some(self.clone()));
    }

    fn set(&self, process: u32, thread: u32) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((process, thread));
    }

    /// Whether it sleeps until it is woken.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        let Some((process, thread)) = *self.0.lock().unwrap_or_else(PoisonError::into_inner) else {
            return false;
        };
        let state = format!("/proc/{process}/task/{thread}/syscall");
        let call = std::fs::read_to_string(state).unwrap_or_default();
        let mut words = call.split(' ');
        match words.next().and_then(|number| number.parse().ok()) {
            Some(libc::SYS_ppoll) => true,
            Some(libc::SYS_futex) => words.nth(1) == Some("0x80") && words.nth(1) != Some("0x0"),
            _ => false,
        }
    }
}

/// The call that the current thread has made runs on this thread of a driver.
pub(super) fn runs_on(process: u32, thread: u32) {
    CURRENT.with(|current| {
        if let Some(waiting) = &*current.borrow() {
            waiting.set(process, thread);
        }
    });
}
