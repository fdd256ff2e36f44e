//! One item that many write by compare-and-swap: how often to try, and when to come at another
//! moment.

use std::time::Duration;

use crate::context::Context;
use crate::error::Result;

/// How often a step is tried again because another client has written meanwhile: with the pauses,
/// for half a second at least.
pub(crate) const ROUNDS: usize = 1000;

/// Every so many times in a row there is a pause: at first of this much at most, and in the end of
/// that much.
const ROUNDS_IN_A_ROW: usize = 4;
const PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(3));

/// To be called when another client was faster, in this round. A client that writes as fast as it
/// can may be half a step ahead each time; so now and then the pause is another one. True when what
/// was read is old by now.
pub(crate) fn back_off(context: &Context, round: usize) -> Result<bool> {
    let pauses = round / ROUNDS_IN_A_ROW;
    if round % ROUNDS_IN_A_ROW != ROUNDS_IN_A_ROW - 1 {
        return Ok(false);
    }
    let longest = PAUSES.1.min(PAUSES.0 * (1 << pauses.min(10)));
    context.clock().sleep(longest.mul_f64(context.identity()?.fraction()));
    Ok(true)
}
