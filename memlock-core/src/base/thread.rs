//! Threads that memlock starts, and the signals that they sleep on. memlock takes them from here
//! only, so that a simulation can provide its own.
#![cfg_attr(
    not(memlock_sim),
    allow(unreachable_pub, reason = "only the simulation sees it from outside")
)]

use std::cell::Cell;
use std::sync::{Condvar, MutexGuard};
use std::time::Duration;

/// The signals that a thread raises by its own faults. If they were blocked, they would end the
/// program without running its crash handler.
const OF_CRASHES: [libc::c_int; 7] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGABRT,
];

unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of Linux, with glibc and with musl.
const CANCEL_DISABLE: libc::c_int = 1;

/// As long as it exists, this thread runs no signal handlers, except those of a crash in it.
pub(crate) struct BlockedSignals {
    before: libc::sigset_t,
}

impl BlockedSignals {
    pub(crate) fn new() -> BlockedSignals {
        // SAFETY: the sets are plain memory, filled before they are read.
        unsafe {
            let (mut blocked, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut blocked);
            for signal in OF_CRASHES {
                libc::sigdelset(&raw mut blocked, signal);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const blocked, &raw mut before);
            BlockedSignals { before }
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: it is the set that was in force before.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut())
        };
    }
}

/// Starts a thread that runs none of the program's signal handlers, except those of a crash in this
/// thread. `pthread_cancel` does not end the thread: a callback may give its id to other code.
pub(crate) fn start(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    #[cfg(memlock_sim)]
    if let Some(threads) = THREADS.get() {
        threads.start(Box::new(body));
        return Ok(());
    }
    let blocked = BlockedSignals::new();
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(|| {
        // Miri does not support it.
        if !cfg!(miri) {
            // SAFETY: the state is a valid one; the previous one is not requested.
            unsafe { pthread_setcancelstate(CANCEL_DISABLE, std::ptr::null_mut()) };
        }
        body();
    });
    drop(blocked);
    started.map(|_| ())
}

thread_local! {
    static IS_MARKED: Cell<bool> = const { Cell::new(false) };
}

/// Marks or unmarks this thread. Returns whether it was marked before.
pub(crate) fn mark(is_marked: bool) -> bool {
    #[cfg(memlock_sim)]
    if let Some(threads) = THREADS.get() {
        return threads.mark(is_marked);
    }
    IS_MARKED.replace(is_marked)
}

/// A signal on which threads sleep until they are woken or time has passed.
#[derive(Default)]
pub(crate) struct Signal(Condvar);

impl Signal {
    /// Unlocks the mutex and sleeps for at most `limit`; the caller then checks its condition
    /// again. False in a simulated process that is being killed: none of its threads runs any more.
    pub(crate) fn sleep<T>(&self, guard: MutexGuard<'_, T>, limit: Duration) -> bool {
        #[cfg(memlock_sim)]
        if let Some(threads) = THREADS.get() {
            drop(guard);
            return threads.sleep(self.name(), limit);
        }
        drop(self.0.wait_timeout(guard, limit));
        true
    }

    /// Wakes all threads that sleep on this signal.
    pub(crate) fn wake_all(&self) {
        #[cfg(memlock_sim)]
        if let Some(threads) = THREADS.get() {
            return threads.wake_all(self.name());
        }
        self.0.notify_all();
    }

    /// Unique among the signals that exist at the same time.
    #[cfg(memlock_sim)]
    fn name(&self) -> usize {
        &raw const *self as usize
    }
}

/// The threads of a simulation, of which one runs at a time.
#[cfg(memlock_sim)]
pub trait Threads {
    /// Runs `body` as another thread of the current process.
    fn start(&self, body: Box<dyn FnOnce() + Send>);

    /// Lets other threads run for this long, or until the signal wakes this thread. False if no
    /// thread is left.
    fn sleep(&self, signal: usize, limit: Duration) -> bool;

    /// Wakes all threads that sleep on the signal.
    fn wake_all(&self, signal: usize);

    /// Marks or unmarks the current thread. Returns whether it was marked before.
    fn mark(&self, is_marked: bool) -> bool;
}

#[cfg(memlock_sim)]
thread_local! {
    static THREADS: Cell<Option<&'static dyn Threads>> = const { Cell::new(None) };
}

/// From now on this thread takes its threads from `threads`.
#[cfg(memlock_sim)]
pub fn simulate(threads: Option<&'static dyn Threads>) {
    THREADS.set(threads);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn blocks(signal: libc::c_int) -> bool {
        // SAFETY: plain memory, which is filled before it is read.
        unsafe {
            let mut mask = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
            libc::sigismember(&raw const mask, signal) == 1
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no signals")]
    fn a_thread_of_ours_takes_no_signal_but_that_of_its_own_crash() {
        let (say, said) = channel();
        start("memlock-test", move || {
            say.send((1..32).filter(|&signal| blocks(signal)).collect()).unwrap()
        })
        .unwrap();
        let blocked: Vec<_> = said.recv().unwrap();
        let never = [libc::SIGKILL, libc::SIGSTOP];
        for signal in 1..32 {
            let is_open = OF_CRASHES.contains(&signal) || never.contains(&signal);
            assert_eq!(!blocked.contains(&signal), is_open, "signal {signal}");
        }
        assert!(!blocks(libc::SIGTERM), "whoever starts it takes them as before");
    }
}
