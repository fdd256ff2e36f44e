//! What can be waited for: all that the driver knows of a mutex or a semaphore.

use super::entries::{Request, WaitId};
use super::policy::TargetState;
use super::queue::Capacity;
use super::wake::Reserve;
use crate::error::{Error, Result};
use crate::notify::Successors;
use crate::store::{Op, Reply};

/// What can be waited for.
pub(crate) trait Acquire {
    /// What another thread of this process needs to know, to hand over to us.
    type HandoffRequest: Copy;
    /// What is got.
    type Guard;

    /// Tries once, and finds out what came of it. `called`: our turn has come, or we are the first.
    /// `enough`: whether to leave for later what came of it.
    fn attempt(&mut self, called: bool, enough: &dyn Fn() -> bool) -> Result<Option<Self::Guard>>;
    /// Tries to get it from within this process, where others wait in the queue before us.
    fn attempt_within(&mut self, _enough: &dyn Fn() -> bool) -> Result<Option<Self::Guard>> {
        Ok(None)
    }
    /// Whether there are several permits.
    fn is_shared(&self) -> bool {
        false
    }
    /// Whether what came of a failed attempt can be found out by a later one, so that waiting may
    /// go on.
    fn can_go_on_after(&self, error: &Error) -> bool {
        error.is_outage()
    }
    /// What is to be read, to see whether it can be had.
    fn look(&self) -> Op<'_>;
    /// What that showed to one who waits, and whether as the `first` of all. A holder that would
    /// not wake is told to.
    fn seen(&mut self, reply: &Reply, first: bool) -> Result<TargetState>;
    /// What of it whoever is next can have; `goes`: now that we go. A holder that would not wake is
    /// told to: it may have come in between, after we were woken.
    fn capacity(&mut self, reply: &Reply, goes: bool) -> Option<Capacity>;
    /// Whether it could be had, if only we were the first of all.
    fn is_for_the_first(&self, _reply: &Reply) -> bool {
        false
    }
    /// We stand in the queue under these ids. `proven`: as a waiter that hears what is sent to it;
    /// otherwise it may be reserved for one of them.
    fn stands(&mut self, _ids: &[WaitId], _proven: bool) {}
    /// Whether what was seen last is not what was seen before: it has changed hands.
    fn has_moved(&self) -> bool {
        false
    }
    /// How it is reserved for a waiter, where that can be done.
    fn reserver(&self) -> Option<Box<dyn Reserve + '_>> {
        None
    }
    /// What others need to know of what we want.
    fn request(&self) -> Request {
        Request::default()
    }
    /// What another thread needs to know, to hand over to us.
    fn ask(&self) -> Self::HandoffRequest;
    /// From now on others may be waiting behind us.
    fn will_wait(&mut self);
    /// It was got after standing in the queue.
    fn stood(&mut self, got: &mut Self::Guard, stood: QueueReceipt);
    /// Lets go of what came too late.
    fn decline(&mut self, got: Self::Guard);
}

/// How somebody stood in the queue until it got what it waited for.
pub(crate) struct QueueReceipt {
    /// Under these ids, which may still be there.
    pub(crate) ids: Vec<WaitId>,
    /// No wake-up was heard, so they should be.
    pub(crate) unwoken: bool,
    /// Who stood behind, as far as the message told.
    pub(crate) successors: Successors,
}
