//! A call that waits for permits.

use crate::time::Nanos;

/// What somebody asks for.
#[derive(Clone, Debug)]
pub(crate) struct PermitRequest {
    pub(crate) key: String,
    pub(crate) permits: u32,
    pub(crate) priority: i64,
    /// With how many permits the semaphore was opened.
    pub(crate) number: Option<u32>,
    pub(crate) lease: Nanos,
    /// `None`: for ever.
    pub(crate) limit: Option<Nanos>,
}

/// A call that waits for permits.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) request: PermitRequest,
    pub(super) process: usize,
    pub(super) begun: Nanos,
    pub(super) cancelled: bool,
    /// It stands in the queue, or did so.
    pub(super) has_queued: bool,
    /// Others had too much, or somebody gathered, at some time since.
    pub(super) was_busy: bool,
    /// There were other permits than it was told, or fewer than it wants.
    pub(super) was_other: bool,
    pub(super) was_missing: bool,
    /// Since when there is room for it, and nobody before it.
    pub(super) could_have: Option<Nanos>,
}

impl Call {
    /// Whether a request of that process which left then may be for it.
    pub(super) fn is_of(&self, process: usize, sent: Nanos) -> bool {
        self.process == process && self.begun <= sent
    }
}
