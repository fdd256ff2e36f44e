//! The blocking driver: a thread that sleeps between the turns of its waiter.

use std::time::Duration;

use super::acquire::Acquire;
use super::interruption::Interruption;
use super::limit::{Wait, Waited};
use super::waiter::{Start, Turn, Waiter};
use crate::error::Result;

/// A waiter with an interruption callback calls it at least this often.
const SLICE: Duration = Duration::from_millis(50);

/// Waits until `acquire` succeeds, or the wait ends.
pub(crate) fn run<G: Acquire>(
    acquire: &mut G,
    wait: &Wait<'_>,
    interruption: &Interruption<'_>,
    start: Start,
) -> Result<Waited<G::Guard>> {
    let context = acquire.target().context.clone();
    let near = context.local_address(acquire.target().route);
    let mut waiter = Waiter::enter(acquire, start, context.notifier().take(near))?;
    loop {
        match waiter.turn(interruption, None)? {
            Turn::Over(waited) => return Ok(waited),
            Turn::Sleep(until) => {
                let left = until.since(context.clock().now());
                waiter.listener().sleep(if wait.asks() { left.min(SLICE) } else { left });
            }
        }
    }
}
