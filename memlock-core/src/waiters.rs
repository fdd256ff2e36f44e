//! The waiters of a queue, for people and tools: no decision is based on them.

use crate::error::Result;
use crate::notify::WakeAddress;
#[cfg(feature = "admin")]
use crate::store::Op;
use crate::target::Target;
use crate::wait::entries;
#[cfg(feature = "admin")]
use crate::wait::queue::Queue;
#[cfg(feature = "admin")]
use crate::wait_id::WaitId;

/// A waiter that was seen in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// Where the waiter is woken, which shows its host; `None` if it has no listener.
    pub address: Option<WakeAddress>,
    /// Waiters of higher priority come first.
    pub priority: i64,
    /// How many permits it requests at once.
    pub permits: u32,
}

/// The waiters for this item, the next one first.
pub(crate) fn waiters(target: &Target) -> Result<Vec<Waiter>> {
    let queue = target.queue()?;
    let entries = queue.as_ref().map(|queue| entries::in_order(&queue.value)).unwrap_or_default();
    let waiter = |entry: &entries::Entry<'_>| Waiter {
        address: entry.address,
        priority: entry.priority,
        permits: entry.permits,
    };
    Ok(entries.iter().map(waiter).collect())
}

/// Adds an entry without an address to the queue of this item, and removes it. A waiter whose entry is
/// refused polls, and tells nobody.
#[cfg(feature = "admin")]
pub(crate) fn check_queue(target: &Target) -> Result<()> {
    let id = WaitId(target.context.identity()?.number());
    // About as long as an entry with an address.
    let request = entries::Request { priority: i64::MIN, ..entries::Request::default() };
    let line = entries::unproven_line(None, id, request);
    let queue = Queue { target, key: &target.key.waiters() };
    let joined = queue.join(&line, id, false, None, Op::get(&target.key));
    let left = queue.leave(&[id], Op::get(&target.key));
    joined.map(drop).and(left.map(drop)).map_err(|failure| failure.error)
}
