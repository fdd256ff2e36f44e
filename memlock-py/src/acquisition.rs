//! One acquisition: a lock or permits, shared by the threads that use, extend and release it.
//!
//! | lock | held while | never while |
//! | --- | --- | --- |
//! | `HeldLock`, `HeldPermits` of an object | a few instructions run, with the GIL | releasing the GIL, doing I/O, dropping an `Acquisition` |
//! | `Acquisition::statement` | a few instructions run | taking the GIL |
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
    Error, ErrorKind, Extension, Guard, Loss, Release, Renewal, Result, Token, fork,
};

use pyo3::prelude::*;

use crate::deferral::{Deferral, Scope};
use crate::entered::Statement;
use crate::leftover::Holds;
use crate::log;
use crate::renew::Renew;

/// One acquisition.
pub(crate) struct Acquisition {
    pub(crate) token: Token,
    /// `None` for permits.
    pub(crate) fence: Option<u64>,
    /// The thread that acquired it.
    pub(crate) thread: ThreadId,
    pub(crate) scope: Scope,
    pub(crate) deferral: Deferral,
    /// The `with` statement, if there is one.
    statement: Statement,
    process: u64,
    /// The end of the guaranteed time, in nanoseconds of the boot clock: readable during an
    /// extension.
    deadline: AtomicU64,
    /// `None` once it is released, and when it is renewed.
    guard: Mutex<Option<Box<dyn Guard>>>,
    /// The renewal. It has locks of its own, which are never held during I/O.
    renewal: Option<Renewal>,
}

impl Acquisition {
    /// To be called in the thread that acquired it.
    pub(crate) fn new(
        guard: Box<dyn Guard>,
        renew: Option<&Renew>,
        scope: Scope,
    ) -> Result<Acquisition> {
        let (token, fence) = (guard.token(), guard.fence());
        let deadline = AtomicU64::new(nanoseconds(guard.deadline()));
        let (guard, renewal) = match renew {
            Some(renew) => (None, Some(guard.renew(renew.options())?)),
            None => (Some(guard), None),
        };
        let (thread, process) = (thread::current().id(), fork::generation());
        let guard = Mutex::new(guard);
        Ok(Acquisition {
            token,
            fence,
            thread,
            scope,
            deferral: Deferral::default(),
            statement: Statement::default(),
            process,
            deadline,
            guard,
            renewal,
        })
    }

    /// Whether it was acquired by this process, as opposed to a parent.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == fork::generation()
    }

    /// A `with` statement has entered it, in this thread. A child enters nothing of its parent's.
    pub(crate) fn enter(&self, py: Python<'_>) {
        if self.is_of_this_process() {
            self.statement.enter(py, self.token);
        }
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
        self.statement.leave();
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

    /// The SQL statement that releases it in a transaction of the caller's. No I/O.
    pub(crate) fn release_sql(&self) -> Result<String> {
        if let Some(renewal) = &self.renewal {
            return renewal.release_sql();
        }
        self.locked(|slot| {
            let nothing = || Error::new(ErrorKind::Invalid, "Nothing is held.");
            let guard = slot.as_mut().ok_or_else(nothing)?;
            let statement = guard.release_sql();
            self.deadline.store(nanoseconds(guard.deadline()), Ordering::Relaxed);
            statement
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
            None => self.locked(|slot| slot.as_ref().map_or(Ok(false), |guard| guard.check())),
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
    fn locked<T>(&self, body: impl FnOnce(&mut Option<Box<dyn Guard>>) -> T) -> T {
        log::deferred(|| body(&mut self.guard.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Whether a transaction has released it, and the end of its `with` statement is still to come.
    pub(crate) fn is_due_by_with(&self) -> bool {
        self.scope == Scope::With && !self.deferral.is_left()
    }

    /// Whether there is something to release. No I/O.
    pub(crate) fn is_unreleased(&self) -> bool {
        self.is_of_this_process()
            && match &self.renewal {
                Some(renewal) => renewal.is_held() || renewal.lost().is_some(),
                None => self.guard.try_lock().is_ok_and(|guard| guard.is_some()),
            }
    }

    /// Whether there may be something to release.
    pub(crate) fn may_hold(&self) -> bool {
        self.renewal.is_some() || self.guard.try_lock().is_ok_and(|guard| guard.is_some())
    }

    /// Releases on a best-effort basis, as dropping does. Sends requests: to be called without the
    /// GIL. What another thread is just releasing or extending is left to that thread.
    pub(crate) fn let_go(&self) {
        if !self.is_of_this_process() {
            return;
        }
        if let Some(renewal) = &self.renewal {
            let _ = renewal.let_go();
        }
        let guard = self.guard.try_lock().ok().and_then(|mut guard| guard.take());
        drop(guard);
    }
}

impl Holds for Acquisition {
    fn let_go(&self, thread: ThreadId) {
        if self.thread == thread {
            self.let_go();
        }
    }
}

fn nanoseconds(moment: Moment) -> u64 {
    moment.since_boot().as_nanos().try_into().unwrap_or(u64::MAX)
}
