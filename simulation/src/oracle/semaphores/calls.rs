//! The answers of callers that asked for permits, and how long others wait.

use std::collections::{BTreeMap, BTreeSet};

use memlock_core::Mismatch;

use super::call::{Call, PermitRequest};
use super::position::QueuePosition;
use super::state::{Semaphores, Status, Waiter};
use super::timing::AFTER_THE_LEASE;
use crate::oracle::call::Refusal;
use crate::oracle::hold::HoldInterval;
use crate::oracle::limits::{AFTER_EXPIRY, PATIENCE_WITHOUT_WAKE};
use crate::oracle::state::Oracle;
use crate::oracle::token::Token;
use crate::server::{Cause, Server};
use crate::time::Nanos;

impl Semaphores {
    pub(crate) fn cancelled(&mut self, processes: &[usize]) {
        for call in self.calls.values_mut().filter(|call| processes.contains(&call.process)) {
            call.cancelled = true;
        }
    }

    /// A killed process's requests may still arrive, for the calls that waited when it was killed.
    pub(crate) fn killed(&mut self, process: usize, now: Nanos) {
        self.calls.retain(|&task, call| {
            let lives = call.process != process;
            if !lives {
                self.ended.push((task, call.clone(), now));
            }
            lives
        });
    }

    /// The call of that task ends. Returns it.
    fn ends(&mut self, task: usize, now: Nanos) -> Option<Call> {
        let call = self.calls.remove(&task)?;
        self.ended.push((task, call.clone(), now));
        Some(call)
    }

    pub(crate) fn waiting(&self) -> impl Iterator<Item = usize> {
        self.calls.iter().filter(|(_, call)| call.request.limit != Some(0)).map(|(&task, _)| task)
    }

    /// Records every state from now on, for a task that reads the status.
    pub(crate) fn watches(&mut self, task: usize, key: &str) {
        self.watches.insert(task, (key.to_owned(), BTreeSet::new()));
    }

    /// Whether the semaphore was in that state at some time since the task began to watch.
    pub(crate) fn saw(&mut self, task: usize, seen: Status) -> bool {
        self.watches.remove(&task).is_none_or(|(_, states)| states.contains(&seen))
    }
}

impl Oracle {
    /// Called whenever a semaphore or the server's clock has changed.
    pub(crate) fn inspect_semaphores(&mut self, now: Nanos, server_time: u64) {
        let Semaphores { all, calls, watches, .. } = &mut self.semaphores;
        for (key, states) in watches.values_mut() {
            let Some(semaphore) = all.get(key) else { continue };
            let available =
                u32::try_from(semaphore.available(server_time, |_| false)).unwrap_or(u32::MAX);
            let permits = semaphore.record.as_ref().map(|record| record.permits);
            states.insert(permits.map(|permits| (permits, available)));
            if now < self.recovers_until {
                states.insert(permits.map(|permits| (permits, 0)));
            }
        }
        if calls.is_empty() {
            return;
        }
        let fault_free = self.fault_free;
        for (key, semaphore) in all.iter_mut() {
            let waits: BTreeMap<usize, Waiter> = calls
                .iter()
                .filter(|(_, call)| call.request.key == *key)
                .map(|(&task, call)| {
                    let Call { process, begun, .. } = *call;
                    (task, Waiter { process, begun, in_line: call.is_in_line(key) })
                })
                .collect();
            for &task in waits.keys() {
                let Some(call) = calls.get_mut(&task) else { continue };
                let tokens = &self.tokens;
                let mine = |token: &str| {
                    tokens.get(token).is_some_and(|it| is_surely_of(it, task, call.begun))
                };
                // Permits that the call has been granted without knowing it are no reason to wait.
                let available = semaphore.available(server_time, |line| mine(&line.token));
                let fits = available >= u64::from(call.request.permits);
                let record = semaphore.record.as_ref();
                // In a fault-free run a reservation is valid only while its waiter waits.
                let waiting =
                    !fault_free || semaphore.reserver.is_none_or(|task| waits.contains_key(&task));
                let is_reserved = waiting
                    && record.and_then(|record| record.reservation.as_ref()).is_some_and(|other| {
                        other.until > server_time
                            && call.request.priority <= other.priority
                            && !mine(&other.token)
                    });
                // A refusal of a whole batch is based on the clock as it was read for the batch.
                let late =
                    semaphore.available(server_time.saturating_sub(1), |line| mine(&line.token));
                call.was_busy |= late < u64::from(call.request.permits) || is_reserved;
                call.was_busy |= now < self.recovers_until;
                call.was_missing |= record.is_none();
                call.was_other |= record.is_some_and(|record| {
                    let PermitRequest { permits, number, mismatch, .. } = call.request;
                    record.permits < permits
                        || number.is_some_and(|number| match mismatch {
                            Mismatch::Follow => false,
                            // It may have given the semaphore less than it asks for itself.
                            Mismatch::Resize => number < permits,
                            Mismatch::Refuse => number != record.permits,
                        })
                });
                let next = fits && semaphore.is_next(task, &waits);
                call.could_have = if next { call.could_have.or(Some(now)) } else { None };
            }
            let lines = semaphore.record.iter().flat_map(|record| &record.lines);
            for line in lines.filter(|line| line.until <= server_time) {
                if semaphore.over.insert(line.token.clone()) {
                    semaphore.last_expiry = Some(now);
                }
            }
        }
    }

