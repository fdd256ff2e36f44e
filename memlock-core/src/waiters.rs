//! The waiters of a queue, for people and tools: no decision is based on them.

use crate::error::Result;
use crate::notify::WakeAddress;
use crate::target::Target;
use crate::wait::entries;

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
