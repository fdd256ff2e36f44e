//! Whether a waiter sleeps in its wait, wherever its thread is.
//!
//! No API shows the waiters of every store in every language. The kernel does: memlock's waits,
//! and nothing else of what a call does, sleep in `ppoll`. Where threads of the client carry out the
//! call, they do so, or sleep on a futex if they have nothing to drive.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// In the place of a thread: those of the process's clients, which carry out calls.
pub(super) const WORKERS: u32 = 0;

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
        match thread {
            WORKERS => workers_are_asleep(process),
            thread => is_in(process, thread, libc::SYS_ppoll),
        }
    }
}

fn is_in(process: u32, thread: u32, call: libc::c_long) -> bool {
    let state = format!("/proc/{process}/task/{thread}/syscall");
    std::fs::read_to_string(state).is_ok_and(|state| state.starts_with(&format!("{call} ")))
}

/// Whether they were asleep for long enough that none of them was about to wake up.
fn workers_are_asleep(process: u32) -> bool {
    (0..4).all(|look| {
        thread::sleep(Duration::from_millis(if look == 0 { 0 } else { 2 }));
        let workers = workers(process);
        let asleep = |&worker: &u32| {
            is_in(process, worker, libc::SYS_ppoll) || is_in(process, worker, libc::SYS_futex)
        };
        !workers.is_empty() && workers.iter().all(asleep)
    })
}

fn workers(process: u32) -> Vec<u32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let is_worker = |task: &PathBuf| {
        std::fs::read_to_string(task.join("comm"))
            .is_ok_and(|name| name.starts_with("memlock-worker"))
    };
    let tasks = tasks.filter_map(|task| Some(task.ok()?.path())).filter(is_worker);
    tasks.filter_map(|task| task.file_name()?.to_str()?.parse().ok()).collect()
}

/// The call that the current thread has made runs on this thread of a driver.
pub(super) fn runs_on(process: u32, thread: u32) {
    CURRENT.with(|current| {
        if let Some(waiting) = &*current.borrow() {
            waiting.set(process, thread);
        }
    });
}
