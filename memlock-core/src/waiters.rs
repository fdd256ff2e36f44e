//! The waiters, as they are seen from outside. For people and tools: nothing is decided by it.

use crate::error::Result;
use crate::notify::WakeAddress;
use crate::target::Target;
use crate::wait::entries;

/// A waiter that was seen in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// Where it is woken, which tells its host; `None` when it has no listener.
    pub address: Option<WakeAddress>,
    /// Higher comes first.
    pub priority: i64,
    /// How many it wants at once.
    pub permits: u32,
}

/// The waiters for this item.
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
