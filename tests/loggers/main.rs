//! What a program's logger and callbacks may do: fork, and use all of memlock. There is one logger
//! for a process, and a fork is one of all of it, so the tests run one after the other.
#![allow(clippy::unwrap_used, clippy::panic)]

mod forking_callbacks;
mod logging;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use log::{Log, Metadata, Record};
use memlock_tests::launch::poll_until;

const LEASE: Duration = Duration::from_secs(30);
/// For what must happen, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a child ends with that found everything as it should be.
const RIGHT: i32 = 7;

/// The logger of the test that runs.
struct Current;

/// Which one. No mutex: a forked child would find it locked.
static LOGGER: AtomicUsize = AtomicUsize::new(0);
static LOGGERS: [&(dyn Log + 'static); 2] = [&forking_callbacks::Forker, &logging::LISTENER];

impl Log for Current {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        LOGGERS[LOGGER.load(Ordering::SeqCst)].log(record);
    }

    fn flush(&self) {}
}

/// From now on no other test runs, and all log records go to this logger.
fn alone_with(logger: usize) -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    LOGGER.store(logger, Ordering::SeqCst);
    // An earlier test may have done so.
    let _ = log::set_logger(&Current);
    log::set_max_level(log::LevelFilter::Trace);
    alone
}

fn fork() -> i32 {
    // SAFETY: the child goes on in this thread alone, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    child
}

fn end(is_right: bool) -> ! {
    // SAFETY: ends the child without running the test harness's destructors.
    unsafe { libc::_exit(if is_right { RIGHT } else { 1 }) }
}

/// Waits for the child's end. Returns its status.
fn status(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: waits for a child that was made by `fork`, and not waited for yet.
    let mut ended = || unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == child;
    if poll_until(PATIENCE, || ended().then_some(())).is_none() {
        // SAFETY: as above.
        unsafe { libc::kill(child, libc::SIGKILL) };
        panic!("the child has not ended by itself");
    }
    assert!(libc::WIFEXITED(status), "the child was killed: {status:#x}");
    libc::WEXITSTATUS(status)
}

/// Sets the flag when it is dropped, also by a panic.
struct Sets<'a>(&'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