    pub(crate) fn asks_for_permits(
        &mut self,
        task: usize,
        process: usize,
        request: PermitRequest,
        now: Nanos,
        server_time: u64,
    ) {
        self.semaphores.leases(process, task, now, request.lease);
        let mut call = Call {
            request,
            process,
            begun: now,
            cancelled: false,
            has_queued: false,
            was_busy: false,
            was_other: false,
            was_missing: false,
            could_have: None,
        };
        let Semaphores { all, calls, .. } = &mut self.semaphores;
        if let Some(semaphore) = all.get_mut(&call.request.key) {
            let key = &call.request.key;
            let mut positions = semaphore.positions.values().filter(|it| it.process == process);
            call.has_queued =
                call.is_in_line(key) && positions.clone().any(|position| position.in_line);
            let is_stale = |it: &QueuePosition| {
                let waits = |other: &Call| other.request.key == *key && other.begun <= it.since;
                !calls.get(&it.task).is_some_and(waits) && !it.is_taken(key, calls)
            };
            if positions.any(is_stale) {
                semaphore.stale_processes.insert(process);
            }
        }
        calls.insert(task, call);
        self.inspect_semaphores(now, server_time);
    }

    /// Records the hold, and returns its number.
    pub(crate) fn granted_permits(
        &mut self,
        task: usize,
        token: String,
        permits: u32,
        until: Nanos,
        now: Nanos,
    ) -> u64 {
        self.tally.permits += 1;
        let Some(call) = self.semaphores.ends(task, now) else { return 0 };
        if let Some(semaphore) = self.semaphores.all.get_mut(&call.request.key)
            && call.is_in_line(&call.request.key)
        {
            semaphore.went_on.insert(call.process, now);
        }
        let written = self.tokens.get(&token);
        let latest =
            |sent: Nanos| sent + call.request.lease + AFTER_THE_LEASE + call.request.lease / 5000;
        if let Some(late) = written.and_then(|it| it.ends.checked_sub(latest(it.sent) + 1)) {
            let late = late as f64 / 1e9;
            self.report_violation(format!(
                "{token} was granted, and ended {late:.3} s later than its lease explains"
            ));
        } else if !written.is_some_and(|written| is_of(written, task, call.begun)) {
            self.report_violation(format!(
                "{} was granted as {token}, which was never there",
                call.request.key
            ));
        } else if permits != call.request.permits {
            self.report_violation(format!(
                "{permits} permits of {} were granted, and {} asked for",
                call.request.key, call.request.permits
            ));
        }
        // An entry that could not be removed may be woken later: that wakes another waiter of the
        // process.
        if !self.fault_free
            && let Some(semaphore) = self.semaphores.all.get_mut(&call.request.key)
            && semaphore.positions.values().any(|position| position.task == task)
        {
            semaphore.stale_processes.insert(call.process);
        }
        let lost =
            matches!(self.tokens.get(&token), Some(Token { gone: Some((_, Cause::Loss)), .. }));
        let forgotten = matches!(
            self.tokens.get(&token),
            Some(Token { gone: Some((_, Cause::Forgotten)), .. })
        );
        // Tokens that were written meanwhile for other calls of the process were not for this one.
        for (other, it) in self.tokens.iter_mut().filter(|(_, it)| it.sent >= call.begun) {
            if *other == token {
                it.candidates = BTreeSet::from([task]);
            } else {
                it.candidates.remove(&task);
            }
        }
        self.holds(HoldInterval {
            permits: Some(permits),
            lost,
            forgotten,
            ..HoldInterval::new(call.process, call.request.key, token, until)
        })
    }

