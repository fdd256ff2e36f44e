//! What is held while the command runs.

use std::fmt;
use std::time::Duration;

use memlock_core::clock::Clock;
use memlock_core::clock::SystemClock;
use memlock_core::wait::Wait;
use memlock_core::{Client, Keep, Kept, Lock, Notice, Permit, Release, Request, Waited};

use crate::args::Run;
use crate::exit::Trouble;
use crate::out;
use crate::when;

use super::signals;

/// A lock, or permits.
pub(super) enum Held {
    Kept(Kept),
    Lock(Lock),
    Permit(Permit),
}

impl Held {
    /// Takes what the command line asks for.
    pub(super) fn take(
        client: &Client,
        args: &Run,
        name: &[u8],
        wait: &Wait<'_>,
    ) -> Result<Waited<Held>, Trouble> {
        if args.semaphore.is_none() && args.permits.is_none() {
            return Ok(match client.mutex(name, args.lease)?.lock_with(wait)? {
                Waited::Done(lock) if args.renew => Waited::Done(Held::Kept(lock.keep(keep(args))?)),
                Waited::Done(lock) => Waited::Done(Held::Lock(lock)),
                Waited::Busy => Waited::Busy,
                Waited::TimedOut => Waited::TimedOut,
                Waited::Interrupted => Waited::Interrupted,
            });
        }
        let semaphore = match args.semaphore {
            Some(permits) => client.semaphore(name, permits, args.lease)?,
            None => client.open_semaphore(name, args.lease)?,
        };
        let (permits, priority) = (args.permits.unwrap_or(1), args.priority.unwrap_or(0));
        let request = Request { permits, priority, ..Request::default() };
        Ok(match semaphore.acquire_with(request, wait)? {
            Waited::Done(permit) if args.renew => Waited::Done(Held::Kept(permit.keep(keep(args))?)),
            Waited::Done(permit) => Waited::Done(Held::Permit(permit)),
            Waited::Busy => Waited::Busy,
            Waited::TimedOut => Waited::TimedOut,
            Waited::Interrupted => Waited::Interrupted,
        })
    }

    pub(super) fn fence(&self) -> Option<u64> {
        match self {
            Held::Kept(kept) => kept.fence(),
            Held::Lock(lock) => Some(lock.fence()),
            Held::Permit(_) => None,
        }
    }

    /// How long it is certainly ours, if it is not renewed.
    pub(super) fn remaining(&self) -> Duration {
        match self {
            Held::Kept(kept) => kept.remaining(),
            Held::Lock(lock) => lock.remaining(),
            Held::Permit(permit) => permit.remaining(),
        }
    }

    /// Why it is not ours any more.
    pub(super) fn lost(&self) -> Option<String> {
        match self {
            Held::Kept(kept) => kept.lost().map(|loss| loss.to_string()),
            _ if self.remaining().is_zero() => {
                Some("its lease is over, and was not to be renewed".to_owned())
            }
            _ => None,
        }
    }

    pub(super) fn release(&mut self) -> memlock_core::Result<Release> {
        match self {
            Held::Kept(kept) => kept.release(),
            Held::Lock(lock) => lock.unlock(),
            Held::Permit(permit) => permit.release(),
        }
    }

    /// Until when the command may count on it, in Unix seconds; `None` when nobody knows.
    pub(super) fn deadline(&self, args: &Run) -> Option<u64> {
        let left = match (args.renew, args.max_hold) {
            (false, _) => self.remaining(),
            (true, Some(longest)) => longest,
            (true, None) => return None,
        };
        Some(when::after(left))
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").finish_non_exhaustive()
    }
}

/// Renews it, warns, and wakes who waits for the command when it is lost.
fn keep(args: &Run) -> Keep {
    let name = out::shown(args.name.as_encoded_bytes());
    let began = SystemClock.now();
    let longest = args.max_hold;
    let tell = move |notice| match notice {
        Notice::Danger(left) => {
            let held = SystemClock.now().since(began);
            let why = match longest {
                Some(longest) if held.saturating_add(left) >= longest => {
                    "has almost been held for as long as was allowed"
                }
                _ => "could not be renewed so far",
            };
            out::complain(&format!("{name} {why}, and ends in {}.", when::brief(left)));
        }
        Notice::Lost(_) => signals::wake(),
    };
    Keep { max_hold: args.max_hold, tell: Some(Box::new(tell)) }
}
