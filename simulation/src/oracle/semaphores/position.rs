//! A waiter's position in the queue of a semaphore.

use crate::time::Nanos;

/// Somebody's stand in a queue.
#[derive(Clone, Debug)]
pub(super) struct QueuePosition {
    pub(super) task: usize,
    pub(super) process: usize,
    /// When the request left that wrote it.
    pub(super) sent: Nanos,
    pub(super) rank: i64,
    /// Since when it has that rank.
    pub(super) since: Nanos,
    /// Since which tick its task does not wait any more.
    pub(super) idle: Option<Nanos>,
}
