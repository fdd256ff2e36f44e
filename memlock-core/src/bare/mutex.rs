//! Mutexes by bare functions.

use std::time::Duration;

use super::default_client::{default_client, existing_client};
use super::holdings::{HeldLock, Holdings, MOST, holdings};
use crate::bound::{Bound, Thread};
use crate::error::{Answer, Result};
use crate::lease::MIN_LEASE;
use crate::names;
use crate::report::Report;
use crate::wait::Wait;

/// Locks a mutex for at most `duration`, waiting as long as necessary: [`Answer::Ok`] or
/// [`Answer::Interrupted`].
///
/// # Errors
/// [`ErrorKind::Deadlock`](crate::ErrorKind::Deadlock) if this thread holds the mutex already, and
/// the server has not lost it; otherwise as [`Mutex::lock_with`](crate::Mutex::lock_with).
pub fn mutex_lock(name: &[u8], duration: Duration) -> Result<Report> {
    lock(name, duration, &Wait::FOREVER)
}

/// As [`mutex_lock`], but tries once: [`Answer::Ok`], [`Answer::Busy`] or [`Answer::Recovering`].
///
/// # Errors
/// As [`Mutex::lock_with`](crate::Mutex::lock_with).
pub fn mutex_lock_nonblock(name: &[u8], duration: Duration) -> Result<Report> {
    lock(name, duration, &Wait::NEVER)
}

/// As [`mutex_lock`], with a wait of the caller's choice. One with a limit ends as usual, also for what
/// this thread holds.
///
/// # Errors
/// As [`mutex_lock`].
pub fn lock(name: &[u8], duration: Duration, wait: &Wait<'_>) -> Result<Report> {
    let mutex = default_client()?.mutex(name, duration)?;
    match mutex.lock_or_report(wait)? {
        Ok(lock) => {
            let bound = Bound::to_this_thread(lock.token());
            store(name, HeldLock { lock, thread: Thread::current(), _bound: bound });
            Ok(Answer::Ok.into())
        }
        Err(report) => Ok(report),
    }
}

/// A report about a mutex of which this thread holds no lock.
fn about(name: &[u8], answer: Answer, text: &str) -> Report {
    match existing_client().map(|client| client.mutex(name, MIN_LEASE)) {
        Some(Ok(mutex)) => {
            Report::naming(mutex.subject(), answer, |subject| format!("The {subject} {text}."))
        }
        _ => answer.into(),
    }
}

fn store(name: &[u8], held: HeldLock) {
    let mut holdings = holdings();
    let thread = held.thread;
    if !holdings.displaced.is_empty() {
        holdings.displaced.remove(&(name.to_vec(), thread));
    }
    let expired = holdings.locks.insert(name.to_vec(), held);
    if let Some(expired) = expired.as_ref().filter(|expired| expired.thread != thread) {
        if holdings.displaced.len() >= MOST {
            holdings.displaced.clear();
        }
        holdings.displaced.insert((name.to_vec(), expired.thread));
    }
    // Unlocked before the expired lock is dropped, which may communicate with the server.
    drop(holdings);
    drop(expired);
}

/// Whether this thread's lock was displaced by another thread's. This is reported once.
fn was_displaced(holdings: &mut Holdings, name: &[u8]) -> bool {
    if holdings.displaced.is_empty() {
        return false;
    }
    let thread = Thread::current();
    let has_another = holdings.locks.get(name).is_none_or(|held| held.thread != thread);
    has_another && holdings.displaced.remove(&(name.to_vec(), thread))
}

/// Unlocks a mutex that this process locked, from any thread: [`Answer::Ok`], [`Answer::Lost`] or
/// [`Answer::NotHeld`]. A thread whose own lease has ended, and whose mutex another thread has
/// acquired since, gets [`Answer::Lost`].
///
/// # Errors
/// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable),
/// [`ErrorKind::Unknown`](crate::ErrorKind::Unknown) or
/// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol): the lock is still held, and may be unlocked
/// again.
pub fn mutex_unlock(name: &[u8]) -> Result<Report> {
    names::check(name)?;
    let mut holding = holdings();
    if was_displaced(&mut holding, name) {
        drop(holding);
        let text = "was lost: this thread's lease is over, and another thread of this process has \
                    locked it since";
        return Ok(about(name, Answer::Lost, text));
    }
    let Some(mut held) = holding.locks.remove(name) else {
        drop(holding);
        let text = "is not held: this process did not lock it, or has unlocked it";
        return Ok(about(name, Answer::NotHeld, text));
    };
    drop(holding);
    match held.lock.unlock() {
        Ok(released) => Ok(held.lock.report(released)),
        Err(error) => {
            // The release is not confirmed, so the lock is kept, unless another thread has locked
            // the mutex in the meantime.
            let mut holdings = holdings();
            if holdings.locks.contains_key(name) {
                drop(holdings);
                held.lock.abandon();
            } else {
                holdings.locks.insert(name.to_vec(), held);
            }
            Err(error)
        }
    }
}
