//! The judge: what must be true of every run, whatever goes wrong in it.
//!
//! It sees what the server does, and what clients were told; never what the library thinks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use memlock_core::OwnerRecord;

use crate::scenario::Scenario;
use crate::server::{Cause, Change, Server};
use crate::time::{MILLI, Nanos, SECOND};
use holds::Hold;
use lists::Lists;
use renewal::Keeping;
use renewers::Keepers;
use semaphores::Semaphores;
use waits::{Lateness, PATIENCE_WITHOUT_A_BELL};

pub(crate) mod holds;
mod lists;
pub(crate) mod renewal;
pub(crate) mod renewers;
pub(crate) mod semaphores;
mod turns;
pub(crate) mod waits;

/// How many moments of a lock's past are kept.
const PAST: usize = 200;

#[derive(Debug)]
pub(crate) struct Oracle {
    /// Whose request the server is carrying out.
    pub(crate) changing: Option<Doer>,
    pub(crate) violation: Option<String>,
    pub(crate) lists: Lists,
    pub(crate) tally: Tally,
    pub(crate) locks: BTreeMap<String, Lock>,
    pub(crate) holds: BTreeMap<u64, Hold>,
    pub(crate) semaphores: Semaphores,
    pub(crate) keeping: Keeping,
    pub(crate) renewers: Keepers,
    pub(crate) calls: BTreeMap<usize, Call>,
    /// Who wrote a token, and where it went.
    pub(crate) tokens: BTreeMap<String, Token>,
    pub(crate) last_hold: u64,
    /// How long a lock may be free while somebody waits for it.
    pub(crate) patience: Nanos,
    /// How long after its limit a wait may end.
    pub(crate) lateness: Lateness,
    /// When the threads of each process asked the server for something, and until when that took.
    pub(crate) asked: BTreeMap<usize, Vec<(Nanos, Nanos)>>,
    /// Which processes have one thread.
    pub(crate) single: Vec<bool>,
    pub(crate) calm: bool,
    /// Waiters can be rung.
    pub(crate) has_bells: bool,
}

/// Whose request it is, and when it was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doer {
    pub(crate) process: usize,
    pub(crate) task: usize,
    pub(crate) sent: Nanos,
}

/// What came of a run, in numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) grants: u64,
    pub(crate) permits: u64,
    pub(crate) refusals: u64,
    pub(crate) errors: u64,
    pub(crate) lost: u64,
    pub(crate) inserts: u64,
    pub(crate) kept: u64,
    pub(crate) renewals: u64,
    pub(crate) longest_free: Nanos,
}

#[derive(Debug, Default)]
pub(crate) struct Lock {
    /// When it was whose, and nobody's.
    pub(crate) past: Vec<(Nanos, Option<String>)>,
    /// When a lease ended that its holder had not ended.
    pub(crate) overslept: Option<Nanos>,
    pub(crate) greatest_fence: u64,
    /// For how long somebody had it at most, or it was reserved.
    pub(crate) longest: Nanos,
    /// How often it came free without a release, so that nobody was woken, and how often a call
    /// that tried once was faster than the waiter that was woken.
    pub(crate) irregular: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) process: usize,
    /// It was there before, and an attempt of long ago put it there once more.
    pub(crate) again: bool,
    /// Whose attempt put it there; nobody's, if it was handed over by another thread.
    pub(crate) task: Option<usize>,
    /// Of permits, whose calls it may be for: a thread writes for others of its process, and who
    /// each line is for is known when that is told.
    pub(crate) askers: BTreeSet<usize>,
    /// Until when the server keeps it, as it was first written, but for the time that the look
    /// before took.
    pub(crate) ends: Nanos,
    pub(crate) sent: Nanos,
    pub(crate) written: Nanos,
    pub(crate) gone: Option<(Nanos, Cause)>,
}

/// A call that waits for a lock.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) key: String,
    pub(crate) process: usize,
    pub(crate) begun: Nanos,
    /// How many waited for it already, when the call began or when it joined the queue.
    pub(crate) before: u64,
    pub(crate) joined: bool,
    /// See [`Lock::irregular`].
    pub(crate) irregular: u64,
    /// `None`: for ever.
    pub(crate) limit: Option<Nanos>,
    pub(crate) cancelled: bool,
}

