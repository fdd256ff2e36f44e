//! Waiting for a lock: how long, when to look again, and what ends it.
//!
//! For now a waiter looks again and again, first after about a millisecond and then ever more seldom, up to
//! four times a second. A wait ends when the lock is ours, at its limit, when it is cancelled, or when the
//! server has been out of reach for longer than the client tolerates.

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use crate::clock::{Clock, Moment};
use crate::error::{ErrorKind, Result};

/// The first pause between two looks.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The longest pause between two looks.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// A pause is slept in slices, so that a cancelled wait ends soon.
const SLICE: Duration = Duration::from_millis(40);

/// How long to wait for a lock, and what may end the wait early.
#[derive(Clone, Copy, Default)]
pub struct Wait<'a> {
    limit: Option<Duration>,
    interrupted: Option<&'a dyn Fn() -> bool>,
}

impl<'a> Wait<'a> {
    /// Wait for as long as it takes.
    pub const FOREVER: Wait<'static> = Wait { limit: None, interrupted: None };
    /// Try once.
    pub const NEVER: Wait<'static> = Wait { limit: Some(Duration::ZERO), interrupted: None };

    /// Wait at most this long. Zero means: try once.
    pub fn at_most(limit: Duration) -> Wait<'a> {
        Wait { limit: Some(limit), interrupted: None }
    }

    /// Whether it means: try once.
    pub fn is_once(&self) -> bool {
        self.limit == Some(Duration::ZERO)
    }

    /// Ends the wait when `interrupted` answers true. It is asked about every 40 ms, and at once when a
    /// signal handler ran in the waiting thread.
    #[must_use]
    pub fn unless(mut self, interrupted: &'a dyn Fn() -> bool) -> Wait<'a> {
        self.interrupted = Some(interrupted);
        self
    }
}

impl fmt::Debug for Wait<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait").field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// How a wait ended, other than by a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited<T> {
    /// We have it.
    Done(T),
    /// Somebody else has it, and the call was told to try once.
    Busy,
    /// The limit passed.
    TimedOut,
    /// The wait was cancelled.
    Interrupted,
}

impl<T> Waited<T> {
    /// What was waited for, if it came.
    pub fn done(self) -> Option<T> {
        match self {
            Waited::Done(value) => Some(value),
            _ => None,
        }
    }
}

/// What a waiter needs of its surroundings.
pub(crate) struct Surroundings<'a> {
    pub(crate) clock: &'a dyn Clock,
    /// A number from 0 up to 1.
    pub(crate) jitter: &'a dyn Fn() -> f64,
    /// Whether all waits of this client were cancelled since this one began.
    pub(crate) cancelled: &'a dyn Fn() -> bool,
    /// How long the server may be out of reach before a waiter gives up.
    pub(crate) outage: Duration,
}

/// Tries until `attempt` gives something, or the wait ends. An attempt that takes long asks the function that it
/// is given whether to stop.
///
/// An unreachable server on the very first attempt is reported at once: it is more likely a wrong address
/// than an outage. Later it is ridden out for as long as the client tolerates.
pub(crate) fn poll<T>(
    wait: &Wait<'_>,
    around: &Surroundings<'_>,
    mut attempt: impl FnMut(&dyn Fn() -> bool) -> Result<Option<T>>,
) -> Result<Waited<T>> {
    let clock = around.clock;
    let once = wait.is_once();
    let deadline = wait.limit.map(|limit| clock.now() + limit);
    // Once is enough: whoever asks may be told only once, as by a signal that is consumed by looking at it.
    let told = Cell::new(false);
    let interrupted = || {
        let now =
            told.get() || (around.cancelled)() || wait.interrupted.is_some_and(|interrupted| interrupted());
        told.set(now);
        now
    };
    // A call that tries once finds out what came of it; a wait does that only within its limit.
    let enough = || interrupted() || (!once && deadline.is_some_and(|deadline| clock.now() >= deadline));
    let mut pause = FIRST_PAUSE;
    let mut met = false;
    let mut out_since: Option<Moment> = None;
    loop {
        match attempt(&enough) {
            Ok(Some(value)) => return Ok(Waited::Done(value)),
            Ok(None) => (met, out_since) = (true, None),
            Err(error) if error.kind() == ErrorKind::Unknown && interrupted() => {
                return Ok(Waited::Interrupted);
            }
            Err(error) if once || !error.is_outage() => return Err(error),
            Err(error) if !met && error.kind() == ErrorKind::Unreachable => return Err(error),
            Err(error) => {
                let now = clock.now();
                if now.since(*out_since.get_or_insert(now)) >= around.outage {
                    return Err(error);
                }
                log::debug!("Waiting through an outage: {error}");
            }
        }
        if once {
            return Ok(Waited::Busy);
        }
        let left = deadline.map(|deadline| deadline.since(clock.now()));
        if left == Some(Duration::ZERO) {
            return Ok(Waited::TimedOut);
        }
        let jittered = pause.mul_f64(0.5 + (around.jitter)() / 2.0);
        let until = clock.now() + left.map_or(jittered, |left| left.min(jittered));
        loop {
            if interrupted() {
                return Ok(Waited::Interrupted);
            }
            let rest = until.since(clock.now());
            if rest.is_zero() {
                break;
            }
            clock.sleep(rest.min(SLICE));
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
