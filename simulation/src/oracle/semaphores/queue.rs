//! The order of waiters: which one is next in the queue, and what newcomers may take.

use std::collections::{BTreeMap, BTreeSet};

use super::call::Call;
use super::position::QueuePosition;
use super::state::{Semaphore, Semaphores, Waiter};
use super::text::{self, Entry, Line, Record};
use crate::oracle::requester::Requester;
use crate::oracle::state::Oracle;
use crate::server::{Cause, Change};
use crate::time::{MILLI, Nanos};

/// In a fault-free run, a process that wakes a waiter has read the queue at most this long ago.
const JUST_NOW: Nanos = 100 * MILLI;

impl Oracle {
    pub(super) fn queue_changed(
        &mut self,
        key: &str,
        change: &Change,
        now: Nanos,
        by: Option<Requester>,
    ) {
        let Some(after) = change.after.as_deref().map_or(Some(Vec::new()), text::queue) else {
            return self.report_violation(format!("the queue of {key} cannot be parsed"));
        };
        let Some(semaphore) = self.semaphores.all.get(key) else { return };
        let before = semaphore.queue.clone();
        if let (Cause::Command, Some(by), true) =
            (change.cause, by, self.fault_free && self.all_reachable)
        {
            let task_of =
                |entry: &Entry| semaphore.positions.get(&entry.id).map(|position| position.task);
            let off = |entry: &&Entry| !after.iter().any(|other| other.id == entry.id);
            // A thread removes entries for others of its process that do not wait any more, or wait
            // again.
            let of_call = |position: &QueuePosition| {
                let call = self.semaphores.calls.get(&position.task);
                call.filter(|call| call.request.key == key && call.begun <= position.since)
            };
            let is_done = |entry: &Entry| {
                let position = semaphore.positions.get(&entry.id);
                position.is_some_and(|position| {
                    position.process == by.process && of_call(position).is_none()
                })
            };
            // If another task than its owner removes an entry, it has woken the waiter.
            let others = |entry: &&Entry| task_of(entry) != Some(by.task);
            let taken = before.iter().filter(off).filter(others).count();
            let woken = before.iter().filter(off).filter(others).filter(|entry| !is_done(entry));
            // The waiter may already have its permits without knowing it, or had them when the
            // semaphore was torn down.
            let lines = || semaphore.record.iter().flat_map(|record| &record.lines);
            let has_its_own = |entry: &Entry| {
                let position = semaphore
                    .positions
                    .get(&entry.id)
                    .filter(|position| position.process == by.process);
                if semaphore.record.is_none() {
                    return position.is_some();
                }
                position.and_then(|position| Some((position.task, of_call(position)?))).is_some_and(
                    |(task, call)| {
                        let mut tokens = lines().filter_map(|line| self.tokens.get(&line.token));
                        tokens.any(|it| it.candidates.contains(&task) && it.sent >= call.begun)
                    },
                )
            };
            let sure: Vec<&Entry> = woken.filter(|entry| !has_its_own(entry)).collect();
            // Each waiter that this write wakes may complete the count of overtakings that puts
            // another waiter first.
            let may_be_first = |entry: &&Entry| entry.may_age(taken);
            let wrong = sure
                .iter()
                .filter(|entry| !may_be_first(entry))
                .find_map(|woken| self.comes_before(key, woken, &before, &after, now))
                .or_else(|| {
                    let own = before.iter().filter(off).filter(|entry| !others(entry)).count();
                    if sure.len() == taken { miscounted(&sure, own, &before, &after) } else { None }
                });
            if let Some(wrong) = wrong {
                return self.report_violation(format!("{key}: {wrong}"));
            }
        }
        let Semaphores { all, calls, .. } = &mut self.semaphores;
        let Some(semaphore) = all.get_mut(key) else { return };
        let Semaphore { positions, stale_processes, .. } = semaphore;
        let is_off = |id: &str| !after.iter().any(|entry| entry.id == id);
        // A process handles a wake-up message also under an entry that it could not remove.
        let woken = positions.iter().filter(|(id, position)| {
            is_off(id) && by.as_ref().is_some_and(|by| by.process != position.process)
        });
        stale_processes
            .extend(woken.map(|(_, position)| position.process).filter(|_| !self.fault_free));
        positions.retain(|id, _| !is_off(id));
        for entry in &after {
            let rank = entry.rank();
            let Some(position) = semaphore.positions.get_mut(&entry.id) else {
                let Some(Requester { task, process, sent }) = by else { continue };
                semaphore.positions.insert(
                    entry.id.clone(),
                    QueuePosition {
                        task,
                        process,
                        sent,
                        rank,
                        in_line: entry.is_in_line(),
                        since: now,
                        idle: None,
                    },
                );
                if entry.is_in_line() {
                    let in_line =
                        |call: &&mut Call| call.process == process && call.is_in_line(key);
                    calls.values_mut().filter(in_line).for_each(|call| call.has_queued = true);
                }
                match calls.get_mut(&task).filter(|call| call.begun <= sent) {
                    Some(call) => call.has_queued = true,
                    None => drop(semaphore.stale_processes.insert(process)),
                }
                continue;
            };
            if position.rank != rank {
                (position.rank, position.since) = (rank, now);
            }
        }
        semaphore.queue = after;
    }

