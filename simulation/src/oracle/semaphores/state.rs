//! What the oracle knows of the semaphores, and of the calls for their permits.

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
    /// Who waits for permits: by task.
    pub(super) calls: BTreeMap<usize, Call>,
    /// Who wants to know how one is: what it was since.
    pub(super) watches: BTreeMap<usize, (String, BTreeSet<Status>)>,
    /// Calls that are over, and when that was: requests for them may still be under way.
    pub(super) ended: Vec<(usize, Call, Nanos)>,
    /// What leases the tasks of a process have asked for, and when.
    pub(super) leases: BTreeMap<(usize, usize), Vec<(Nanos, Nanos)>>,
    /// When a task was answered how a semaphore is, and how long that took.
    pub(super) reads: BTreeMap<(usize, String), Vec<(Nanos, Nanos)>>,
}

/// How many permits there are, and how many are available; `None`: there is no such semaphore.
pub(crate) type Status = Option<(u32, u32)>;

#[derive(Debug, Default)]
pub(super) struct Semaphore {
    pub(super) record: Option<Record>,
    pub(super) queue: Vec<Entry>,
    /// The task that has last written that it gathers.
    pub(super) reserver: Option<usize>,
    /// Since when somebody stands in the queue, by the id.
    pub(super) positions: BTreeMap<String, QueuePosition>,
    /// How many permits it is to have; and how many it was ever to have.
    pub(super) number: u32,
    pub(super) numbers: BTreeSet<u32>,
    /// Which numbers each process wanted it to have.
    pub(super) resizes: BTreeSet<(usize, u32)>,
    /// It had more permits once, so that more may be out than there are.
    pub(super) was_shrunk: bool,
    /// When each task was told to tear it down, and how often it has since.
    pub(super) tear_downs: BTreeMap<usize, Vec<(Nanos, u32)>>,
    /// Processes that have left something in the queue, for which they may be rung later on.
    pub(super) stale_processes: BTreeSet<usize>,
    /// Whose ends passed while their lines were there, and when that was last: nobody rings for
    /// those.
    pub(super) over: BTreeSet<String>,
    pub(super) last_expiry: Option<Nanos>,
}

impl Semaphore {
    /// How many permits nobody has when the server's clock shows that, but for whoever `but` says.
    pub(super) fn available(&self, server_time: u64, but: impl Fn(&Line) -> bool) -> u64 {
        let Some(record) = &self.record else { return u64::MAX };
        let out = record.lines.iter().filter(|line| line.until > server_time && !but(line));
        u64::from(record.permits).saturating_sub(out.map(|line| u64::from(line.permits)).sum())
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

    /// How many permits there are at most, if that can be told.
    pub(crate) fn most(&self, key: &str) -> Option<u32> {
        let semaphore = self.all.get(key)?;
        semaphore.record.as_ref().filter(|_| !semaphore.was_shrunk).map(|record| record.permits)
    }

    /// How many permits it is to have, as far as people know.
    pub(crate) fn number(&self, key: &str) -> u32 {
        self.all.get(key).map_or(1, |semaphore| semaphore.number)
    }

    /// Somebody is told to give it another number of permits.
    pub(crate) fn resizes(&mut self, process: usize, key: &str, number: u32) {
        if let Some(semaphore) = self.all.get_mut(key) {
            semaphore.number = number;
            semaphore.numbers.insert(number);
            semaphore.resizes.insert((process, number));
        }
    }

    /// Whether it was ever to have so many.
    pub(crate) fn ever_had(&self, key: &str, number: u32) -> bool {
        self.all.get(key).is_some_and(|semaphore| semaphore.numbers.contains(&number))
    }

    /// Somebody is told to tear it down.
    pub(crate) fn tears_down(&mut self, task: usize, key: &str, now: Nanos) {
        if let Some(semaphore) = self.all.get_mut(key) {
            semaphore.tear_downs.entry(task).or_default().push((now, 0));
        }
    }

    /// A task asks for a lease.
    pub(crate) fn leases(&mut self, process: usize, task: usize, now: Nanos, lease: Nanos) {
        self.leases.entry((process, task)).or_default().push((now, lease));
    }

    /// A task's look at a semaphore was answered. `since`: when it was begun, before any
    /// connecting.
    pub(crate) fn has_read(&mut self, task: usize, key: &str, since: Nanos, now: Nanos) {
        if self.all.contains_key(key) {
            self.reads.entry((task, key.to_owned())).or_default().push((now, now - since));
        }
    }

    /// How long the look took on which a request is based that left then. A slow look counts for
    /// nothing unless it repeats another slow one.
    pub(super) fn read_took(&self, task: usize, key: &str, sent: Nanos) -> Nanos {
        let reads = self.reads.get(&(task, key.to_owned())).map_or(&[][..], |reads| reads);
        let mut took =
            reads.iter().rev().filter(|(answered, _)| *answered <= sent).map(|&(_, took)| took);
        let (last, before) = (took.next().unwrap_or(0), took.next().unwrap_or(0));
        let counts = last <= SLOW_READ || before > SLOW_READ;
        if counts { last.max(REMEMBERED_READ) } else { REMEMBERED_READ }
    }

    /// The longest lease that a request of a process may be for which left then.
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