    pub(crate) fn refused_permits(
        &mut self,
        task: usize,
        why: Refusal,
        now: Nanos,
        held_up: Nanos,
        server: &Server,
    ) {
        self.inspect_semaphores(now, server.time());
        let Some(call) = self.semaphores.ends(task, now) else { return };
        if matches!(why, Refusal::Unreachable | Refusal::Unknown) {
            self.tally.errors += 1;
        } else {
            self.tally.refusals += 1;
        }
        if call.has_queued
            && !self.fault_free
            && let Some(semaphore) = self.semaphores.all.get_mut(&call.request.key)
        {
            semaphore.stale_processes.insert(call.process);
        }
        let key = &call.request.key;
        let left = || {
            let record = self.semaphores.all.get(key)?.record.as_ref()?;
            let mut tokens = record.lines.iter().map(|line| &line.token);
            tokens.find(|&token| {
                self.tokens.get(token).is_some_and(|it| is_surely_of(it, task, call.begun))
            })
        };
        let violation = match why {
            Refusal::Busy if !call.was_busy => Some(format!(
                "{key} was called busy, and there has been capacity ever since the call began"
            )),
            Refusal::TimedOut => self.check_end_of_wait(
                call.process,
                key,
                (call.begun, call.request.limit),
                now,
                held_up,
            ),
            Refusal::Interrupted if !call.cancelled => {
                Some(format!("the wait for {key} was cancelled without a request"))
            }
            Refusal::Unreachable => left().map(|token| {
                format!(
                    "the server of {key} was called unreachable, yet it has {token} of that call"
                )
            }),
            Refusal::Unknown if self.fault_free => {
                Some(format!("there was no fault, yet the outcome for {key} is unknown"))
            }
            Refusal::Invalid if !call.was_other => {
                Some(format!("the call for {key} was refused as invalid, and was valid"))
            }
            Refusal::NotFound if !call.was_missing || call.request.number.is_some() => {
                Some(format!("{key} was not found, and it was there"))
            }
            Refusal::Recovering => self.check_recovering(key, call.begun),
            Refusal::Other => Some(format!("the call for {key} failed without a possible cause")),
            _ => None,
        };
        if let Some(violation) = violation {
            self.report_violation(violation);
        }
    }

    pub(crate) fn check_permit_waiter(&mut self, task: usize, now: Nanos, last_fault: Nanos) {
        let Some(call) = self.semaphores.calls.get(&task) else { return };
        let (Some(since), Some(semaphore)) =
            (call.could_have, self.semaphores.all.get(&call.request.key))
        else {
            return;
        };
        let mut patience = self.patience;
        if semaphore.last_expiry.is_some_and(|when| now < when + AFTER_EXPIRY) {
            patience = patience.max(PATIENCE_WITHOUT_WAKE);
        }
        let went_on = match call.is_in_line(&call.request.key) {
            true => semaphore.went_on.get(&call.process).copied().unwrap_or(0),
            false => 0,
        };
        let passed = now.saturating_sub(since.max(last_fault).max(went_on));
        if passed > patience {
            self.report_violation(format!(
                "{} has had capacity for task {task} for {:.3} s, and it waits",
                call.request.key,
                passed as f64 / 1e9
            ));
        }
    }

    /// The server lost it, or it was torn down: all permits that are held are lost, or can no
    /// longer be found.
    pub(super) fn loses(&mut self, key: &str) {
        for hold in self.holds.values_mut().filter(|hold| hold.key == key) {
            hold.lost = true;
        }
    }

    /// The record expired unused: a release whose reply was lost cannot be told from a loss any
    /// more.
    pub(super) fn forgets_releases(&mut self, key: &str) {
        let releasing =
            |hold: &&mut HoldInterval| hold.key == key && hold.releasing.is_some() && !hold.using;
        for hold in self.holds.values_mut().filter(releasing) {
            hold.lost = true;
        }
    }
}

/// Whether it may have been written for that call.
fn is_of(token: &Token, task: usize, begun: Nanos) -> bool {
    token.candidates.contains(&task) && token.sent >= begun
}

/// Whether it cannot have been written for any other call.
fn is_surely_of(token: &Token, task: usize, begun: Nanos) -> bool {
    is_of(token, task, begun) && token.candidates.len() == 1
}
