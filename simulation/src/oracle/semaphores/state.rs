//! What the oracle knows of semaphores and of the calls for their permits.

use std::collections::{BTreeMap, BTreeSet};

use super::call::Call;
use super::position::QueuePosition;
use super::text::{Entry, Line, Record};
use super::timing::{REMEMBERED_READ, SLOW_READ};
use crate::oracle::requester::Requester;
use crate::time::Nanos;

#[derive(Debug, Default)]
pub(crate) struct Semaphores {
    pub(super) all: BTreeMap<String, Semaphore>,
    /// Calls that wait for permits, by task.
    pub(super) calls: BTreeMap<usize, Call>,
    /// Tasks that read the status: the states since they began.
    pub(super) watches: BTreeMap<usize, (String, BTreeSet<Status>)>,
    /// Calls that have ended, with the time: their requests may still be under way.
    pub(super) ended: Vec<(usize, Call, Nanos)>,
    /// The leases that each task of a process has asked for, with the time.
    pub(super) leases: BTreeMap<(usize, usize), Vec<(Nanos, Nanos)>>,
    /// When each task's reads of a semaphore were answered, and how long they took.
    pub(super) reads: BTreeMap<(usize, String), Vec<(Nanos, Nanos)>>,
}

/// The number of permits, and how many are available; `None`: there is no such semaphore.
pub(crate) type Status = Option<(u32, u32)>;

#[derive(Debug, Default)]
pub(super) struct Semaphore {
    pub(super) record: Option<Record>,
    pub(super) queue: Vec<Entry>,
    /// The task that has last written a reservation.
    pub(super) reserver: Option<usize>,
    /// The positions in the queue, by entry id.
    pub(super) positions: BTreeMap<String, QueuePosition>,
    /// The number of permits that it is to have, and all numbers that it was ever to have.
    pub(super) number: u32,
    pub(super) numbers: BTreeSet<u32>,
    /// The numbers of permits that each process was to set.
    pub(super) resizes: BTreeSet<(usize, u32)>,
    /// The number of permits was reduced, so that more may be held than there are.
    pub(super) was_shrunk: bool,
    /// When each task was to tear it down, and how often it has since.
    pub(super) tear_downs: BTreeMap<usize, Vec<(Nanos, u32)>>,
    /// Processes that have left an entry in the queue, for which they may be woken later.
    pub(super) stale_processes: BTreeSet<usize>,
    /// Holders whose ends passed while their lines were there, and when that last happened: no
    /// waiter is woken for those.
    pub(super) over: BTreeSet<String>,
    /// When a waiter in line of each process was last granted a permit: the others follow one by one.
    pub(super) went_on: BTreeMap<usize, Nanos>,
    pub(super) last_expiry: Option<Nanos>,
}

/// A call that waits for a semaphore's permits.
pub(super) struct Waiter {
    pub(super) process: usize,
    pub(super) begun: Nanos,
    pub(super) in_line: bool,
}

impl Semaphore {
    /// How many permits are available at that time of the server, apart from the lines that `but`
    /// excludes.
    pub(super) fn available(&self, server_time: u64, but: impl Fn(&Line) -> bool) -> u64 {
        let Some(record) = &self.record else { return u64::MAX };
        let out = record.lines.iter().filter(|line| line.until > server_time && !but(line));
        u64::from(record.permits).saturating_sub(out.map(|line| u64::from(line.permits)).sum())
    }
}

impl QueuePosition {
    /// Whether a waiter for the semaphore of this key has this position.
    pub(super) fn is_taken(&self, key: &str, calls: &BTreeMap<usize, Call>) -> bool {
        let own = calls.get(&self.task).is_some_and(|call| call.request.key == key);
        own || self.in_line
            && calls.values().any(|call| call.process == self.process && call.is_in_line(key))
    }
}

impl Semaphores {
    pub(crate) fn new(permits: &[u32]) -> Semaphores {
        let all = permits.iter().enumerate().map(|(at, &number)| {
            let numbers = BTreeSet::from([number]);
            (format!("semaphore:s{at}"), Semaphore { number, numbers, ..Semaphore::default() })
        });
        Semaphores { all: all.collect(), ..Semaphores::default() }
    }

    /// The line of a holder, if it is there and its end has not passed.
    pub(crate) fn live_line(&self, key: &str, token: &str, server_time: u64) -> Option<&Line> {
        self.line(key, token).filter(|line| line.until > server_time)
    }

