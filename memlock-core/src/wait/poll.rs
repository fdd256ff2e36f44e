//! Waiting without a queue: repeated attempts, with pauses that grow.

use std::time::Duration;

use super::interruption::Interruption;
use super::limit::{Wait, Waited};
use super::waiter::Turn;
use crate::clock::Moment;
use crate::context::Context;
use crate::error::{ErrorKind, Result};
use crate::fork;
use crate::store::Route;

/// The first pause, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// One wait. It does not sleep itself, so that one thread can drive many.
pub(crate) struct Poller {
    /// The [`fork::generation`] to which the wait belongs.
    process: u64,
    /// Whether there is to be a single attempt.
    once: bool,
    deadline: Option<Moment>,
    pause: Duration,
    /// Whether an attempt was made.
    has_begun: bool,
    /// Whether an attempt has reached the server.
    reached: bool,
    /// Since when the server has been unreachable.
    out_since: Option<Moment>,
}

impl Poller {
    /// A wait that begins now.
    pub(crate) fn new(context: &Context, limit: Option<Duration>) -> Poller {
        Poller {
            process: fork::generation(),
            once: limit == Some(Duration::ZERO),
            deadline: limit.map(|limit| context.clock().now() + limit),
            pause: PAUSES.0,
            has_begun: false,
            reached: false,
            out_since: None,
        }
    }

    /// Makes an attempt, unless the wait is over.
    ///
    /// # Errors
    /// The error of `attempt`: at once until an attempt has reached the server, and if the error is
    /// not [`ErrorKind::Unreachable`]; otherwise once the server has been unreachable for as long as
    /// the client tolerates.
    pub(crate) fn turn<T>(
        &mut self,
        context: &Context,
        interruption: &Interruption<'_>,
        attempt: impl FnOnce() -> Result<Option<T>>,
    ) -> Result<Turn<T>> {
        let was_begun = std::mem::replace(&mut self.has_begun, true);
        let is_over = if was_begun { self.is_over(interruption) } else { interruption.is_early() };
        if is_over {
            return Ok(Turn::Over(Waited::Interrupted));
        }
        match attempt() {
            Ok(Some(got)) => return Ok(Turn::Over(Waited::Done(got))),
            Ok(None) => (self.reached, self.out_since) = (true, None),
            Err(error) => {
                let now = context.clock().now();
                let too_long = now.since(*self.out_since.get_or_insert(now)) >= context.outage();
                if !self.reached || too_long || error.kind() != ErrorKind::Unreachable {
                    return Err(error);
                }
            }
        }
        if self.once {
            return Ok(Turn::Over(Waited::Busy));
        }
        let now = context.clock().now();
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return Ok(Turn::Over(Waited::TimedOut));
        }
        let left = self.deadline.map_or(self.pause, |deadline| deadline.since(now));
        let jittered = self.pause.mul_f64(0.5 + 0.5 * context.identity()?.fraction());
        self.pause = (self.pause * 2).min(PAUSES.1);
        Ok(Turn::Sleep(now + jittered.min(left)))
    }

    /// Whether the wait was interrupted, or is its parent's.
    fn is_over(&self, interruption: &Interruption<'_>) -> bool {
        interruption.is_set() || fork::generation() != self.process
    }
}

/// Repeats `attempt` until it succeeds or the wait ends, and sleeps between the attempts.
///
/// # Errors
/// Those of [`Poller::turn`].
pub(crate) fn poll<T>(
    context: &Context,
    route: Route,
    wait: &Wait<'_>,
    mut attempt: impl FnMut() -> Result<Option<T>>,
) -> Result<Waited<T>> {
    let interruption = Interruption::new(wait, context);
    let mut poller = Poller::new(context, wait.limit);
    let mut listener = None;
    loop {
        let until = match poller.turn(context, &interruption, &mut attempt)? {
            Turn::Sleep(until) => until,
            Turn::Over(waited) => return Ok(waited),
        };
        // Sleeps on a listener, because a cancellation interrupts it.
        let listener =
            listener.get_or_insert_with(|| context.notifier().take(context.local_address(route)));
        if poller.is_over(&interruption) {
            return Ok(Waited::Interrupted);
        }
        listener.sleep(until.since(context.clock().now()));
    }
}
