//! One acquisition: a lock or permits, shared by the threads that use, extend and release it.
//!
//! | lock | held while | never while |
//! | --- | --- | --- |
//! | that of an object's place (`slot`, `pile`) | a few instructions, with the interpreter attached | detaching, doing I/O, dropping a `Held` |
//! | a `Held`'s | extending and releasing on the server, detached | attaching |
//!
//! So no thread ever waits for the interpreter with one of them in hand. And a fork catches nobody in that of a
//! place: whoever forks Python holds the interpreter's lock. A `Held` that another process made is never locked.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use memlock_core::clock::{Clock, Moment, SystemClock};
use memlock_core::{Extension, Lock, Permit, Release, Result, Token, fork};

/// What is held for a lease, as the core has it.
pub(crate) trait Leased: Send {
    /// What of it never changes, and can be read while it is extended.
    type Facts;
    fn facts(&self) -> Self::Facts;
    /// Until when it is certainly ours.
    fn deadline(&self) -> Moment;
    fn release(&mut self) -> Result<Release>;
    fn extend(&mut self, lease: Duration) -> Result<Extension>;
}

impl Leased for Lock {
    /// The fence.
    type Facts = u64;

    fn facts(&self) -> u64 {
        self.fence()
    }

    fn deadline(&self) -> Moment {
        self.deadline()
    }

    fn release(&mut self) -> Result<Release> {
        self.unlock()
    }

    fn extend(&mut self, lease: Duration) -> Result<Extension> {
        self.extend(lease)
    }
}

impl Leased for Permit {
    /// The acquisition's name, and how many permits these are.
    type Facts = (Token, u32);

    fn facts(&self) -> (Token, u32) {
        (self.token(), self.permits())
    }

    fn deadline(&self) -> Moment {
        self.deadline()
    }

    fn release(&mut self) -> Result<Release> {
        self.release()
    }

    fn extend(&mut self, lease: Duration) -> Result<Extension> {
        self.extend(lease)
    }
}

/// One acquisition.
pub(crate) struct Held<L: Leased> {
    pub(crate) facts: L::Facts,
    /// The thread and the process that acquired it.
    pub(crate) thread: ThreadId,
    process: u64,
    /// Until when it is certainly ours, in nanoseconds of the boot clock: readable during an extension.
    ends: AtomicU64,
    /// `None` once it is released.
    leased: Mutex<Option<L>>,
}

impl<L: Leased> Held<L> {
    /// To be called in the thread that acquired it.
    pub(crate) fn new(leased: L) -> Held<L> {
        Held {
            facts: leased.facts(),
            thread: thread::current().id(),
            process: fork::generation(),
            ends: AtomicU64::new(nanoseconds(leased.deadline())),
            leased: Mutex::new(Some(leased)),
        }
    }

    /// Whether this process acquired it, and not a parent of it.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == fork::generation()
    }

    /// How long it is certainly ours yet. No I/O, and no waiting for an extension that is under way.
    pub(crate) fn remaining(&self) -> Duration {
        if !self.is_of_this_process() {
            return Duration::ZERO;
        }
        let now = nanoseconds(SystemClock.now());
        Duration::from_nanos(self.ends.load(Ordering::Relaxed).saturating_sub(now))
    }

    /// To be called detached: it speaks to the server.
    pub(crate) fn release(&self) -> Result<Release> {
        if !self.is_of_this_process() {
            return Ok(Release::NotHeld);
        }
        let mut place = self.leased.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(leased) = place.as_mut() else { return Ok(Release::NotHeld) };
        let ended = leased.release();
        // After a failure, too: what may have been released is not certainly ours.
        self.ends.store(nanoseconds(leased.deadline()), Ordering::Relaxed);
        if ended.is_ok() {
            *place = None;
        }
        ended
    }

    /// To be called detached: it speaks to the server.
    pub(crate) fn extend(&self, lease: Duration) -> Result<Extension> {
        if !self.is_of_this_process() {
            return Ok(Extension::NotHeld);
        }
        let mut place = self.leased.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(leased) = place.as_mut() else { return Ok(Extension::NotHeld) };
        // Until the answer is there, count on the shorter of the two.
        self.ends.fetch_min(nanoseconds(SystemClock.now() + lease), Ordering::Relaxed);
        let ended = leased.extend(lease);
        self.ends.store(nanoseconds(leased.deadline()), Ordering::Relaxed);
        ended
    }

    /// Empties it for good, when the object goes. To be dropped detached: that speaks to the server.
    pub(crate) fn empty(&mut self) -> Option<L> {
        self.leased.get_mut().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn nanoseconds(moment: Moment) -> u64 {
    moment.since_boot().as_nanos().try_into().unwrap_or(u64::MAX)
}