    /// The line of a holder, if it is there.
    pub(crate) fn line(&self, key: &str, token: &str) -> Option<&Line> {
        self.all.get(key)?.record.as_ref()?.line(token)
    }

    /// The maximum number of permits that may be held, if it is certain.
    pub(crate) fn most(&self, key: &str) -> Option<u32> {
        let semaphore = self.all.get(key)?;
        semaphore.record.as_ref().filter(|_| !semaphore.was_shrunk).map(|record| record.permits)
    }

    /// The number of permits that it is to have.
    pub(crate) fn number(&self, key: &str) -> u32 {
        self.all.get(key).map_or(1, |semaphore| semaphore.number)
    }

    /// A process is to resize it.
    pub(crate) fn resizes(&mut self, process: usize, key: &str, number: u32) {
        if let Some(semaphore) = self.all.get_mut(key) {
            semaphore.number = number;
            semaphore.numbers.insert(number);
            semaphore.resizes.insert((process, number));
        }
    }

    /// A process uses a handle that was opened with this number: it may set the semaphore up with
    /// it, and, if the handle resizes, give it that number.
    pub(crate) fn may_have(&mut self, process: usize, key: &str, number: u32, resizes: bool) {
        if let Some(semaphore) = self.all.get_mut(key) {
            semaphore.numbers.insert(number);
            if resizes {
                semaphore.resizes.insert((process, number));
            }
        }
    }

    /// Whether it was ever to have that number of permits.
    pub(crate) fn ever_had(&self, key: &str, number: u32) -> bool {
        self.all.get(key).is_some_and(|semaphore| semaphore.numbers.contains(&number))
    }

    /// A task is to tear it down.
    pub(crate) fn tears_down(&mut self, task: usize, key: &str, now: Nanos) {
        if let Some(semaphore) = self.all.get_mut(key) {
            semaphore.tear_downs.entry(task).or_default().push((now, 0));
        }
    }

    /// A task asks for a lease.
    pub(crate) fn leases(&mut self, process: usize, task: usize, now: Nanos, lease: Nanos) {
        self.leases.entry((process, task)).or_default().push((now, lease));
    }

    /// A task's read of a semaphore was answered. `since`: when the exchange began, before
    /// connecting.
    pub(crate) fn has_read(&mut self, task: usize, key: &str, since: Nanos, now: Nanos) {
        if self.all.contains_key(key) {
            self.reads.entry((task, key.to_owned())).or_default().push((now, now - since));
        }
    }

    /// How long the read took on which a request sent then is based. A slow read does not count
    /// unless it repeats another slow one.
    pub(super) fn read_took(&self, task: usize, key: &str, sent: Nanos) -> Nanos {
        let reads = self.reads.get(&(task, key.to_owned())).map_or(&[][..], |reads| reads);
        let mut took =
            reads.iter().rev().filter(|(answered, _)| *answered <= sent).map(|&(_, took)| took);
        let (last, before) = (took.next().unwrap_or(0), took.next().unwrap_or(0));
        let counts = last <= SLOW_READ || before > SLOW_READ;
        if counts { last.max(REMEMBERED_READ) } else { REMEMBERED_READ }
    }

    /// The longest lease that a request which the process sent then may be for.
    pub(super) fn lease_at(&self, process: usize, sent: Nanos) -> Nanos {
        let asked = self.leases.range((process, 0)..=(process, usize::MAX));
        let last = |asked: &[(Nanos, Nanos)]| {
            asked.iter().rev().find(|(time, _)| *time <= sent).map_or(0, |&(_, lease)| lease)
        };
        asked.map(|(_, asked)| last(asked)).max().unwrap_or(0)
    }

    /// The calls of a process that a line may be for.
    pub(super) fn candidates(
        &self,
        key: &str,
        line: &Line,
        by: Requester,
    ) -> impl Iterator<Item = (usize, &Call)> {
        let ended = self.ended.iter().filter(move |(.., ended)| *ended >= by.sent);
        let ended = ended.map(|(task, call, _)| (*task, call));
        let (key, permits) = (key.to_owned(), line.permits);
        self.calls.iter().map(|(&task, call)| (task, call)).chain(ended).filter(move |(_, call)| {
            call.is_of(by.process, by.sent)
                && call.request.key == key
                && call.request.permits == permits
        })
    }
}
