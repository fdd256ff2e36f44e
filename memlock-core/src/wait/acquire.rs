//! What can be waited for: all that waiting knows of a mutex, a semaphore or a counter.

use super::entries::Request;

use super::policy::TargetState;
use super::queue::Capacity;
use super::wake::Reserve;
use crate::error::{Error, Result};
use crate::notify::Successors;
use crate::store::{Op, Reply};
use crate::wait_id::WaitId;

/// One acquisition of something that can be waited for.
pub(crate) trait Acquire {
    /// What another thread of this process needs to know to hand over to this one.
    type HandoffRequest: Copy;
    /// What is acquired.
    type Guard;

    /// Tries once, and finds out the result. `called`: this waiter was woken, or is the first in
    /// the queue. `is_over`: whether to stop, and leave an unknown result for later.
    fn attempt(&mut self, called: bool, is_over: &dyn Fn() -> bool) -> Result<Option<Self::Guard>>;

    /// Tries to get it from another thread of this process, where others are in the queue already.
    fn attempt_within(&mut self, _is_over: &dyn Fn() -> bool) -> Result<Option<Self::Guard>> {
        Ok(None)
    }

    /// Whether several can hold it at once.
    fn is_shared(&self) -> bool {
        false
    }

    /// Whether the wait may go on after an attempt that failed in this way: a later attempt can
    /// find out whether it was granted.
    fn can_go_on_after(&self, error: &Error) -> bool {
        error.is_outage()
    }

    /// The request that reads the state of the target.
    fn inspection(&self) -> Op<'_>;

    /// The state in the reply to an [`inspection`](Acquire::inspection), for a waiter that is the
    /// `first` in the queue or not. A holder that does not know of waiters is notified of them.
    fn state(&mut self, reply: &Reply, first: bool) -> Result<TargetState>;

    /// How much of it the next waiter can have, by the reply to an inspection. `leaves`: this
    /// waiter leaves, and gives up what is reserved for it.
    fn capacity(&mut self, reply: &Reply, leaves: bool) -> Option<Capacity>;

    /// Whether it is available to the first in the queue, though not to others.
    fn is_for_the_first(&self, _reply: &Reply) -> bool {
        false
    }

    /// This waiter is in the queue under these ids. `proven`: it is known to receive wake-ups;
    /// otherwise the target may be reserved for one of the ids.
    fn joined(&mut self, _ids: &[WaitId], _proven: bool) {}

    /// Whether the last inspection found another version than the one before: it has changed hands.
    fn has_changed_hands(&self) -> bool {
        false
    }

    /// How it is reserved for a waiter, where that is possible.
    fn reserver(&self) -> Option<Box<dyn Reserve + '_>> {
        None
    }

    /// What the entry in the queue says that this waiter wants.
    fn request(&self) -> Request {
        Request::default()
    }

    /// What another thread needs to know to hand over to this one.
    fn handoff_request(&self) -> Self::HandoffRequest;

    /// From now on others may wait behind this one.
    fn will_wait(&mut self);

    /// It was acquired by a waiter that was in the queue.
    fn acquired_from_queue(&mut self, guard: &mut Self::Guard, receipt: QueueReceipt);

    /// Gives back what was acquired after the wait was interrupted.
    fn give_back(&mut self, guard: Self::Guard);
}

/// What is left to do in the queue by a waiter that has acquired its target.
pub(crate) struct QueueReceipt {
    /// The ids of its entries, which may still be in the queue.
    pub(crate) ids: Vec<WaitId>,
    /// It received no wake-up, so they should be.
    pub(crate) unwoken: bool,
    /// The waiters behind it, as far as the wake-up named them.
    pub(crate) successors: Successors,
}
