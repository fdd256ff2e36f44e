//! The fence of a lock: a number that rises from holder to holder, kept by counters on all members.
//!
//! Behind each vote, in the same packet, the counter of that member is incremented. The fence of an
//! acquisition is the q-th smallest of the numbers of the members that voted for it. Before it is
//! used, q members must have counted that far: the others are raised to it, by compare-and-set.
//!
//! **Why it rises.** Before a holder uses its fence, q members have counted as far while its votes
//! are there. The next holder increments each counter after its own vote there. So of its numbers
//! at most N − q = f are not greater, and the q-th smallest is.
//!
//! **What was forgotten.** A member that was started anew has no counter. Its number is missing
//! then, not small. With fewer than q numbers the fence is the greatest of the members' clocks, in
//! microseconds, and greater than the numbers that there are: what was forgotten began with such a
//! time, and lies a guard back. A counter that an increment has created starts at 0, and is taken
//! for missing until it is raised. All increments renew the lifetime of a counter.

use std::time::Duration;

use super::inner::Inner;
use crate::mutation::{self, Mutation};
use crate::name::Key;
use crate::store::{Epoch, Expiry, Item, Op, Reply, Returns, Route, Version};

/// How long a counter lives after it was used.
const LIFE: Duration = Duration::from_secs(2 * 24 * 3600);
/// Numbers below are no times: their counter was created by an increment. The year is 1985.
const LOWEST: u64 = 500_000_000_000_000;

/// The fence of one acquisition.
#[derive(Debug)]
pub(super) struct Fencing {
    pub(super) key: Key,
    /// By member: the number, if it is known.
    numbers: Vec<Option<u64>>,
    /// The fence, once it is determined.
    fence: Option<u64>,
    /// By member: the version of the counter as it was read, in the life of the vote.
    counters: Vec<Option<Version>>,
    writes: bool,
    text: String,
}

impl Fencing {
    pub(super) fn new(lock: &Key, members: usize) -> Fencing {
        Fencing {
            key: lock.fence(),
            numbers: vec![None; members],
            fence: None,
            counters: vec![None; members],
            writes: false,
            text: String::new(),
        }
    }

    /// The operation that follows a vote.
    pub(super) fn increment(&self) -> Op<'_> {
        Op::Increment { key: &self.key, by: 1, initial: Some((0, Expiry::After(LIFE))) }
    }

    /// The reply to that.
    pub(super) fn counted(&mut self, member: usize, reply: Option<&Reply>) {
        let trusts_all = mutation::has(Mutation::MissingIsSmall);
        self.numbers[member] = match reply {
            Some(&Reply::Number(number)) if number >= LOWEST || trusts_all => Some(number),
            _ => None,
        };
    }

    /// Determines the fence, once q members have voted. `voters`: those members.
    pub(super) fn determine(&mut self, quorum: &Inner, route: Route, voters: &[usize]) -> u64 {
        let majority = quorum.majority();
        let mut numbers: Vec<u64> =
            voters.iter().filter_map(|&member| self.numbers[member]).collect();
        numbers.sort_unstable();
        let largest = numbers.last().copied().unwrap_or_default();
        let fence = match numbers.get(majority - 1) {
            Some(_) if mutation::has(Mutation::FenceIsTheSmallest) => numbers[0],
            Some(&number) => number,
            None => {
                let times = voters.iter().filter_map(|&member| {
                    quorum.members.all()[member].time(route).map(|time| time.as_micros())
                });
                let newest = times.max().and_then(|time| u64::try_from(time).ok());
                let newest = newest.filter(|_| !mutation::has(Mutation::FenceWithoutClocks));
                (largest + 1).max(newest.unwrap_or_default())
            }
        };
        self.fence = Some(fence);
        self.text = fence.to_string();
        fence
    }

    /// The fence, once it is determined.
    pub(super) fn fence(&self) -> Option<u64> {
        self.fence
    }

    /// Whether q of these members have counted that far.
    pub(super) fn is_supported(&self, voters: &[usize], majority: usize) -> bool {
        let Some(fence) = self.fence else { return false };
        let supports = |member: &&usize| self.numbers[**member].is_some_and(|it| it >= fence);
        mutation::has(Mutation::FenceWithoutRaise)
            || voters.iter().filter(supports).count() >= majority
    }

    /// What this member, which voted, is asked so that it counts that far.
    pub(super) fn raise(&self, member: usize) -> Option<Op<'_>> {
        let (key, expiry) = (&self.key, Expiry::After(LIFE));
        let fence = self.fence?;
        if self.numbers[member].is_some_and(|number| number >= fence) {
            return None;
        }
        if !self.writes {
            return Some(Op::get(key));
        }
        let (value, returns) = (self.text.as_bytes(), Returns::Version);
        let version = self.counters[member]?;
        Some(Op::CompareAndSet { key, version, value, expiry, returns })
    }

    /// The reply to that. `life`: that of the vote. False if the member has begun another one.
    pub(super) fn raised(&mut self, member: usize, reply: &Reply, life: Epoch) -> bool {
        match reply {
            Reply::Value(Item { value, version, .. }) => {
                let number =
                    std::str::from_utf8(value).ok().and_then(|text| text.trim().parse().ok());
                self.numbers[member] = number.filter(|&number: &u64| number >= LOWEST);
                self.counters[member] = Some(*version);
                version.epoch() == life
            }
            // The increment behind the vote had created it. It is never created here: the request
            // could be carried out in a later life, where it would lower what others have counted.
            Reply::Missing => false,
            Reply::Stored(stored) => {
                self.numbers[member] = self.fence;
                stored.version.epoch() == life
            }
            // Another client was faster: it is read again.
            _ => true,
        }
    }

    /// Called after each round: what was read is written next, and the reverse.
    pub(super) fn turn(&mut self) {
        self.writes = !self.writes;
        if !self.writes {
            self.counters.fill(None);
        }
    }
}
