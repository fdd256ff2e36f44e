//! Renewal: leases are renewed while their holder works, and the holder is notified if one ends all
//! the same.
//!
//! | a renewed lease | what is true | what may change it |
//! | --- | --- | --- |
//! | current | it was renewed less than a third of its length ago | the renewal thread, by renewing it; its holder, by releasing it |
//! | overdue | a renewal was due, and has not succeeded yet; the old lease still runs | the renewal thread, which retries while the lease lasts, and reports the risk when half of it has passed |
//! | at its maximum | it was held for `max_hold`, and is no longer renewed | time |
//! | lost | it has expired, or another owner was found; its holder was notified | nothing |
//!
//! A client has one renewal thread, which starts with the first lease to renew and ends with the
//! last one. It renews leases that are due together with those that are due soon: for each server
//! one packet with compare-and-sets for mutexes and reads for semaphores, and another one for
//! leases that need a second step. A renewal of a lock is the owner's step that `extend` is: a lease
//! that is no longer held is never renewed, and no request is started once its holder has released
//! it, or the lease has expired, except to remove a record that counts for nothing. A process that
//! was stopped for longer than its lease therefore finds the lease lost when it continues.
//!
//! In a forked child there is no renewal thread, and nothing is held.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::sentences::{LeaseState, ended};
use crate::error::{Answer, Error, Result};
use crate::guard::lease_guard::{LeaseGuard, NOTHING_TO_RELEASE};
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
use renewable::{Check, Renewable, RenewableKind};

/// A lock or permits whose lease is renewed until they are released or dropped. It can be used from
/// any number of threads at once. The methods' documentation says "the lock" for both.
#[must_use = "it is released as soon as it is dropped"]
pub struct Renewal {
    entry: Arc<RenewalEntry>,
}