    /// Called at each tick. In a fault-free run no entry without a waiter stays in the queue, where
    /// releases would wake it in vain.
    pub(crate) fn check_positions(&mut self, now: Nanos) {
        if !self.fault_free {
            return;
        }
        let (calls, patience) = (&self.semaphores.calls, self.patience);
        let mut violation = None;
        for (key, semaphore) in &mut self.semaphores.all {
            let mut in_line = BTreeSet::new();
            for (id, position) in &mut semaphore.positions {
                // A process has one for all that wait in line.
                let is_only = !position.in_line || in_line.insert(position.process);
                let waits = is_only && position.is_taken(key, calls);
                let since = *position.idle.get_or_insert(now);
                if waits {
                    position.idle = None;
                } else if now - since > patience {
                    violation =
                        Some(format!("{id} is in the queue of {key}, and its task does not wait"));
                }
            }
        }
        violation.into_iter().for_each(|what| self.report_violation(what));
    }

    /// A waiter that should have been woken instead. A release may skip waiters that may be
    /// unreachable, if the first of them counts that.
    fn comes_before(
        &self,
        key: &str,
        woken: &Entry,
        before: &[Entry],
        after: &[Entry],
        now: Nanos,
    ) -> Option<String> {
        let semaphore = self.semaphores.all.get(key)?;
        let order = text::in_order(before);
        let earlier = order.iter().map(|&at| &before[at]).take_while(|entry| entry.id != woken.id);
        let stays = |entry: &&Entry| after.iter().any(|other| other.id == entry.id);
        let first = earlier.clone().find(stays);
        let is_left = |entry: &Entry| {
            let now = after.iter().find(|other| other.id == entry.id);
            now.is_some_and(|now| {
                now.passed == entry.passed && (entry.proven || first == Some(entry))
            })
        };
        for entry in earlier.filter(|entry| entry.has_listener && is_left(entry)) {
            let Some(position) = semaphore.positions.get(&entry.id) else { continue };
            let waits = position.is_taken(key, &self.semaphores.calls);
            if waits && now - position.since > JUST_NOW {
                let (id, priority) = (&entry.id, entry.priority);
                return Some(format!(
                    "{} of priority {} was woken, and {id} of priority {priority} should have been",
                    woken.id, woken.priority
                ));
            }
        }
        None
    }

    /// A newcomer may not take permits that are reserved, unless it was in the queue or has a
    /// higher priority.
    pub(super) fn may_take(
        &self,
        key: &str,
        before: &Record,
        new: &[&Line],
        by: Requester,
        server_time: u64,
    ) -> Result<(), String> {
        let Some(reservation) =
            before.reservation.as_ref().filter(|other| other.until > server_time)
        else {
            return Ok(());
        };
        if self.semaphores.all.get(key).is_some_and(|it| it.stale_processes.contains(&by.process)) {
            return Ok(());
        }
        // Once the reservation is fulfilled, the remaining capacity is free for others, also in the
        // same write.
        if new.iter().any(|line| line.token == reservation.token) {
            return Ok(());
        }
        let is_newcomer =
            |call: &Call| !call.has_queued && call.request.priority <= reservation.priority;
        let is_put_back = |line: &Line| {
            let gone = self.tokens.get(&line.token).and_then(|token| token.gone);
            matches!(gone, Some((_, Cause::Forgotten)))
        };
        let takes = |line: &&&Line| {
            let mut candidates = self.semaphores.candidates(key, line, by).peekable();
            reservation.token != line.token
                && !is_put_back(line)
                && candidates.peek().is_some()
                && candidates.all(|(_, call)| is_newcomer(call))
        };
        match new.iter().find(takes) {
            Some(_) => {
                Err(format!("a newcomer takes permits that are reserved for {}", reservation.token))
            }
            None => Ok(()),
        }
    }
}

/// A waiter that is overtaken counts that, so that it is first in the end. `own`: how many of its
/// own entries the writer removed, because it leaves, or because it woke itself along with others.
fn miscounted(woken: &[&Entry], own: usize, before: &[Entry], after: &[Entry]) -> Option<String> {
    let [woken] = woken else { return None };
    let earlier = before.iter().take_while(|entry| entry.id != woken.id);
    for entry in earlier.filter(|entry| entry.rank() < woken.rank()) {
        let now = after.iter().find(|other| other.id == entry.id)?;
        let times = |often: u32| now.overtaken == entry.overtaken.map(|before| before + often);
        if !(1..=1 + own as u32).any(times) {
            return Some(format!("{} was overtaken, and does not count it", entry.id));
        }
    }
    None
}

impl Semaphore {
    /// Whether no waiter is before that task in the queue, or before one in line with it. A task that
    /// is not in the queue was woken, or is about to enter. An entry whose task does not wait may
    /// belong to another waiter of that process, because the task could not remove it. An entry that
    /// its task has left since is ignored.
    pub(super) fn is_next(&self, task: usize, waiters: &BTreeMap<usize, Waiter>) -> bool {
        let is_left = |position: &QueuePosition| {
            !position.in_line
                && waiters.get(&position.task).is_some_and(|it| position.sent < it.begun)
        };
        let position_at = |at: &usize| {
            self.positions.get(&self.queue[*at].id).filter(|position| !is_left(position))
        };
        let order = text::in_order(&self.queue);
        let mine = waiters.get(&task);
        let is_its = |position: &QueuePosition| {
            let in_line = |it: &Waiter| it.in_line && position.process == it.process;
            position.task == task || position.in_line && mine.is_some_and(in_line)
        };
        let is_queued = order.iter().filter_map(position_at).any(is_its);
        let processes = || waiters.values().map(|it| it.process);
        let mut first = order.iter().filter_map(position_at).filter(|position| {
            waiters.contains_key(&position.task)
                || processes().any(|process| process == position.process)
        });
        let process = mine.map(|it| it.process);
        let alone = processes().filter(|&other| Some(other) == process).count() == 1;
        let is_mine = |position: &QueuePosition| {
            is_its(position) || alone && Some(position.process) == process
        };
        !is_queued || first.next().is_none_or(is_mine)
    }
}
