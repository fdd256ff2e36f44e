//! Who is to come next: what the judge sees of a queue, and of those who do not stand in it.

use std::collections::BTreeMap;

use super::call::Call;
use super::position::Stand;
use super::state::{Semaphore, Semaphores};
use super::text::{self, Entry, Line, Record};
use crate::oracle::requester::Doer;
use crate::oracle::state::Oracle;
use crate::server::{Cause, Change};
use crate::time::{MILLI, Nanos};

/// Whoever rings read the queue this long ago at most, in a calm run.
const JUST_NOW: Nanos = 100 * MILLI;

impl Oracle {
    pub(super) fn queue_changed(
        &mut self,
        key: &str,
        change: &Change,
        now: Nanos,
        by: Option<Doer>,
    ) {
        let Some(after) = change.after.as_deref().map_or(Some(Vec::new()), text::queue) else {
            return self.object(format!("what was written of {key}'s queue cannot be read"));
        };
        let Some(semaphore) = self.semaphores.all.get(key) else { return };
        let before = semaphore.queue.clone();
        if let (Cause::Command, Some(by), true) = (change.cause, by, self.calm && self.has_bells) {
            let stands = |entry: &Entry| semaphore.stands.get(&entry.id).map(|stand| stand.task);
            let off = |entry: &&Entry| !after.iter().any(|other| other.id == entry.id);
            // One thread takes off for others of its process, which wait no more, or again.
            let of_call = |stand: &Stand| {
                let call = self.semaphores.calls.get(&stand.task);
                call.filter(|call| call.ask.key == key && call.begun <= stand.since)
            };
            let is_done = |entry: &Entry| {
                let stand = semaphore.stands.get(&entry.id);
                stand.is_some_and(|stand| stand.process == by.process && of_call(stand).is_none())
            };
            // Whoever else than its owner takes an entry off has rung for it.
            let others = |entry: &&Entry| stands(entry) != Some(by.task);
            let taken = before.iter().filter(off).filter(others).count();
            let rung = before.iter().filter(off).filter(others).filter(|entry| !is_done(entry));
            // Or it has its permits, and was not told so yet; or had them when the semaphore was
            // torn down.
            let lines = || semaphore.record.iter().flat_map(|record| &record.lines);
            let has_its_own = |entry: &Entry| {
                let stand =
                    semaphore.stands.get(&entry.id).filter(|stand| stand.process == by.process);
                if semaphore.record.is_none() {
                    return stand.is_some();
                }
                stand.and_then(|stand| Some((stand.task, of_call(stand)?))).is_some_and(
                    |(task, call)| {
                        let mut tokens = lines().filter_map(|line| self.tokens.get(&line.token));
                        tokens.any(|it| it.askers.contains(&task) && it.sent >= call.begun)
                    },
                )
            };
            let sure: Vec<&Entry> = rung.filter(|entry| !has_its_own(entry)).collect();
            // Each one that is woken in this write may let another one come to be overtaken often
            // enough.
            let may_be_first = |entry: &&Entry| entry.may_age(taken);
            let wrong = sure
                .iter()
                .filter(|entry| !may_be_first(entry))
                .find_map(|rung| self.comes_before(key, rung, &before, &after, now))
                .or_else(|| {
                    let own = before.iter().filter(off).filter(|entry| !others(entry)).count();
                    if sure.len() == taken { miscounted(&sure, own, &before, &after) } else { None }
                });
            if let Some(wrong) = wrong {
                return self.object(format!("{key}: {wrong}"));
            }
        }
        let Semaphores { all, calls, .. } = &mut self.semaphores;
        let Some(semaphore) = all.get_mut(key) else { return };
        let Semaphore { stands, leavers, .. } = semaphore;
        let is_off = |id: &str| !after.iter().any(|entry| entry.id == id);
        // A process heeds that it was woken, also under an entry which it could not take off.
        let woken = stands.iter().filter(|(id, stand)| {
            is_off(id) && by.as_ref().is_some_and(|by| by.process != stand.process)
        });
        leavers.extend(woken.map(|(_, stand)| stand.process).filter(|_| !self.calm));
        stands.retain(|id, _| !is_off(id));
        for entry in &after {
            let rank = entry.rank();
            let Some(stand) = semaphore.stands.get_mut(&entry.id) else {
                let Some(Doer { task, process, sent }) = by else { continue };
                semaphore.stands.insert(
                    entry.id.clone(),
                    Stand { task, process, sent, rank, since: now, idle: None },
                );
                match calls.get_mut(&task).filter(|call| call.begun <= sent) {
                    Some(call) => call.has_stood = true,
                    None => drop(semaphore.leavers.insert(process)),
                }
                continue;
            };
            if stand.rank != rank {
                (stand.rank, stand.since) = (rank, now);
            }
        }
        semaphore.queue = after;
    }

