//! A call that waits for permits.

use memlock_core::Mismatch;

use crate::time::Nanos;

/// The arguments of a call for permits.
#[derive(Clone, Debug)]
pub(crate) struct PermitRequest {
    pub(crate) key: String,
    pub(crate) permits: u32,
    pub(crate) priority: i64,
    /// Whether it is first once it was overtaken often enough.
    pub(crate) ages: bool,
    /// The number of permits that the semaphore was opened with.
    pub(crate) number: Option<u32>,
    /// What the call does about another number.
    pub(crate) mismatch: Mismatch,
    pub(crate) lease: Nanos,
    /// `None`: no limit.
    pub(crate) limit: Option<Nanos>,
}

/// A call that waits for permits.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) request: PermitRequest,
    pub(super) process: usize,
    pub(super) begun: Nanos,
    pub(super) cancelled: bool,
    /// It is or was in the queue.
    pub(super) has_queued: bool,
    /// At some time since the call began, too few permits were available, or another waiter had a
    /// reservation.
    pub(super) was_busy: bool,
    /// The number of permits was another one, and the call refuses that; or less than it wants.
    pub(super) was_other: bool,
    pub(super) was_missing: bool,
    /// Since when there is capacity for it and no waiter before it.
    pub(super) could_have: Option<Nanos>,
}

impl Call {
    /// Whether it waits in the list of its process, of which only the first is in the queue, and
    /// has the same entry.
    pub(super) fn is_in_line(&self, key: &str) -> bool {
        let PermitRequest { permits, priority, ages, limit, .. } = self.request;
        self.request.key == key && permits == 1 && priority == 0 && ages && limit != Some(0)
    }

    /// Whether a request that the process sent then may be for this call.
    pub(super) fn is_of(&self, process: usize, sent: Nanos) -> bool {
        self.process == process && self.begun <= sent
    }
}