impl Oracle {
    pub(crate) fn new(scenario: &Scenario) -> Oracle {
        let patience = match (scenario.calm, scenario.is_deaf()) {
            (true, false) => 250 * MILLI,
            (true, true) if scenario.bells_off => 1300 * MILLI,
            // A waiter that hears some may have to find out that it missed another: see `turns`.
            (true, true) => PATIENCE_WITHOUT_A_BELL,
            // One try takes five exchanges or more, and where half of all requests are lost, two
            // seconds each.
            _ if scenario.lossy_permille > 300 => PATIENCE_WITHOUT_A_BELL + 47 * SECOND,
            _ if scenario.lossy_permille > 0 => PATIENCE_WITHOUT_A_BELL + 17 * SECOND,
            _ => PATIENCE_WITHOUT_A_BELL,
        };
        Oracle {
            changing: None,
            violation: None,
            lists: Lists::default(),
            tally: Tally::default(),
            locks: BTreeMap::new(),
            holds: BTreeMap::new(),
            semaphores: Semaphores::new(&scenario.semaphores.permits),
            keeping: Keeping::default(),
            renewers: Keepers::default(),
            calls: BTreeMap::new(),
            tokens: BTreeMap::new(),
            last_hold: 0,
            patience,
            lateness: Lateness::of(scenario),
            asked: BTreeMap::new(),
            calm: scenario.calm,
            single: scenario.processes.iter().map(|&(_, threads)| threads == 1).collect(),
            has_bells: !scenario.is_deaf(),
        }
    }

    pub(crate) fn object(&mut self, what: impl Display) {
        self.violation.get_or_insert_with(|| what.to_string());
    }

    // --- what the server does ------------------------------------------------------------------

    pub(crate) fn changed(
        &mut self,
        change: &Change,
        now: Nanos,
        by: Option<Doer>,
        server: &Server,
    ) {
        if change.key.starts_with("list:") {
            return self.lists.changed(change, by.map(|by| by.task));
        }
        if change.key.starts_with("semaphore:") {
            return self.semaphore_changed(change, now, by, server);
        }
        if !change.key.starts_with("lock:") {
            return;
        }
        if let Some(key) = change.key.strip_suffix("%wait") {
            return self.lock_queue_changed(key, change, by);
        }
        let (before, after) =
            (token_of(change.before.as_deref()), token_of(change.after.as_deref()));
        if let Some(by) = by.filter(|by| self.renewers.has(by.task))
            && change.cause == Cause::Command
            && before.as_ref().or(after.as_ref()).is_some()
        {
            self.keeper_wrote_lock(change, now, by, server);
        }
        self.note_whose(change, now);
        if before == after {
            return;
        }
        if let (Some(token), Some(Doer { process, task, sent })) = (&after, by) {
            let task = before.is_none().then_some(task);
            let again = self.tokens.contains_key(token);
            let askers = BTreeSet::new();
            let written =
                Token { process, task, askers, ends: 0, sent, written: now, gone: None, again };
            self.tokens.insert(token.clone(), written);
        }
        if let Some(token) = &before {
            self.check_removal(token, change, by);
            if let Some(token) = self.tokens.get_mut(token) {
                token.gone = Some((now, change.cause));
            }
        }
        if change.cause == Cause::Expiry {
            let lock = self.locks.entry(change.key.clone()).or_default();
            (lock.overslept, lock.irregular) = (Some(now), lock.irregular + 1);
        }
    }

    /// Whose the lock is from now on: a holder's, or a waiter's for whom it is reserved.
    fn note_whose(&mut self, change: &Change, now: Nanos) {
        let after = change.after.as_deref();
        let whose = token_of(after).or_else(|| reservation_of(after));
        let lock = self.locks.entry(change.key.clone()).or_default();
        lock.note_tenure(now);
        let before = lock.past.last();
        if before.map_or(whose.is_none(), |(_, before)| *before == whose) {
            return;
        }
        let freed = before.filter(|(_, whose)| whose.is_none()).map_or(now, |&(time, _)| time);
        if whose.is_some() {
            self.tally.longest_free = self.tally.longest_free.max(now - freed);
        }
        lock.past.push((now, whose));
        if lock.past.len() > PAST {
            lock.past.remove(0);
        }
    }