    /// To be called at each tick. In a calm run no holder's entry stays in the queue, where
    /// releases would ring it in vain.
    pub(crate) fn check_stands(&mut self, now: Nanos) {
        if !self.calm {
            return;
        }
        let (calls, patience) = (&self.semaphores.calls, self.patience);
        let mut objection = None;
        for (key, semaphore) in &mut self.semaphores.all {
            for (id, stand) in &mut semaphore.stands {
                let waits = calls.get(&stand.task).is_some_and(|call| call.ask.key == *key);
                let since = *stand.idle.get_or_insert(now);
                if waits {
                    stand.idle = None;
                } else if now - since > patience {
                    objection =
                        Some(format!("{id} stands in the queue of {key}, and nobody waits there"));
                }
            }
        }
        objection.into_iter().for_each(|what| self.object(what));
    }

    /// A waiter that should have been rung instead. A release passes over those that are not
    /// certain to hear it, if the first of them counts that.
    fn comes_before(
        &self,
        key: &str,
        rung: &Entry,
        before: &[Entry],
        after: &[Entry],
        now: Nanos,
    ) -> Option<String> {
        let semaphore = self.semaphores.all.get(key)?;
        let order = text::in_order(before);
        let earlier = order.iter().map(|&at| &before[at]).take_while(|entry| entry.id != rung.id);
        let stays = |entry: &&Entry| after.iter().any(|other| other.id == entry.id);
        let first = earlier.clone().find(stays);
        let is_left = |entry: &Entry| {
            let now = after.iter().find(|other| other.id == entry.id);
            now.is_some_and(|now| {
                now.passed == entry.passed && (entry.proven || first == Some(entry))
            })
        };
        for entry in earlier.filter(|entry| entry.has_bell && is_left(entry)) {
            let Some(stand) = semaphore.stands.get(&entry.id) else { continue };
            let waits =
                self.semaphores.calls.get(&stand.task).is_some_and(|call| call.ask.key == key);
            if waits && now - stand.since > JUST_NOW {
                let (id, priority) = (&entry.id, entry.priority);
                return Some(format!(
                    "{} of priority {} was rung, and {id} of priority {priority} should have been",
                    rung.id, rung.priority
                ));
            }
        }
        None
    }

    /// Nobody may take what somebody else gathers, who has not stood in the queue and is not of
    /// higher priority.
    pub(super) fn may_take(
        &self,
        key: &str,
        before: &Record,
        new: &[&Line],
        by: Doer,
        shows: u64,
    ) -> Result<(), String> {
        let Some(reservation) = before.reservation.as_ref().filter(|other| other.until > shows)
        else {
            return Ok(());
        };
        if self.semaphores.all.get(key).is_some_and(|it| it.leavers.contains(&by.process)) {
            return Ok(());
        }
        // Once it has them, what is left is for others, also in the same write.
        if new.iter().any(|line| line.token == reservation.token) {
            return Ok(());
        }
        let is_newcomer =
            |call: &Call| !call.has_stood && call.ask.priority <= reservation.priority;
        let takes = |line: &&&Line| {
            let mut askers = self.semaphores.askers(key, line, by).peekable();
            reservation.token != line.token
                && askers.peek().is_some()
                && askers.all(|(_, call)| is_newcomer(call))
        };
        match new.iter().find(takes) {
            Some(_) => Err(format!("a newcomer takes what {} gathers", reservation.token)),
            None => Ok(()),
        }
    }
}

/// Who is overtaken counts that, so that it comes first in the end. `own`: how many lines of its
/// own the writer took off, since it leaves, or since it woke itself along with others.
fn miscounted(rung: &[&Entry], own: usize, before: &[Entry], after: &[Entry]) -> Option<String> {
    let [rung] = rung else { return None };
    let earlier = before.iter().take_while(|entry| entry.id != rung.id);
    for entry in earlier.filter(|entry| entry.rank() < rung.rank()) {
        let now = after.iter().find(|other| other.id == entry.id)?;
        let times = |often: u32| now.overtaken == entry.overtaken.map(|before| before + often);
        if !(1..=1 + own as u32).any(times) {
            return Some(format!("{} was overtaken, and does not count it", entry.id));
        }
    }
    None
}

impl Semaphore {
    /// Whether no waiter stands before that task in the queue. A task that does not stand there was
    /// rung, or is about to enter. An entry that nobody waits under may be another waiter's of that
    /// process, as the one who left it behind could not take it off.
    /// One that its task has left by now stands in nobody's way.
    pub(super) fn is_next(&self, task: usize, waiters: &BTreeMap<usize, (usize, Nanos)>) -> bool {
        let is_left =
            |stand: &Stand| waiters.get(&stand.task).is_some_and(|&(_, begun)| stand.sent < begun);
        let whose =
            |at: &usize| self.stands.get(&self.queue[*at].id).filter(|stand| !is_left(stand));
        let order = text::in_order(&self.queue);
        let stands = order.iter().filter_map(whose).any(|stand| stand.task == task);
        let processes = || waiters.values().map(|&(process, _)| process);
        let mut first = order.iter().filter_map(whose).filter(|stand| {
            waiters.contains_key(&stand.task) || processes().any(|process| process == stand.process)
        });
        let mine = waiters.get(&task).map(|&(process, _)| process);
        let alone = processes().filter(|&process| Some(process) == mine).count() == 1;
        let is_mine = |stand: &Stand| stand.task == task || alone && Some(stand.process) == mine;
        !stands || first.next().is_none_or(is_mine)
    }
}
