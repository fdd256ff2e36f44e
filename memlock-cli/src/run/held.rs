//! What is held while the command runs.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memlock_core::clock::Clock;
use memlock_core::clock::SystemClock;
use memlock_core::lease::MIN_LEASE;
use memlock_core::wait::Wait;
use memlock_core::{Client, Keep, Kept, Lock, Loss, Notice, Permit, Release, Request, Waited};

use crate::args::Run;
use crate::exit::Trouble;
use crate::out;
use crate::when;

use super::signals;

/// A lock, or permits.
pub(super) struct Held {
    what: What,
    /// The server was asked for it, and has it no more.
    is_gone: AtomicBool,
}

enum What {
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
        // Whoever says how long it may be held at most has not asked for a longer lease.
        let lease = args.max_hold.map_or(args.lease, |longest| longest.max(MIN_LEASE).min(args.lease));
        if args.semaphore.is_none() && args.permits.is_none() {
            return Ok(match client.mutex(name, lease)?.lock_with(wait)? {
                Waited::Done(lock) if args.renew => Waited::Done(What::Kept(lock.keep(keep(args))?).into()),
                Waited::Done(lock) => Waited::Done(What::Lock(lock).into()),
                Waited::Busy => Waited::Busy,
                Waited::TimedOut => Waited::TimedOut,
                Waited::Interrupted => Waited::Interrupted,
            });
        }
        let semaphore = match args.semaphore {
            Some(permits) => client.semaphore(name, permits, lease)?,
            None => client.open_semaphore(name, lease)?,
        };
        let (permits, priority) = (args.permits.unwrap_or(1), args.priority.unwrap_or(0));
        let request = Request { permits, priority, ..Request::default() };
        Ok(match semaphore.acquire_with(request, wait)? {
            Waited::Done(permit) if args.renew => Waited::Done(What::Kept(permit.keep(keep(args))?).into()),
            Waited::Done(permit) => Waited::Done(What::Permit(permit).into()),
            Waited::Busy => Waited::Busy,
            Waited::TimedOut => Waited::TimedOut,
            Waited::Interrupted => Waited::Interrupted,
        })
    }

    pub(super) fn fence(&self) -> Option<u64> {
        match &self.what {
            What::Kept(kept) => kept.fence(),
            What::Lock(lock) => Some(lock.fence()),
            What::Permit(_) => None,
        }
    }

    /// How long it is certainly ours, if it is not renewed.
    pub(super) fn remaining(&self) -> Duration {
        match &self.what {
            What::Kept(kept) => kept.remaining(),
            What::Lock(lock) => lock.remaining(),
            What::Permit(permit) => permit.remaining(),
        }
    }

    /// Asks the server whether it has it yet. True when it is known to be lost; who cannot be asked has not lost it.
    pub(super) fn is_found_lost(&self) -> bool {
        let there = match &self.what {
            What::Kept(kept) => kept.check(),
            What::Lock(lock) => lock.check(),
            What::Permit(permit) => permit.check(),
        };
        let lost = there.is_ok_and(|there| !there);
        self.is_gone.fetch_or(lost, Ordering::Relaxed);
        lost
    }

    /// Why it is not ours any more, as far as is known.
    pub(super) fn lost(&self) -> Option<String> {
        match &self.what {
            What::Kept(kept) => kept.lost().map(|loss| loss.to_string()),
            _ if self.remaining().is_zero() => {
                Some("its lease is over, and was not to be renewed".to_owned())
            }
            _ if self.is_gone.load(Ordering::Relaxed) => Some(Loss::Gone.to_string()),
            _ => None,
        }
    }

    pub(super) fn release(&mut self) -> memlock_core::Result<Release> {
        match &mut self.what {
            What::Kept(kept) => kept.release(),
            What::Lock(lock) => lock.unlock(),
            What::Permit(permit) => permit.release(),
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

impl From<What> for Held {
    fn from(what: What) -> Held {
        Held { what, is_gone: AtomicBool::new(false) }
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
