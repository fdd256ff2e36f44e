//! The sender of a request.

use crate::time::Nanos;

/// The sender of a request, and when it was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requester {
    pub(crate) process: usize,
    pub(crate) task: usize,
    pub(crate) sent: Nanos,
}
