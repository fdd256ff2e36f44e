//! Renewal: a lease that is renewed while its holder works, and a holder that is notified if it
//! ends all the same.
//!
//! | a renewed hold | what is true | what may change it |
//! | --- | --- | --- |
//! | held | its lease was renewed less than a third of it ago | the renewer, by renewing it; its owner, by releasing it |
//! | overdue | a renewal was due, and has not succeeded yet; the old lease runs on | the renewer, which tries again for as long as it lasts, and reports to the owner that it is at risk when half of it is gone |
//! | at its longest | it was held for `max_hold`; it is renewed no more | time |
//! | lost | the lease is over, or it was found to be another's | nothing; its owner was notified |
//!
//! A client has one renewer: a thread that begins with the first hold to renew and ends with the
//! last one. It renews what is due, and what will be soon, together: for each server one packet of
//! compare-and-swaps for mutexes and of reads for semaphores, and one more for those that need a
//! second step. Each is the owner's own step, as `extend` is: a hold that is not ours any more is
//! never renewed, and no request is begun once the lease is over, or its owner has released it. So
//! a process that was stopped for longer than its lease finds its hold lost when it goes on.
//!
//! In a forked child there is no renewer, and nothing is held.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::sentences::{LeaseState, ended};
use crate::error::{Answer, Result};
use crate::fork::{Call, call};
use crate::guard::lease_guard::LeaseGuard;
use crate::guard::outcome::{Loss, Release};
use crate::report::Report;
use crate::thread::Signal;

mod batch;
mod entries;
mod entry;
mod notice;
pub(crate) mod renewable;
mod renewer;
mod round;

use entry::{RenewalEntry, RenewalState};
pub use notice::{Notice, RenewOptions};
use renewable::{Renewable, RenewableKind};

/// Something that is held, and whose lease is renewed until it is released or dropped. It can be
/// used from any number of threads at once.
#[must_use = "it is released as soon as it is dropped"]
pub struct Renewal {
    entry: Arc<RenewalEntry>,
}

#[expect(private_bounds, reason = "sealed, as the guard is")]
impl<K: RenewableKind + 'static> LeaseGuard<K> {
    /// Renews the lease from now on, until it is released, dropped or lost.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`](crate::ErrorKind::Internal) when no thread can be started; it is
    /// then released.
    pub fn renew(self, renew: RenewOptions) -> Result<Renewal> {
        Renewal::begin(Box::new(self), renew)
    }
}

impl Renewal {
    pub(super) fn begin(held: Box<dyn Renewable>, renew: RenewOptions) -> Result<Renewal> {
        let target = held.target().clone();
        let now = target.now();
        let (lease, server) = (held.lease().duration(), target.context.server_of(target.route));
        let entry = Arc::new(RenewalEntry {
            process: held.process(),
            fence: held.fence(),
            subject: held.subject(),
            lease,
            server,
            state: Mutex::new(RenewalState {
                due: now,
                overdue: false,
                retry: Duration::ZERO,
                warned: false,
                reported: false,
                in_doubt: held.is_in_doubt(),
            }),
            held: Mutex::new(Some(held)),
            let_go: AtomicBool::new(false),
            cleaned: AtomicBool::new(false),
            lost: Mutex::new(None),
            was_lost: Signal::default(),
            longest: renew.max_hold.map(|longest| now + longest),
            on_notice: renew.on_notice,
            target,
        });
        entry.state().due = entry.in_time();
        // In a child of the holder's process nothing is held.
        if entry.is_ours() {
            renewer::add(&entry)?;
        }
        Ok(Renewal { entry })
    }

    /// The fencing token of a lock: see [`Lock::fence`](crate::Lock). Permits have none.
    pub fn fence(&self) -> Option<u64> {
        self.entry.fence
    }

    /// The name of the mutex or semaphore, for people: of a name beyond 200 bytes the server's key.
    pub fn name(&self) -> String {
        self.entry.target.name()
    }

    /// Where it is, for people, such as `memcached at 10.0.0.7:11211`.
    pub fn server(&self) -> String {
        self.entry.target.server()
    }

    /// What releasing answered, with a sentence that says of what, and why it was lost.
    pub fn report(&self, answer: impl Into<Answer>) -> Report {
        let RenewalEntry { target, lease, subject, .. } = &*self.entry;
        let state = || LeaseState {
            ours: self.entry.is_ours(),
            lease: *lease,
            deadline: None,
            now: target.now(),
            loss: self.entry.loss(),
        };
        ended(answer.into(), || subject.clone(), state)
    }

