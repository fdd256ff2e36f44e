//! Leaving the queue: the entries of those that got their permits without having been woken are
//! taken off, by one thread for all of its process.
//!
//! When many permits become free at once, many waiters find that by looking. Each would write the
//! queue, all at the same time, and wake others for whatever is free: the more of them, the longer
//! for each. So a thread that finds another one of its process at it leaves its ids to that one,
//! and goes on.

use std::sync::{Mutex, PoisonError};

use super::local_waiters;
use super::{Semaphore, wake_next};
use crate::fork;
use crate::store::Op;
use crate::target::Target;
use crate::wait::entries::WaitId;
use crate::wait::queue::Queue;

/// How often a thread does this for those that came meanwhile. What comes then is left to the next
/// one that lets go, or waits.
const MOST_TIMES: usize = 8;

/// What is to be taken off, for one semaphore, and whether some thread does so.
#[derive(Debug, Default)]
pub(super) struct Leaving(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    ids: Vec<WaitId>,
    /// What the thread that does so is at.
    now: Vec<WaitId>,
    is_left: bool,
}

impl Leaving {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has this thread take off what there is, and these; `None` if another one is at it.
    fn begin(&self, ids: Vec<WaitId>) -> Option<Vec<WaitId>> {
        let mut state = self.state();
        state.ids.extend(ids);
        if std::mem::replace(&mut state.is_left, true) {
            return None;
        }
        state.now = std::mem::take(&mut state.ids);
        Some(state.now.clone())
    }

    /// What there is to take off; `None`, and nobody does so any more, when there is nothing.
    fn next(&self) -> Option<Vec<WaitId>> {
        let mut state = self.state();
        state.now = std::mem::take(&mut state.ids);
        state.is_left = !state.now.is_empty();
        state.is_left.then(|| state.now.clone())
    }

    /// All that nobody waits under any more, though it may still be in the queue.
    pub(super) fn ids(&self) -> Vec<WaitId> {
        let state = self.state();
        state.ids.iter().chain(&state.now).copied().collect()
    }
}

/// The thread that takes entries off; when it goes, however it does, the next one may.
struct Leaver<'a> {
    semaphore: &'a Semaphore,
    leaving: &'a Leaving,
    process: u64,
    /// It has found nothing more to do.
    is_done: bool,
}

impl Leaver<'_> {
    /// As [`Leaving::next`]; `None` in a child that a callback made, where the mutex may stay
    /// locked by a thread that is only in the parent.
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

/// Takes these entries off the queue, if they are there, and wakes the next waiters for whom there
/// is room. False if the server did not answer.
pub(super) fn leave(semaphore: &Semaphore, ids: Vec<WaitId>) -> bool {
    let target @ Target { context, key, .. } = &semaphore.target;
    let leaving = semaphore.combiner().leaving();
    let Some(mut ids) = leaving.begin(ids) else { return true };
    let process = fork::generation();
    let mut leaver = Leaver { semaphore, leaving, process, is_done: false };
    let queue = Queue { target, key: &key.waiters() };
    for _ in 0..MOST_TIMES {
        if let Err(failure) = queue.leave(&ids, Op::Get { key }) {
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

    /// Whether the child ends with 7, by itself.
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
