//! The sender of a request.

use crate::time::Nanos;

/// Whose request it is, and when it was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requester {
    pub(crate) process: usize,
    pub(crate) task: usize,
    pub(crate) sent: Nanos,
}
