//! The trait through which waiting uses a mutex, a semaphore or a counter.

use super::entries::Request;

use super::policy::TargetState;
use super::queue::Capacity;
use super::wake::Reserve;
use crate::error::{Error, Result};
use crate::notify::Successors;
use crate::owner::Token;
use crate::store::{Op, Reply};
use crate::wait_id::WaitId;

/// One acquisition of a target that can be waited for.
pub(crate) trait Acquire {
    /// What another thread of this process needs to know to hand off the target to this waiter.
    type HandoffRequest: Copy;
    /// What a successful acquisition returns.
    type Guard;

    /// Makes one attempt, and resolves its outcome. `called`: this waiter was woken, or is the
    /// first in the queue. `is_over`: whether to stop, and leave an unknown outcome unresolved.
    fn attempt(&mut self, called: bool, is_over: &dyn Fn() -> bool) -> Result<Option<Self::Guard>>;

    /// Whether several holders can hold the target at once.
    fn is_shared(&self) -> bool {
        false
    }

    /// Whether the last attempt failed because the server gives no new grants yet.
    fn recovers(&self) -> bool {
        false
    }

    /// Whether the wait can continue after an attempt that failed with this error: a later attempt
    /// can find out whether the target was granted.
    fn can_go_on_after(&self, error: &Error) -> bool {
        error.is_outage()
    }

    /// The operation that reads the state of the target.
    fn inspection(&self) -> Op<'_>;

    /// The state in the reply to an [`inspection`](Acquire::inspection). `first`: this waiter is
    /// the first in the queue. If the holder does not know of waiters, its record is marked.
    fn state(&mut self, reply: &Reply, first: bool) -> Result<TargetState>;

    /// The capacity available to the next waiter, by the reply to an inspection. `leaves`: this
    /// waiter leaves, and gives up its reservation.
    fn capacity(&mut self, reply: &Reply, leaves: bool) -> Option<Capacity>;

    /// Whether the target cannot be acquired before these holders release it, by the reply to an
    /// inspection.
    fn needs(&self, _reply: &Reply, _held: &[Token]) -> bool {
        false
    }

    /// Whether the target is available to the first waiter in the queue, though not to others.
    fn is_for_the_first(&self, _reply: &Reply) -> bool {
        false
    }

    /// This waiter has joined the queue under these ids. `proven`: wake-ups are known to reach this
    /// process; otherwise the target may be reserved for one of the ids.
    fn joined(&mut self, _ids: &[WaitId], _proven: bool) {}

    /// Whether the last two inspections found different versions: the target has changed hands.
    fn has_changed_hands(&self) -> bool {
        false
    }

    /// Reserves the target for a waiter, if the target supports reservations.
    fn reserver(&self) -> Option<Box<dyn Reserve + '_>> {
        None
    }

    /// The request that this waiter's queue entry states.
    fn request(&self) -> Request {
        Request::default()
    }

    /// What another thread needs to know to hand off the target to this waiter.
    fn handoff_request(&self) -> Self::HandoffRequest;

    /// Called when the wait begins: from then on other waiters may be behind this one.
    fn will_wait(&mut self);

    /// Called when a waiter that was in the queue has acquired the target.
    fn acquired_from_queue(&mut self, guard: &mut Self::Guard, receipt: QueueReceipt);

    /// Releases a target that was acquired after the wait was interrupted.
    fn give_back(&mut self, guard: Self::Guard);
}

/// The queue state of a waiter that has acquired its target, for the cleanup at release.
pub(crate) struct QueueReceipt {
    /// The ids of the waiter's entries, which may still be in the queue.
    pub(crate) ids: Vec<WaitId>,
    /// The waiter received no wake-up, so its entries should still be in the queue.
    pub(crate) unwoken: bool,
    /// The waiters behind this one, as far as the wake-up listed them.
    pub(crate) successors: Successors,
}
