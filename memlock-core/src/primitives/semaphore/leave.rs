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
use crate::fork;
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
    process: u64,
    /// Set when nothing is left to remove.
    is_done: bool,
}

impl Leaver<'_> {
    /// As [`Leaving::next`]; `None` in a child that a callback forked, where the mutex may stay
    /// locked by a thread that exists only in the parent.
    fn next(&mut self) -> Option<Vec<WaitId>> {
        let next = if fork::generation() == self.process { self.leaving.next() } else { None };
        self.is_done = next.is_none();
        next
    }
}

impl Drop for Leaver<'_> {
    fn drop(&mut self) {
        if self.is_done || fork::generation() != self.process {
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
    let process = fork::generation();
    let mut leaver = Leaver { semaphore, leaving, process, is_done: false };
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

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::client::Client;

    /// Whether the child exits with status 7. A child that does not exit in time is killed.
    fn ends_with_7(child: i32) -> bool {
        let (mut status, began) = (0, Instant::now());
        // SAFETY: waits for a child of the test, which has not been waited for yet.
        while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } != child {
            if began.elapsed() > Duration::from_secs(20) {
                // SAFETY: as above.
                unsafe { libc::kill(child, libc::SIGKILL) };
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot fork")]
    fn a_child_made_on_the_way_does_not_wait_for_another_thread_that_leaves() {
        let client = Client::connect("memory://leaving").unwrap();
        let semaphore = client.semaphore("s", 1, Duration::from_secs(30)).unwrap();
        let leaving = semaphore.combiner().leaving();
        assert!(leaving.begin(Vec::new()).is_some());
        let process = fork::generation();
        let mut leaver = Leaver { semaphore: &semaphore, leaving, process, is_done: false };
        let (is_locked, has_forked) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                let _state = leaving.state();
                is_locked.wait();
                has_forked.wait();
            });
            is_locked.wait();
            // SAFETY: the child continues in this thread alone, and ends by `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let has_more = leaver.next().is_some();
                // SAFETY: ends the child without running the test harness's destructors.
                unsafe { libc::_exit(if has_more { 1 } else { 7 }) }
            }
            has_forked.wait();
            assert!(child > 0 && ends_with_7(child));
        });
        assert!(leaver.next().is_none(), "nothing is left to be done in the parent");
    }
}
