//! What a program's logger and callbacks may do: fork, and use all of memlock. There is one logger
//! for a process, and a fork is one of all of it, so the tests run one after the other.
#![allow(clippy::unwrap_used, clippy::panic)]

mod forking_callbacks;
mod forking_logs;
mod logging;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use log::{Log, Metadata, Record};

const LEASE: Duration = Duration::from_secs(30);
/// For what must happen, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a child ends with that found everything as it should be.
const RIGHT: i32 = 7;

/// The logger of the test that runs.
struct Current;

/// Which one. No mutex: a forked child would find it locked.
static LOGGER: AtomicUsize = AtomicUsize::new(0);
static LOGGERS: [&(dyn Log + 'static); 3] =
    [&forking_callbacks::Forker, &forking_logs::Forker, &logging::LISTENER];

impl Log for Current {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        LOGGERS[LOGGER.load(Ordering::SeqCst)].log(record);
    }

    fn flush(&self) {}
}

/// From now on no other test runs, and this one of the loggers is told of everything.
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

/// The status of a child of ours that has ended.
fn status_now(child: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: waits for a child that was made by `fork`, and not waited for yet.
    (unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == child).then_some(status)
}

fn kill(child: i32) {
    // SAFETY: it is a child of ours that has not been waited for yet.
    unsafe { libc::kill(child, libc::SIGKILL) };
}

/// Waits for the child's end. Gives its status.
fn status(child: i32) -> i32 {
    let began = Instant::now();
    let status = loop {
        if let Some(status) = status_now(child) {
            break status;
        }
        if began.elapsed() > PATIENCE {
            kill(child);
            panic!("the child has not ended by itself");
        }
        thread::sleep(Duration::from_millis(1));
    };
    assert!(libc::WIFEXITED(status), "the child was killed: {status:#x}");
    libc::WEXITSTATUS(status)
}

/// Sets it when it goes, also by a panic.
struct Sets<'a>(&'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
