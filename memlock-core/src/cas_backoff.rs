//! Backoff for an item that many clients write by compare-and-set: how often to retry, and when to
//! pause.

use std::time::Duration;

use crate::context::Context;
use crate::error::Result;

/// How often a step is retried because another client has written in the meantime: with the pauses,
/// for half a second at least.
pub(crate) const ROUNDS: usize = 1000;

/// There is a pause each time that this many attempts have failed in a row. Its upper bound grows
/// from the first of the `PAUSES` to the second.
const ROUNDS_IN_A_ROW: usize = 4;
const PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(3));

/// To be called when another client was faster, in this round. A client that writes as fast as
/// possible may be half a step ahead each time, so there is a random pause now and then. True if
/// there was a pause, so that earlier reads are outdated.
pub(crate) fn back_off(context: &Context, round: usize) -> Result<bool> {
    let pauses = round / ROUNDS_IN_A_ROW;
    if round % ROUNDS_IN_A_ROW != ROUNDS_IN_A_ROW - 1 {
        return Ok(false);
    }
    let longest = PAUSES.1.min(PAUSES.0 * (1 << pauses.min(10)));
    context.clock().sleep(longest.mul_f64(context.identity()?.fraction()));
    Ok(true)
}
