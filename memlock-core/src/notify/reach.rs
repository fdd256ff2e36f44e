//! Whether wake-up messages reach this process, as far as known.
//!
//! A firewall drops datagrams without notifying either end, and may do so for some senders only.
//! Reachability is therefore judged by experience alone: by the messages that arrived, and those
//! that were sent and did not.
//!
//! | reach | what is known | consequence for a waiter |
//! | --- | --- | --- |
//! | proven | messages of other processes arrive, and none was missed lately | it sleeps until it is woken |
//! | untested | a message to itself arrived; no other process has sent one yet | as proven: its inspections, of which there are few, find out whether it was passed over |
//! | unreachable | a message was missed, or not even its own arrives | the lock is reserved for it; it polls when its turn should have come |
//!
//! One message proves a new process reachable. After a missed message, 16 in a row are needed, and
//! twice as many after each further relapse: where some senders are blocked and others are not, the
//! messages that arrive say nothing about those that do not.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// How many messages in a row prove a process reachable after a missed message.
const AFTER_A_MISS: u32 = 16;
/// The most messages that are ever needed.
const MOST: u32 = 1024;

/// Whether wake-up messages reach a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Messages arrive.
    Proven,
    /// The process receives its own messages; no other process has sent one yet.
    Untested,
    /// Messages do not arrive, or not all of them.
    Unreachable,
}

/// What a process knows of its reachability. Shared by its threads; no thread blocks.
#[derive(Debug)]
pub struct ReachRecord {
    heard_itself: AtomicBool,
    missed: AtomicBool,
    /// How many messages were received in a row since one was missed.
    heard: AtomicU32,
    /// How many messages in a row prove the process reachable.
    needed: AtomicU32,
    /// Whether a message may have been missed since the last one was received.
    doubted: AtomicBool,
}

impl Default for ReachRecord {
    fn default() -> ReachRecord {
        let no = || AtomicBool::new(false);
        let (heard, needed) = (AtomicU32::new(0), AtomicU32::new(1));
        ReachRecord { heard_itself: no(), missed: no(), heard, needed, doubted: no() }
    }
}

impl ReachRecord {
    /// The reachability as known now.
    pub fn reach(&self) -> Reach {
        if self.heard.load(Ordering::Relaxed) >= self.needed.load(Ordering::Relaxed) {
            Reach::Proven
        } else if self.heard_itself.load(Ordering::Relaxed) && !self.missed.load(Ordering::Relaxed)
        {
            Reach::Untested
        } else {
            Reach::Unreachable
        }
    }

    /// Records a message that the process had sent to itself.
    pub fn heard_itself(&self) {
        self.heard_itself.store(true, Ordering::Relaxed);
    }

    /// Records a message for a waiter of this process.
    pub fn heard(&self) {
        let heard = self.heard.load(Ordering::Relaxed);
        self.heard.store(heard.saturating_add(1), Ordering::Relaxed);
        self.doubted.store(false, Ordering::Relaxed);
    }

    /// Records that a waiter of this process was removed from the queue and acquired its target
    /// before a message arrived. The message may have been under way. Twice in a row counts as a
    /// missed message, and returns true.
    pub fn may_have_missed(&self) -> bool {
        self.doubted.swap(true, Ordering::Relaxed)
    }

    /// Records that a message to a waiter of this process did not arrive in time. True if no missed
    /// message was known before.
    pub fn missed(&self) -> bool {
        if self.reach() == Reach::Proven {
            let needed = self.needed.load(Ordering::Relaxed).saturating_mul(2);
            self.needed.store(needed.clamp(AFTER_A_MISS, MOST), Ordering::Relaxed);
        } else {
            self.needed.fetch_max(AFTER_A_MISS, Ordering::Relaxed);
        }
        self.heard.store(0, Ordering::Relaxed);
        !self.missed.swap(true, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_proves_a_new_process_reachable() {
        let record = ReachRecord::default();
        assert_eq!(record.reach(), Reach::Unreachable);
        record.heard_itself();
        assert_eq!(record.reach(), Reach::Untested);
        record.heard();
        assert_eq!(record.reach(), Reach::Proven);
    }

    #[test]
    fn a_missed_message_is_made_up_for_by_many_that_arrive_in_a_row() {
        let record = ReachRecord::default();
        record.heard_itself();
        assert!(record.missed());
        for expected in [16, 32, 64] {
            for _ in 1..expected {
                record.heard();
                assert_eq!(record.reach(), Reach::Unreachable);
            }
            record.heard();
            assert_eq!(record.reach(), Reach::Proven);
            assert!(!record.missed());
        }
        (0..MOST * 3).for_each(|_| {
            record.heard();
            assert!(record.reach() == Reach::Unreachable || !record.missed());
        });
        assert_eq!(record.needed.load(Ordering::Relaxed), MOST);
    }

    #[test]
    fn only_the_second_doubt_in_a_row_counts() {
        let record = ReachRecord::default();
        assert!(!record.may_have_missed());
        record.heard();
        assert!(!record.may_have_missed());
        assert!(record.may_have_missed());
    }

    #[test]
    fn what_is_missed_while_unreachable_starts_the_row_anew_and_makes_it_no_longer() {
        let record = ReachRecord::default();
        record.missed();
        for _ in 0..100 {
            (1..AFTER_A_MISS).for_each(|_| record.heard());
            record.missed();
            assert_eq!(record.reach(), Reach::Unreachable);
        }
        (0..AFTER_A_MISS).for_each(|_| record.heard());
        assert_eq!(record.reach(), Reach::Proven);
    }
}
