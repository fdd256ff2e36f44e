//! Leaving the queue: one thread removes the entries of its process whose waiters acquired their
//! permits without a wake-up.
//!
//! When many permits become available at once, many waiters find out by polling. Each of them would
//! write the queue, all at the same time, and wake others for whatever is available: the more
//! waiters, the longer each takes. A thread that finds another one of its process removing entries
//! therefore leaves its ids to that thread, and continues.

use super::handle::Semaphore;
use super::leaving::Leaving;
use super::wake::{local_waiters, wake_next};
use crate::store::Op;
use crate::target::Target;
use crate::wait::queue::Queue;
use crate::wait_id::WaitId;

/// How often a thread repeats this for entries that are added in the meantime. Later ones are left
/// to the next thread that releases, or waits.
const MOST_TIMES: usize = 8;

/// The thread that removes entries. When it ends, in whatever way, the next one may remove.
struct Leaver<'a> {
    semaphore: &'a Semaphore,
    leaving: &'a Leaving,
    /// Set when nothing is left to remove.
    is_done: bool,
}

impl Leaver<'_> {
    /// As [`Leaving::next`].
    fn next(&mut self) -> Option<Vec<WaitId>> {
        let next = self.leaving.next();
        self.is_done = next.is_none();
        next
    }
}

impl Drop for Leaver<'_> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let ids = {
            let mut state = self.leaving.state();
            (state.is_left, state.now) = (false, Vec::new());
            std::mem::take(&mut state.ids)
        };
        local_waiters(&self.semaphore.target.context)
            .leave_behind(&self.semaphore.target.key, &ids);
    }
}

/// Removes these entries from the queue, if they are there, and wakes the next waiters for which
/// there is capacity. False if the server did not answer.
pub(super) fn leave(semaphore: &Semaphore, ids: Vec<WaitId>) -> bool {
    let target @ Target { context, key, .. } = &semaphore.target;
    let leaving = semaphore.combiner().leaving();
    let Some(mut ids) = leaving.begin(ids) else { return true };
    let mut leaver = Leaver { semaphore, leaving, is_done: false };
    let queue = Queue { target, key: &key.waiters() };
    for _ in 0..MOST_TIMES {
        if let Err(failure) = queue.leave(&ids, Op::get(key)) {
            log::debug!("The queue could not be left: {}", failure.error);
            local_waiters(context).leave_behind(key, &ids);
            return false;
        }
        wake_next(target);
        match leaver.next() {
            Some(next) => ids = next,
            None => break,
        }
    }
    true
}
