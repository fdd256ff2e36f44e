//! Waiting without a queue: repeated attempts, with pauses that grow.

use std::time::Duration;

use super::limit::{Wait, Waited};
use crate::context::Context;
use crate::error::{ErrorKind, Result};

/// The first pause, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Repeats `attempt` until it succeeds or the wait ends.
///
/// # Errors
/// The error of `attempt`: at once if it is not [`ErrorKind::Unreachable`], and until an attempt has
/// reached the server, unless [`Wait::may_begin`]; otherwise once the outage is longer than
/// [`Wait::outage`], or if the server has not answered before the limit passes.
pub(crate) fn poll<T>(
    context: &Context,
    wait: &Wait<'_>,
    mut attempt: impl FnMut() -> Result<Option<T>>,
) -> Result<Waited<T>> {
    let cancellations = context.cancellations();
    let is_cancelled =
        || context.cancellations() != cancellations || context.is_closed() || wait.is_interrupted();
    let clock = context.clock();
    let began = clock.now();
    let deadline = wait.limit.map(|limit| began + limit);
    let mut pause = PAUSES.0;
    let (mut listener, mut reached, mut out_since) = (None, false, None);
    if wait.is_cancelled() || context.is_closed() {
        return Ok(Waited::Interrupted);
    }
    loop {
        let failure = match attempt() {
            Ok(Some(got)) => return Ok(Waited::Done(got)),
            Ok(None) => {
                (reached, out_since) = (true, None);
                None
            }
            Err(error) => {
                let is_outage = error.kind() == ErrorKind::Unreachable
                    && (reached || wait.may_begin(&error, context));
                let now = clock.now();
                if !is_outage || now.since(out_since.unwrap_or(now)) >= wait.outage(context) {
                    return Err(error);
                }
                if out_since.replace(out_since.unwrap_or(now)).is_none() {
                    wait.tell_of_outage(&error);
                }
                Some(error)
            }
        };
        if wait.is_once() {
            return Ok(Waited::Busy);
        }
        let now = clock.now();
        if deadline.is_some_and(|deadline| deadline <= now) {
            return failure.filter(|_| !reached).map_or(Ok(Waited::TimedOut), Err);
        }
        let left = deadline.map_or(pause, |deadline| deadline.since(now));
        let jittered = pause.mul_f64(0.5 + 0.5 * context.identity()?.fraction());
        // Sleeps on a listener, because a cancellation interrupts it.
        let listener = listener.get_or_insert_with(|| context.notifier().take());
        if is_cancelled() {
            return Ok(Waited::Interrupted);
        }
        listener.sleep(jittered.min(left));
        if is_cancelled() {
            return Ok(Waited::Interrupted);
        }
        pause = (pause * 2).min(PAUSES.1);
    }
}
