//! One acquisition: a lock or permits, shared by the threads that use, extend and release it.
//!
//! | lock | held while | never while |
//! | --- | --- | --- |
//! | that of an object's place (`held_lock`, `held_permits`) | a few instructions, with the interpreter attached | detaching, doing I/O, dropping a `Held` |
//! | a `Held`'s | extending and releasing on the server, detached | attaching |
//!
//! So no thread ever waits for the interpreter with one of them in hand. And a fork catches nobody
//! in that of a place: whoever forks Python holds the interpreter's lock. A `Held` that another
//! process made is never locked.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use memlock_core::clock::{Clock, Moment, SystemClock};
use memlock_core::{
    Error, ErrorKind, Extension, Lock, Loss, Permit, Release, RenewOptions, Renewal, Result, Token,
    fork,
};

use crate::log;
use crate::renew::Renew;

/// What is held for a lease, as the core has it.
pub(crate) trait Leased: Send + Sized {
    /// What of it never changes, and can be read while it is extended.
    type Facts;
    fn facts(&self) -> Self::Facts;
    /// Until when it is certainly ours.
    fn deadline(&self) -> Moment;
    /// The same while an extension by this lease is under way.
    fn deadline_while_extending(&self, lease: Duration) -> Moment;
    fn release(&mut self) -> Result<Release>;
    fn extend(&mut self, lease: Duration) -> Result<Extension>;
    fn check(&self) -> Result<bool>;
    fn renew(self, renew: RenewOptions) -> Result<Renewal>;
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

    fn deadline_while_extending(&self, lease: Duration) -> Moment {
        self.deadline_while_extending(lease)
    }

    fn release(&mut self) -> Result<Release> {
        self.unlock()
    }

    fn extend(&mut self, lease: Duration) -> Result<Extension> {
        self.extend(lease)
    }

    fn check(&self) -> Result<bool> {
        self.check()
    }

    fn renew(self, renew: RenewOptions) -> Result<Renewal> {
        self.renew(renew)
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

    fn deadline_while_extending(&self, lease: Duration) -> Moment {
        self.deadline_while_extending(lease)
    }

    fn release(&mut self) -> Result<Release> {
        self.release()
    }

    fn extend(&mut self, lease: Duration) -> Result<Extension> {
        self.extend(lease)
    }

    fn check(&self) -> Result<bool> {
        self.check()
    }

    fn renew(self, renew: RenewOptions) -> Result<Renewal> {
        self.renew(renew)
    }
}

/// One acquisition.
pub(crate) struct Held<L: Leased> {
    pub(crate) facts: L::Facts,
    /// The thread and the process that acquired it.
    pub(crate) thread: ThreadId,
    process: u64,
    /// Until when it is certainly ours, in nanoseconds of the boot clock: readable during an
    /// extension.
    ends: AtomicU64,
    /// `None` once it is released, and when it is kept.
    leased: Mutex<Option<L>>,
    /// What is renewed by itself. It has its own locks, under which nobody speaks to a server.
    kept: Option<Renewal>,
}

impl<L: Leased> Held<L> {
    /// To be called in the thread that acquired it.
    pub(crate) fn new(leased: L, renew: Option<&Renew>) -> Result<Held<L>> {
        let (facts, ends) = (leased.facts(), AtomicU64::new(nanoseconds(leased.deadline())));
        let (leased, kept) = match renew {
            Some(renew) => (None, Some(leased.renew(renew.renew())?)),
            None => (Some(leased), None),
        };
        let (thread, process) = (thread::current().id(), fork::generation());
        Ok(Held { facts, thread, process, ends, leased: Mutex::new(leased), kept })
    }

    /// Whether this process acquired it, and not a parent of it.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == fork::generation()
    }

    /// How long it is certainly ours yet. No I/O, and no waiting for an extension that is under
    /// way.
    pub(crate) fn remaining(&self) -> Duration {
        if !self.is_of_this_process() {
            return Duration::ZERO;
        }
        if let Some(kept) = &self.kept {
            return kept.remaining();
        }
        let now = nanoseconds(SystemClock.now());
        Duration::from_nanos(self.ends.load(Ordering::Relaxed).saturating_sub(now))
    }

    /// To be called detached: it speaks to the server.
    pub(crate) fn release(&self) -> Result<Release> {
        if !self.is_of_this_process() {
            return Ok(Release::NotHeld);
        }
        if let Some(kept) = &self.kept {
            return kept.release();
        }
        self.locked(|place| {
            let Some(leased) = place.as_mut() else { return Ok(Release::NotHeld) };
            let ended = leased.release();
            // After a failure, too: what may have been released is not certainly ours.
            self.ends.store(nanoseconds(leased.deadline()), Ordering::Relaxed);
            if ended.is_ok() {
                *place = None;
            }
            ended
        })
    }

    /// To be called detached: it speaks to the server.
    pub(crate) fn extend(&self, lease: Duration) -> Result<Extension> {
        if !self.is_of_this_process() {
            return Ok(Extension::NotHeld);
        }
        if let Some(kept) = &self.kept {
            return match kept.lost() {
                Some(_) => Ok(Extension::Lost),
                None if kept.is_held() => Err(Error::new(
                    ErrorKind::Invalid,
                    "What is acquired with renew=True is extended by itself.",
                )),
                None => Ok(Extension::NotHeld),
            };
        }
        self.locked(|place| {
            let Some(leased) = place.as_mut() else { return Ok(Extension::NotHeld) };
            // Until the answer is there, count on what the server keeps by either of the two.
            let ends = leased.deadline_while_extending(lease);
            self.ends.fetch_min(nanoseconds(ends), Ordering::Relaxed);
            let ended = leased.extend(lease);
            self.ends.store(nanoseconds(leased.deadline()), Ordering::Relaxed);
            ended
        })
    }

    /// Whether it is ours, as the server says. To be called detached.
    pub(crate) fn check(&self) -> Result<bool> {
        if !self.is_of_this_process() {
            return Ok(false);
        }
        match &self.kept {
            Some(kept) => kept.check(),
            None => self.locked(|place| place.as_ref().map_or(Ok(false), Leased::check)),
        }
    }

    /// Why it was lost, if it was, as far as is known. No I/O.
    pub(crate) fn lost(&self) -> Option<Loss> {
        if !self.is_of_this_process() {
            return None;
        }
        match &self.kept {
            Some(kept) => kept.lost(),
            // Where it is being extended or released just now, that is to say how it stands.
            None => {
                let is_held = self.leased.try_lock().is_ok_and(|place| place.is_some());
                (is_held && self.remaining().is_zero()).then_some(Loss::Expired)
            }
        }
    }

    /// Waits until it is lost or released, for at most so long. To be called detached.
    pub(crate) fn wait_lost(&self, limit: Duration) {
        match &self.kept {
            Some(kept) => _ = kept.wait_lost(limit),
            None => thread::sleep(limit.min(self.remaining())),
        }
    }

    /// What is logged meanwhile is told when it is unlocked: a handler may use what it is told of.
    fn locked<T>(&self, body: impl FnOnce(&mut Option<L>) -> T) -> T {
        log::later(|| body(&mut self.leased.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Empties it for good, when the object goes. To be dropped detached: that speaks to the
    /// server.
    pub(crate) fn empty(&mut self) -> Option<impl Send> {
        let leased = self.leased.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let kept = self.kept.take();
        (leased.is_some() || kept.is_some()).then_some((leased, kept))
    }
}

fn nanoseconds(moment: Moment) -> u64 {
    moment.since_boot().as_nanos().try_into().unwrap_or(u64::MAX)
}