    /// Whether it is certainly ours, unless the server has lost it since the last renewal. No I/O.
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// How long it is certainly ours yet, if it is not renewed; zero when it is not. No I/O.
    pub fn remaining(&self) -> Duration {
        if self.lost().is_some() { Duration::ZERO } else { self.certain_time() }
    }

    /// What [`Renewal::remaining`] would say, for an observer: a loss is not recorded by
    /// it.
    #[cfg(memlock_sim)]
    pub fn would_remain(&self) -> Duration {
        self.certain_time()
    }

    fn certain_time(&self) -> Duration {
        if !self.entry.is_ours() || self.entry.loss().is_some() {
            return Duration::ZERO;
        }
        self.entry.held().as_ref().map_or(Duration::ZERO, |held| held.remaining())
    }

    /// Asks the server whether it is ours. If not, it is lost from now on. One round trip.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) or
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol), as for any read.
    pub fn check(&self) -> Result<bool> {
        call(|| {
            if !self.is_held() {
                return Ok(false);
            }
            // A caller that only asks for the state must not wait for the server.
            let check = self.entry.held().as_ref().map(|held| held.checker());
            let Some(check) = check else { return Ok(false) };
            let there = check()?;
            // It may have been released, or found lost, meanwhile.
            if !there && self.is_held() {
                self.entry.note(Loss::Gone);
            }
            Ok(there && self.is_held())
        })
    }

    /// Why it was lost, if it was. No I/O.
    pub fn lost(&self) -> Option<Loss> {
        if !self.entry.is_ours() {
            return None;
        }
        // The renewer may not have come to say so.
        let over = self.entry.held().as_ref().is_some_and(|held| held.ends() <= self.entry.now());
        if over {
            self.entry.note(self.entry.why_over());
        }
        self.entry.loss()
    }

    /// Waits until it is lost, and no longer than `limit`. `None` when the time has passed, or when
    /// it is held no longer: it was released, or that was tried and may have succeeded.
    pub fn wait_lost(&self, limit: Duration) -> Option<Loss> {
        let clock = self.entry.target.context.clock();
        let end = clock.now() + limit;
        loop {
            if let Some(loss) = self.lost() {
                return Some(loss);
            }
            let left = end.since(clock.now()).min(self.remaining());
            if left.is_zero() {
                return self.lost();
            }
            let lost = self.entry.lost.lock().unwrap_or_else(PoisonError::into_inner);
            if lost.is_none() && self.entry.is_renewed() {
                self.entry.was_lost.sleep(lost, left);
            }
        }
    }

    /// Releases it: see [`LeaseGuard::release`].
    ///
    /// # Errors
    /// As those. It is then kept no longer, and may be released again.
    pub fn release(&self) -> Result<Release> {
        let call = Call::begin();
        if !self.entry.is_ours() {
            return Ok(Release::NotHeld);
        }
        let taken = self.entry.held().take();
        let Some(mut held) = taken else {
            let is_cleaned_up = self.entry.cleaned.load(Ordering::Acquire);
            return Ok(if is_cleaned_up { Release::Lost } else { Release::NotHeld });
        };
        self.entry.cleaned.store(false, Ordering::Release);
        self.entry.forget();
        self.entry.wake_waiters();
        let released = held.release();
        // In a child that was made on the way, what it held is its parent's.
        if call.is_astray() {
            return released;
        }
        let was_lost = self.lost().is_some();
        if released.is_err() {
            *self.entry.held() = Some(held);
        }
        released.map(|released| if was_lost { Release::Lost } else { released })
    }

    /// Releases it as well as that can be done, as its drop does: see [`LeaseGuard::let_go`].
    pub fn let_go(&self) -> Option<Release> {
        if !self.entry.is_ours() {
            return Some(Release::NotHeld);
        }
        let tries = self.entry.held().as_mut().is_none_or(|held| held.begin_drop());
        if tries {
            match self.release() {
                Ok(released) => return Some(released),
                Err(error) => {
                    log::warn!("What was kept could not be released when it was dropped. {error}")
                }
            }
        }
        self.entry.abandon();
        None
    }

    /// Gives it up without waiting for the server: see [`LeaseGuard::abandon`].
    pub fn abandon(&self) {
        self.entry.abandon();
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        let _ = self.let_go();
    }
}

impl fmt::Debug for Renewal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewal").field("fence", &self.entry.fence).finish_non_exhaustive()
    }
}
