//! Renewers: which tasks they are, what they request from the server, and whether that succeeded.

use std::collections::{BTreeMap, BTreeSet};

use super::Requester;
use crate::time::{MILLI, Nanos};

/// A slower exchange may have come too late.
const PROMPT: Nanos = 50 * MILLI;

#[derive(Debug, Default)]
pub(crate) struct Renewers {
    tasks: BTreeSet<usize>,
    /// When the last fault of the world ends.
    last_fault: Nanos,
    /// When an exchange by or for the renewer of each process last failed or was slow.
    failed_exchanges: BTreeMap<usize, Nanos>,
    /// Tasks that wait for an answer (renewers, and tasks that may write for them), with their
    /// process and the time of the request.
    asking: BTreeMap<usize, (usize, Nanos)>,
    /// When a request's exchange began: the task may have had to connect first.
    begun: BTreeMap<(usize, Nanos), Nanos>,
    /// Tasks that wait for a renewal to be under way, by process.
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

    /// A fault occurred, which lasts until `until`.
    pub(crate) fn note_fault(&mut self, until: Nanos) {
        self.last_fault = self.last_fault.max(until);
    }

    /// A task begins an exchange. `permits`: it concerns a semaphore, so that the task may write
    /// for its renewer. Returns the task to be woken.
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

    /// Wakes this task when the renewer of its process next sends a request.
    pub(crate) fn awaits_renewal(&mut self, task: usize, process: usize) {
        self.awaiting_renewal.insert(process, task);
    }

    pub(crate) fn stops_awaiting_renewal(&mut self, process: usize) {
        self.awaiting_renewal.remove(&process);
    }

    /// The request is sent.
    pub(crate) fn sends(&mut self, task: usize, now: Nanos) {
        if let Some(&(_, begun)) = self.asking.get(&task) {
            self.begun.insert((task, now), begun);
        }
    }

    /// The exchange has ended.
    pub(crate) fn asked(&mut self, task: usize, now: Nanos, failed: bool) {
        if let Some((process, sent)) = self.asking.remove(&task)
            && (failed || now - sent > PROMPT)
        {
            self.failed_exchanges.insert(process, now);
        }
    }

    /// When the exchange began whose request the server executes now.
    pub(crate) fn begun(&self, by: Requester) -> Nanos {
        self.begun.get(&(by.task, by.sent)).copied().unwrap_or(by.sent)
    }

    /// Whether there was no fault since then for the renewer of that process.
    pub(crate) fn all_was_well(&self, process: usize, since: Nanos, now: Nanos) -> bool {
        let waits =
            |&(of_process, sent): &(usize, Nanos)| of_process == process && now - sent > PROMPT;
        let note_fault =
            self.last_fault.max(self.failed_exchanges.get(&process).copied().unwrap_or(0));
        note_fault < since && !self.asking.values().any(waits)
    }
}
