//! Operations on a semaphore as a whole: set-up, resizing, status, tear-down.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::handle::Semaphore;
#[cfg(doc)]
use super::mismatch::Mismatch;
use super::wake::wake_next;
use crate::cas_backoff::{ROUNDS, back_off};
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Error, Result};
use crate::lease::Lease;
use crate::mutation::{self, Mutation};
use crate::owner::Token;
use crate::primitives::set_up::SetUp;
use crate::store::{Op, Recovery, Reply};
use crate::target::ATTEMPTS;

/// A semaphore at the time of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The number of permits.
    pub permits: u32,
    /// How many of them are available.
    pub available: u32,
    /// The holders of the other permits.
    pub holders: Vec<Holder>,
}

/// A holder of permits at the time of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Identifies this acquisition.
    pub token: Token,
    /// How many permits it holds.
    pub permits: u32,
    /// The name of its host, cut at 32 characters.
    pub host: String,
    /// Its process id on that host.
    pub pid: u32,
    /// When the holder acquired the permits, in Unix seconds of its own clock.
    pub since: u64,
    /// How long the server keeps the permits for the holder at most, in its whole seconds.
    pub remaining: Duration,
}

impl Semaphore {
    /// If the server gives no new permits yet, for how long: until then permits that look available may
    /// be held all the same. As far as known: no I/O.
    pub fn recovery(&self) -> Option<Recovery> {
        self.target.context.recovery(self.target.route)
    }

    /// Sets the semaphore up with the number of permits that the handle was opened with, to be
    /// stored for `life` (1 second to 366 days) after its last use. Without this call, the first
    /// acquisition sets it up, to be stored for a day.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a `life` out of range, and, with [`Mismatch::Refuse`], if the
    /// semaphore exists with another number of permits; [`ErrorKind::NotFound`] if there is none,
    /// and the handle was opened without a number; [`ErrorKind::Unreachable`],
    /// [`ErrorKind::Unknown`] or [`ErrorKind::Protocol`].
    pub fn set_up(&self, life: Duration) -> Result<SetUp> {
        self.set_up_once(life).map_err(|error| self.said("Setting up", error))
    }

    fn set_up_once(&self, life: Duration) -> Result<SetUp> {
        let life = self.target.context.guarantees().covering_seconds(Lease::new(life)?.duration());
        // A new token for each attempt: by the token, a tear-down knows whether it has removed the
        // semaphore that it saw.
        let mut tokens = Vec::new();
        for _ in 0..ROUNDS {
            let in_doubt = !tokens.is_empty();
            let unresolved = |error: Error| error.after_write(in_doubt, "semaphore");
            let snapshot = match self.inspect().map_err(unresolved)? {
                Some(snapshot) => snapshot,
                None => {
                    let token = self.target.context.identity()?.token();
                    let permits = self.number().ok_or_else(|| self.not_found())?;
                    tokens.push(token);
                    match self.create(token, life, permits).map_err(unresolved)? {
                        Some(snapshot) => snapshot,
                        None => continue,
                    }
                }
            };
            self.agree(snapshot.record.permits)?;
            let created = tokens.contains(&snapshot.record.token);
            return Ok(if created { SetUp::Created } else { SetUp::Joined });
        }
        Err(Error::unresolved(None, "semaphore"))
    }

    /// Removes the semaphore for all clients. Holders of permits find them lost; waiters that did
    /// not specify the number of permits get the answer "not found". False if there was none.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`], [`ErrorKind::Unknown`] or [`ErrorKind::Protocol`].
    pub fn tear_down(&self) -> Result<bool> {
        self.tear_down_observed().map_err(|error| self.said("Tearing down", error))
    }

    fn tear_down_observed(&self) -> Result<bool> {
        let (mut sent, mut gone, mut in_doubt) = (None, false, false);
        for round in 0..ROUNDS {
            let unresolved = |error: Error| error.after_write(in_doubt, "semaphore");
            let Some(snapshot) = self.inspect().map_err(unresolved)? else {
                gone = true;
                break;
            };
            // A semaphore that was set up after the first request was sent must not be removed.
            if sent.is_some_and(|token| token != snapshot.record.token)
                && !mutation::has(Mutation::TearDownWhatCame)
            {
                gone = true;
                break;
            }
            sent = Some(snapshot.record.token);
            match self.target.one(Op::Delete { key: &self.target.key, version: snapshot.version }) {
                Ok(Reply::Deleted) => {
                    gone = true;
                    break;
                }
                Ok(_) => {
                    back_off(&self.target.context, round)?;
                }
                Err(failure) if !failure.sent || !failure.error.is_outage() => {
                    return Err(unresolved(failure.error));
                }
                Err(_) => in_doubt = true,
            }
        }
        if !gone {
            return Err(Error::unresolved(None, "semaphore"));
        }
        self.forget();
        if sent.is_some() {
            wake_next(&self.target);
        }
        Ok(sent.is_some())
    }

    /// Changes the number of permits, for all clients. Fewer than are held is allowed: no holder
    /// loses any, and no more are granted until enough have been released. Returns the old number;
    /// `None` if there is no such semaphore.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for 0 permits; [`ErrorKind::Unreachable`], [`ErrorKind::Unknown`] or
    /// [`ErrorKind::Protocol`].
    pub fn resize(&self, permits: u32) -> Result<Option<u32>> {
        if permits == 0 {
            let error = Error::invalid("A semaphore has at least one permit.");
            return Err(self.said("Resizing", error));
        }
        self.write_number(permits).map_err(|error| self.said("Resizing", error))
    }

    pub(super) fn write_number(&self, permits: u32) -> Result<Option<u32>> {
        let mut before = None;
        let mut failures = 0;
        for round in 0..ROUNDS {
            let inspected = self.inspect();
            let Some(mut snapshot) =
                inspected.map_err(|error| error.after_write(failures > 0, "semaphore"))?
            else {
                return Ok(None);
            };
            before.get_or_insert(snapshot.record.permits);
            let mut is_done = snapshot.record.permits == permits;
            if !is_done {
                snapshot.record.permits = permits;
                is_done = match self.write(snapshot) {
                    Ok(wrote) if wrote.done => true,
                    Ok(_) => {
                        back_off(&self.target.context, round)?;
                        false
                    }
                    Err(failure) => {
                        failures += 1;
                        if !failure.sent || failures == ATTEMPTS {
                            return Err(if failures == 1 {
                                failure.error
                            } else {
                                Error::unresolved(Some(failure.error), "semaphore")
                            });
                        }
                        false
                    }
                };
            }
            if is_done {
                self.agreed.store(permits, Ordering::Relaxed);
                wake_next(&self.target);
                return Ok(before);
            }
        }
        Err(Error::unresolved(None, "semaphore"))
    }

    /// The semaphore's present status; `None` if there is no such semaphore. The result is already
    /// outdated when it returns: it is for people, not for decisions. One round trip.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] or [`ErrorKind::Protocol`], as for any read.
    pub fn status(&self) -> Result<Option<Status>> {
        let snapshot = self.inspect().map_err(|error| self.said("Looking at", error))?;
        Ok(snapshot.map(|snapshot| {
            let available = snapshot.available(self.target.now());
            Status { available, ..Status::of(&snapshot.record, snapshot.now) }
        }))
    }
}
