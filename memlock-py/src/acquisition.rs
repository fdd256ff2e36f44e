//! One acquisition: a lock or permits, shared by the threads that use, extend and release it.
//!
//! | lock | held while | never while |
//! | --- | --- | --- |
//! | `HeldLock`, `HeldPermits` of an object | a few instructions run, with the GIL | releasing the GIL, doing I/O, dropping an `Acquisition` |
//! | `Acquisition::guard` | extending and releasing on the server, without the GIL | taking the GIL |
//!
//! Therefore no thread ever waits for the GIL while it holds one of these locks. A fork cannot
//! happen while the first kind is held by another thread, because a thread that forks Python holds
//! the GIL. An `Acquisition` of another process is never locked.

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

/// A lock or permits of the core.
pub(crate) trait Guard: Send + Sized {
    /// The part that never changes, and can be read during an extension.
    type Facts;
    fn facts(&self) -> Self::Facts;
    /// The end of the time for which it is guaranteed to be held.
    fn deadline(&self) -> Moment;
    /// The same while an extension by this lease is in progress.
    fn deadline_while_extending(&self, lease: Duration) -> Moment;
    fn release(&mut self) -> Result<Release>;
    fn extend(&mut self, lease: Duration) -> Result<Extension>;
    fn check(&self) -> Result<bool>;
    fn renew(self, renew: RenewOptions) -> Result<Renewal>;
}

impl Guard for Lock {
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

impl Guard for Permit {
    /// The token of the acquisition, and the number of permits.
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
pub(crate) struct Acquisition<G: Guard> {
    pub(crate) facts: G::Facts,
    /// The thread that acquired it.
    pub(crate) thread: ThreadId,
    process: u64,
    /// The end of the guaranteed time, in nanoseconds of the boot clock: readable during an
    /// extension.
    deadline: AtomicU64,
    /// `None` once it is released, and when it is renewed.
    guard: Mutex<Option<G>>,
    /// The renewal. It has locks of its own, which are never held during I/O.
    renewal: Option<Renewal>,
}

impl<G: Guard> Acquisition<G> {
    /// To be called in the thread that acquired it.
    pub(crate) fn new(guard: G, renew: Option<&Renew>) -> Result<Acquisition<G>> {
        let (facts, deadline) = (guard.facts(), AtomicU64::new(nanoseconds(guard.deadline())));
        let (guard, renewal) = match renew {
            Some(renew) => (None, Some(guard.renew(renew.options())?)),
            None => (Some(guard), None),
        };
        let (thread, process) = (thread::current().id(), fork::generation());
        Ok(Acquisition { facts, thread, process, deadline, guard: Mutex::new(guard), renewal })
    }

    /// Whether it was acquired by this process, as opposed to a parent.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == fork::generation()
    }

    /// The time for which it is guaranteed to be held. No I/O; does not wait for an extension that
    /// is in progress.
    pub(crate) fn remaining(&self) -> Duration {
        if !self.is_of_this_process() {
            return Duration::ZERO;
        }
        if let Some(renewal) = &self.renewal {
            return renewal.remaining();
        }
        let now = nanoseconds(SystemClock.now());
        Duration::from_nanos(self.deadline.load(Ordering::Relaxed).saturating_sub(now))
    }

    /// Sends requests: to be called without the GIL.
    pub(crate) fn release(&self) -> Result<Release> {
        if !self.is_of_this_process() {
            return Ok(Release::NotHeld);
        }
        if let Some(renewal) = &self.renewal {
            return renewal.release();
        }
        self.locked(|slot| {
            let Some(guard) = slot.as_mut() else { return Ok(Release::NotHeld) };
            let released = guard.release();
            // Also after a failure: what may have been released is not guaranteed any more.
            self.deadline.store(nanoseconds(guard.deadline()), Ordering::Relaxed);
            if released.is_ok() {
                *slot = None;
            }
            released
        })
    }

    /// Sends requests: to be called without the GIL.
    pub(crate) fn extend(&self, lease: Duration) -> Result<Extension> {
        if !self.is_of_this_process() {
            return Ok(Extension::NotHeld);
        }
        if let Some(renewal) = &self.renewal {
            return match renewal.lost() {
                Some(_) => Ok(Extension::Lost),
                None if renewal.is_held() => Err(Error::new(
                    ErrorKind::Invalid,
                    "The lease cannot be extended: with renew=True it is renewed automatically.",
                )),
                None => Ok(Extension::NotHeld),
            };
        }
        self.locked(|slot| {
            let Some(guard) = slot.as_mut() else { return Ok(Extension::NotHeld) };
            // Until the reply arrives, assume the shorter of the two leases.
            let deadline = guard.deadline_while_extending(lease);
            self.deadline.fetch_min(nanoseconds(deadline), Ordering::Relaxed);
            let extended = guard.extend(lease);
            self.deadline.store(nanoseconds(guard.deadline()), Ordering::Relaxed);
            extended
        })
    }

    /// Whether the server says that it is held. To be called without the GIL.
    pub(crate) fn check(&self) -> Result<bool> {
        if !self.is_of_this_process() {
            return Ok(false);
        }
        match &self.renewal {
            Some(renewal) => renewal.check(),
            None => self.locked(|slot| slot.as_ref().map_or(Ok(false), Guard::check)),
        }
    }

    /// Why it was lost, if a loss is known. No I/O.
    pub(crate) fn lost(&self) -> Option<Loss> {
        if !self.is_of_this_process() {
            return None;
        }
        match &self.renewal {
            Some(renewal) => renewal.lost(),
            // While it is being extended or released, that call determines the state.
            None => {
                let is_held = self.guard.try_lock().is_ok_and(|slot| slot.is_some());
                (is_held && self.remaining().is_zero()).then_some(Loss::Expired)
            }
        }
    }

    /// Waits for a loss or a release, for at most `timeout`. To be called without the GIL.
    pub(crate) fn wait_lost(&self, timeout: Duration) {
        match &self.renewal {
            Some(renewal) => _ = renewal.wait_lost(timeout),
            None => thread::sleep(timeout.min(self.remaining())),
        }
    }

    /// Messages that are logged meanwhile are emitted after unlocking, because a log handler may
    /// use this object.
    fn locked<T>(&self, body: impl FnOnce(&mut Option<G>) -> T) -> T {
        log::deferred(|| body(&mut self.guard.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Takes out what is held, when the object is deallocated. Dropping the result sends requests:
    /// to be done without the GIL.
    pub(crate) fn take_all(&mut self) -> Option<impl Send> {
        let guard = self.guard.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let renewal = self.renewal.take();
        (guard.is_some() || renewal.is_some()).then_some((guard, renewal))
    }
}

fn nanoseconds(moment: Moment) -> u64 {
    moment.since_boot().as_nanos().try_into().unwrap_or(u64::MAX)
}
