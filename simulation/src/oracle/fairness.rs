//! The oracle of turns: no waiter is passed over, whatever firewalls drop.
//!
//! Where nothing else goes wrong, a wait for a lock takes no longer than (the place in the queue +
//! 2) × (the longest time that somebody had the lock + 1 s). Where a lease ends that its holder did
//! not release, nobody is woken, and newcomers may be faster; and so may those that try once. Each
//! such turn counts two more. The threads of a process stand in its own line, and share one place;
//! so only processes with one thread are looked at.

use super::call::Call;
use super::requester::Requester;
use super::state::Oracle;
use crate::server::Change;
use crate::time::{Nanos, SECOND};

impl Oracle {
    /// How many wait for the lock already.
    pub(crate) fn waiting_for(&self, key: &str) -> u64 {
        self.calls.values().filter(|call| call.key == key && call.limit != Some(0)).count() as u64
    }

    /// A call that joins the queue has all before it that wait by then.
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

    /// Whether a wait takes longer than its turn may be away.
    pub(crate) fn passed_over(&mut self, call: &Call, now: Nanos) -> Option<String> {
        if !self.fault_free
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
                "a waiter for {} behind {} waits for {waited:.3} s, turns being {tenure:.3} s",
                call.key, call.before
            )
        })
    }
}
