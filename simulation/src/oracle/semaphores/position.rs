//! A waiter's position in the queue of a semaphore.

use crate::time::Nanos;

/// A waiter's position in the queue of a semaphore.
#[derive(Clone, Debug)]
pub(super) struct QueuePosition {
    pub(super) task: usize,
    pub(super) process: usize,
    /// When the request that wrote it was sent.
    pub(super) sent: Nanos,
    pub(super) rank: i64,
    /// Whether it passes to the next waiter in line of its process.
    pub(super) in_line: bool,
    /// Since when it has that rank.
    pub(super) since: Nanos,
    /// Since which tick its task has not been waiting.
    pub(super) idle: Option<Nanos>,
}
