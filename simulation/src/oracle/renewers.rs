//! Keepers: which tasks they are, what they ask the server for, and how that went.

use std::collections::{BTreeMap, BTreeSet};

use super::Requester;
use crate::time::{MILLI, Nanos};

/// An exchange that took longer may have come too late.
const PROMPT: Nanos = 50 * MILLI;

#[derive(Debug, Default)]
pub(crate) struct Renewers {
    tasks: BTreeSet<usize>,
    /// When something last went wrong: for everybody, and with what the renewers of a process have
    /// asked, or others for them.
    last_fault: Nanos,
    troubles: BTreeMap<usize, Nanos>,
    /// Which tasks wait for an answer, renewers and those that may write for them; of which process,
    /// and since when.
    asking: BTreeMap<usize, (usize, Nanos)>,
    /// When such a task began what it sent then: it may have had to be connected first.
    begun: BTreeMap<(usize, Nanos), Nanos>,
    /// Who wants to do something while a renewal is under way, by the process.
    awaiting_renewal: BTreeMap<usize, usize>,
}

impl Renewers {
    /// This task is a renewer.
    pub(crate) fn begins(&mut self, task: usize) {
        self.tasks.insert(task);
    }

    pub(crate) fn has(&self, task: usize) -> bool {
        self.tasks.contains(&task)
    }

    /// Something went wrong, and does so until then.
    pub(crate) fn note_fault(&mut self, until: Nanos) {
        self.last_fault = self.last_fault.max(until);
    }

    /// A task asks the server for something; `permits`: of a semaphore, so that it may do so for
    /// its renewer. Tells who is to be woken by that.
    pub(crate) fn asks(
        &mut self,
        task: usize,
        process: usize,
        permits: bool,
        now: Nanos,
    ) -> Option<usize> {
        if !self.has(task) && !permits {
            return None;
        }
        self.asking.insert(task, (process, now));
        if self.has(task) { self.awaiting_renewal.remove(&process) } else { None }
    }

    /// This task is to be woken when the renewer of its process next asks the server for something.
    pub(crate) fn awaits_renewal(&mut self, task: usize, process: usize) {
        self.awaiting_renewal.insert(process, task);
    }

    pub(crate) fn stops_awaiting_renewal(&mut self, process: usize) {
        self.awaiting_renewal.remove(&process);
    }

    /// That leaves now.
    pub(crate) fn sends(&mut self, task: usize, now: Nanos) {
        if let Some(&(_, begun)) = self.asking.get(&task) {
            self.begun.insert((task, now), begun);
        }
    }

    /// And that is over.
    pub(crate) fn asked(&mut self, task: usize, now: Nanos, failed: bool) {
        if let Some((process, sent)) = self.asking.remove(&task)
            && (failed || now - sent > PROMPT)
        {
            self.troubles.insert(process, now);
        }
    }

    /// When that was begun which is carried out now.
    pub(crate) fn begun(&self, by: Requester) -> Nanos {
        self.begun.get(&(by.task, by.sent)).copied().unwrap_or(by.sent)
    }

    /// Whether nothing has gone wrong since then, for the renewer of that process.
    pub(crate) fn all_was_well(&self, process: usize, since: Nanos, now: Nanos) -> bool {
        let waits = |&(whose, sent): &(usize, Nanos)| whose == process && now - sent > PROMPT;
        let note_fault = self.last_fault.max(self.troubles.get(&process).copied().unwrap_or(0));
        note_fault < since && !self.asking.values().any(waits)
    }
}
