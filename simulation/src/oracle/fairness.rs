//! Fairness: no waiter is passed over, whatever firewalls drop.
//!
//! In a run without other faults, a wait for a lock takes no longer than (position in the queue +
//! 2) × (the longest tenure + 1 s). If a lease ends without a release, no waiter is woken, and
//! newcomers may be faster; calls that try only once may be faster, too. Each such irregular tenure
//! counts two more. The threads of a process wait in a queue of their own and share one position,
//! so only processes with one thread are checked.

use super::call::Call;
use super::requester::Requester;
use super::state::Oracle;
use crate::server::Change;
use crate::time::{Nanos, SECOND};

impl Oracle {
    /// How many calls wait for the lock already.
    pub(crate) fn waiting_for(&self, key: &str) -> u64 {
        self.calls.values().filter(|call| call.key == key && call.limit != Some(0)).count() as u64
    }

    /// When a call joins the queue, all calls that wait by then are before it.
    pub(crate) fn lock_queue_changed(&mut self, key: &str, change: &Change, by: Option<Requester>) {
        let length = |queue: &Option<Vec<u8>>| queue.as_ref().map_or(0, Vec::len);
        let others = self.waiting_for(key).saturating_sub(1);
        if let Some(by) = by.filter(|_| length(&change.after) > length(&change.before))
            && let Some(call) =
                self.calls.get_mut(&by.task).filter(|call| call.key == key && !call.joined)
        {
            (call.before, call.joined) = (call.before.max(others), true);
        }
    }

    /// Checks that a wait does not exceed the bound.
    pub(crate) fn passed_over(&mut self, call: &Call, now: Nanos) -> Option<String> {
        if !self.fault_free
            || self.quorum.is_some()
            || call.limit == Some(0)
            || !self.single.get(call.process).is_some_and(|single| *single)
        {
            return None;
        }
        let lock = self.locks.entry(call.key.clone()).or_default();
        lock.note_tenure(now);
        let tenure = lock.longest + SECOND;
        let (waited, rounds) =
            (now - call.begun, call.before + 2 + 2 * (lock.irregular - call.irregular));
        let bound = rounds * tenure;
        (waited > bound).then(|| {
            let seconds = |nanos| nanos as f64 / 1e9;
            let (waited, tenure) = (seconds(waited), seconds(tenure));
            format!(
                "a waiter for {} behind {} waits for {waited:.3} s, with tenures of {tenure:.3} s",
                call.key, call.before
            )
        })
    }
}