    fn check_removal(&mut self, token: &str, change: &Change, by: Option<Doer>) {
        for hold in self.holds.values_mut().filter(|hold| hold.token == token) {
            if change.cause == Cause::Loss {
                hold.lost = true;
            }
        }
        if change.cause != Cause::Command {
            return;
        }
        let owner = self.tokens.get(token).map(|token| token.process);
        if let (Some(owner), Some(Doer { process, .. })) = (owner, by)
            && owner != process
        {
            self.object(format!(
                "process {process} removed {}, which process {owner} held as {token}",
                change.key
            ));
        }
    }

    // --- what clients are told: acquiring
    // ----------------------------------------------------------

    pub(crate) fn asks(
        &mut self,
        task: usize,
        process: usize,
        key: &str,
        limit: Option<Nanos>,
        now: Nanos,
    ) {
        let before = self.waiting_for(key);
        let irregular = self.locks.get(key).map_or(0, |lock| lock.irregular);
        let key = key.to_owned();
        let (joined, cancelled) = (false, false);
        let call = Call { key, process, begun: now, before, joined, irregular, limit, cancelled };
        self.calls.insert(task, call);
    }

    pub(crate) fn cancelled(&mut self, processes: &[usize]) {
        for call in self.calls.values_mut().filter(|call| processes.contains(&call.process)) {
            call.cancelled = true;
        }
        self.semaphores.cancelled(processes);
    }

    pub(crate) fn granted(
        &mut self,
        task: usize,
        token: String,
        fence: u64,
        until: Nanos,
        now: Nanos,
    ) -> u64 {
        self.tally.grants += 1;
        let Some(call) = self.calls.remove(&task) else { return 0 };
        if let Some(objection) = self.passed_over(&call, now) {
            self.object(objection);
        }
        let lost =
            matches!(self.tokens.get(&token), Some(Token { gone: Some((_, Cause::Loss)), .. }));
        let lock = self.locks.entry(call.key.clone()).or_default();
        lock.irregular += u64::from(call.limit == Some(0));
        if until > now && !lost {
            if fence <= lock.greatest_fence {
                let greatest = lock.greatest_fence;
                let what = format!(
                    "{} was granted with fence {fence}, after one with {greatest}",
                    call.key
                );
                self.violation.get_or_insert(what);
            }
            lock.greatest_fence = lock.greatest_fence.max(fence);
        }
        self.holds(Hold { lost, ..Hold::new(call.process, call.key, token, until) })
    }

    pub(crate) fn killed(&mut self, process: usize, now: Nanos) {
        self.holds.retain(|_, hold| hold.process != process);
        self.calls.retain(|_, call| call.process != process);
        self.lists.killed(process);
        self.semaphores.killed(process, now);
    }

    pub(crate) fn restarted(&mut self) {
        for hold in self.holds.values_mut() {
            hold.lost = true;
        }
    }

    /// At the end nobody waits and nobody holds.
    pub(crate) fn check_end(&mut self, server: &Server) {
        if self.calm {
            let left = server.keys().find(|key| {
                let value = server.value(key);
                let over =
                    key.ends_with("%wait") && value == Some(b"") || reservation_of(value).is_some();
                key.starts_with("lock:") && !over
            });
            if let Some(left) = left {
                self.violation.get_or_insert_with(|| {
                    format!("all is over, and {left} is left on the server")
                });
            }
        }
        let permits = if self.calm { self.semaphores_at_the_end(server.time()) } else { None };
        if let Some(objection) = self.lists.objection(true).or(permits) {
            self.object(objection);
        }
    }
}

/// By which token it is held; a reservation is no holder's.
pub(crate) fn token_of(value: Option<&[u8]>) -> Option<String> {
    let held = OwnerRecord::parse(value?).filter(|record| record.reserved_for.is_none())?;
    Some(held.token.to_string())
}

/// For whom it is reserved.
fn reservation_of(value: Option<&[u8]>) -> Option<String> {
    OwnerRecord::parse(value?)?.reserved_for.map(|waiter| format!("waiter {waiter}"))
}