#[expect(private_bounds, reason = "sealed, as the guard is")]
impl<K: RenewableKind + 'static> LeaseGuard<K> {
    /// Renews the lease from now on, until it is released, dropped or lost.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`](crate::ErrorKind::Internal) if no thread can be started; the guard
    /// is then released.
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
            what: held.what(),
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
            renewer::add(&entry)
                .map_err(|error| entry.target.said("Renewing the lease of", error))?;
        }
        Ok(Renewal { entry })
    }

    /// The fencing token of a lock: see [`Lock::fence`](crate::Lock). Permits have none.
    pub fn fence(&self) -> Option<u64> {
        self.entry.fence
    }

    /// The name of the mutex or semaphore, for humans; for a name beyond 200 bytes, the server's
    /// key.
    pub fn name(&self) -> String {
        self.entry.target.name()
    }

    /// The server, for humans, such as `memcached at 10.0.0.7:11211`.
    pub fn server(&self) -> String {
        self.entry.target.server()
    }

    /// A message about the outcome of a release: what it concerns, and why it was lost.
    pub fn report(&self, answer: impl Into<Answer>) -> Report {
        let RenewalEntry { target, lease, what, .. } = &*self.entry;
        let state = || LeaseState {
            ours: self.entry.is_ours(),
            lease: *lease,
            deadline: None,
            now: target.now(),
            loss: self.entry.loss(),
        };
        ended(answer.into(), target, |_| what.clone(), state)
    }

    /// Whether the lock is guaranteed to be held, unless the server has lost it since the last
    /// renewal. No I/O.
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// The time for which the lock is guaranteed to be held if it is not renewed; zero if it is not
    /// held. No I/O.
    pub fn remaining(&self) -> Duration {
        if self.lost().is_some() { Duration::ZERO } else { self.certain_time() }
    }

    /// The value of [`Renewal::remaining`], for an observer: does not record a loss.
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

    /// Reads from the server whether the lock is held. If not, it is lost from now on. One round
    /// trip.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) or
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol), as for any read.
    pub fn check(&self) -> Result<bool> {
        if !self.is_held() {
            return Ok(false);
        }
        // A caller that only reads the state must not wait for the server.
        let checker = || self.entry.held().as_ref().map(|held| held.checker());
        let looks = || checker().map_or(Ok(false), |check| check());
        let mut there = looks()?;
        if !there && let Some(put_back) = self.reclaimer() {
            // The renewal may have done so meanwhile, by a longer lease.
            there = put_back()? || looks()?;
        }
        // The lock may have been released, or found lost, meanwhile.
        if !there && self.is_held() {
            self.entry.note(Loss::Gone);
        }
        Ok(there && self.is_held())
    }

    /// Puts the lock back that a server has forgotten, unless it is being released.
    fn reclaimer(&self) -> Option<Check> {
        let mut held = self.entry.held();
        held.as_mut().filter(|held| !held.remaining().is_zero())?.reclaimer()
    }

    /// Why the lock was lost, if it was. No I/O.
    pub fn lost(&self) -> Option<Loss> {
        if !self.entry.is_ours() {
            return None;
        }
        // The renewal thread may not have recorded the end yet.
        let over = self.entry.held().as_ref().is_some_and(|held| held.ends() <= self.entry.now());
        if over {
            self.entry.note(self.entry.why_over());
        }
        self.entry.loss()
    }

    /// Waits until the lock is lost, for at most `limit`. `None` if the time has passed, or if the
    /// lock is no longer held because it was released, or a release was tried and may have
    /// succeeded.
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

    /// Releases the lock: see [`LeaseGuard::release`].
    ///
    /// # Errors
    /// As for that method. The lease is then no longer renewed, and the release can be repeated.
    pub fn release(&self) -> Result<Release> {
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
        let was_lost = self.lost().is_some();
        if released.is_err() {
            *self.entry.held() = Some(held);
        }
        released.map(|released| if was_lost { Release::Lost } else { released })
    }

    /// The SQL statement that releases the lock as a part of the caller's own transaction: see
    /// [`LeaseGuard::release_sql`]. The lease is then no longer renewed.
    ///
    /// # Errors
    /// As for that method.
    pub fn release_sql(&self) -> Result<String> {
        let nothing = || self.entry.target.said("Releasing", Error::invalid(NOTHING_TO_RELEASE));
        if !self.entry.is_ours() {
            return Err(nothing());
        }
        let statement = self.entry.held().as_mut().ok_or_else(nothing)?.release_sql()?;
        self.entry.forget();
        Ok(statement)
    }

    /// Releases the lock on a best-effort basis, as dropping does: see [`LeaseGuard::let_go`].
    ///
    /// # Errors
    /// As for that method.
    pub fn let_go(&self) -> Result<Release> {
        if !self.entry.is_ours() {
            return Ok(Release::NotHeld);
        }
        let tries = self.entry.held().as_mut().map_or(Ok(()), |held| held.begin_drop());
        let released = tries.and_then(|()| {
            self.release().inspect_err(|error| {
                log::warn!(
                    "A renewed lock or permit could not be released when it was dropped. {error}"
                );
            })
        });
        if released.is_err() {
            self.entry.abandon();
        }
        released
    }

    /// Gives up the lock without waiting for the server: see [`LeaseGuard::abandon`].
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Client;
    use crate::error::ErrorKind;
    use crate::fork;

    /// At the fork a thread of the parent may have locked any of the mutexes.
    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot fork")]
    fn a_child_waits_for_no_thread_of_its_parent() {
        let lease = Duration::from_secs(600);
        let client = Client::connect("memory://forked").unwrap();
        let lock = client.mutex("m", lease).unwrap().try_lock().unwrap().unwrap();
        let renewal = lock.renew(RenewOptions::default()).unwrap();
        let entry = Arc::clone(&renewal.entry);
        let locked = (entry.held(), entry.lost.lock(), entry.state());
        let is_right = fork::in_a_child(|| {
            let is_held = renewal.is_held() || renewal.check().unwrap();
            let is_lost = renewal.lost().or_else(|| renewal.wait_lost(lease)).is_some();
            let refused = renewal.release_sql().unwrap_err().kind() == ErrorKind::Invalid;
            let released = renewal.release().unwrap();
            let report = renewal.report(released).to_string();
            renewal.abandon();
            let let_go = renewal.let_go().unwrap();
            let is_nothing = [released, let_go] == [Release::NotHeld; 2];
            !is_held && !is_lost && refused && is_nothing && report.contains("fork")
        });
        drop(locked);
        assert!(is_right);
        assert!(renewal.is_held());
        assert_eq!(renewal.release().unwrap(), Release::Released);
    }
}
