//! The judge: what must be true of every run, whatever goes wrong in it.
//!
//! It sees what the server does, and what clients were told; never what the library thinks.

use std::collections::BTreeMap;
use std::fmt::Display;

use memlock_core::OwnerRecord;

use crate::lists::Lists;
use crate::scenario::Scenario;
use crate::server::{Cause, Change, Server};
use crate::waits::PATIENCE_WITHOUT_A_BELL;
use crate::world::{MILLI, Nanos, SECOND};

/// How many moments of a lock's past are kept.
const PAST: usize = 200;

#[derive(Debug)]
pub(crate) struct Judge {
    /// Whose request the server is carrying out.
    pub(crate) changing: Option<Doer>,
    pub(crate) violation: Option<String>,
    pub(crate) lists: Lists,
    pub(crate) tally: Tally,
    pub(crate) locks: BTreeMap<String, Lock>,
    holds: BTreeMap<u64, Hold>,
    pub(crate) calls: BTreeMap<usize, Call>,
    /// Who wrote a token, and where it went.
    pub(crate) tokens: BTreeMap<String, Token>,
    last_hold: u64,
    /// How long a lock may be free while somebody waits for it.
    pub(crate) patience: Nanos,
    pub(crate) calm: bool,
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
    pub(crate) refusals: u64,
    pub(crate) errors: u64,
    pub(crate) lost: u64,
    pub(crate) inserts: u64,
    pub(crate) longest_free: Nanos,
}

#[derive(Debug, Default)]
pub(crate) struct Lock {
    /// When it was whose, and nobody's.
    pub(crate) past: Vec<(Nanos, Option<String>)>,
    /// When a lease ended that its holder had not ended.
    pub(crate) overslept: Option<Nanos>,
    pub(crate) greatest_fence: u64,
}

#[derive(Debug)]
pub(crate) struct Token {
    pub(crate) process: usize,
    /// It was there before, and an attempt of long ago put it there once more.
    pub(crate) again: bool,
    /// Whose attempt put it there; nobody's, if it was handed over by another thread.
    pub(crate) task: Option<usize>,
    pub(crate) sent: Nanos,
    pub(crate) written: Nanos,
    pub(crate) gone: Option<(Nanos, Cause)>,
}

/// A lock as its holder believes in it.
#[derive(Debug)]
struct Hold {
    process: usize,
    key: String,
    token: String,
    until: Nanos,
    /// The holder relies on it: it is not letting go of it, or changing it.
    using: bool,
    /// The server lost it, as it may.
    lost: bool,
    /// When its holder first began to let go.
    releasing: Option<Nanos>,
    /// A request to let go had no answer: if it is gone now, nobody can tell what did it.
    in_doubt: bool,
}

/// A call that waits for a lock.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) key: String,
    pub(crate) process: usize,
    pub(crate) begun: Nanos,
    /// `None`: for ever.
    pub(crate) limit: Option<Nanos>,
    pub(crate) cancelled: bool,
}

impl Judge {
    pub(crate) fn new(scenario: &Scenario) -> Judge {
        let patience = match (scenario.calm, scenario.bells_off) {
            (true, false) => 450 * MILLI,
            (true, true) => 1300 * MILLI,
            _ if scenario.lossy_permille > 0 => PATIENCE_WITHOUT_A_BELL + 17 * SECOND,
            _ => PATIENCE_WITHOUT_A_BELL,
        };
        Judge {
            changing: None,
            violation: None,
            lists: Lists::default(),
            tally: Tally::default(),
            locks: BTreeMap::new(),
            holds: BTreeMap::new(),
            calls: BTreeMap::new(),
            tokens: BTreeMap::new(),
            last_hold: 0,
            patience,
            calm: scenario.calm,
        }
    }

    pub(crate) fn object(&mut self, what: impl Display) {
        self.violation.get_or_insert_with(|| what.to_string());
    }

    // --- what the server does ------------------------------------------------------------------

    pub(crate) fn changed(&mut self, change: &Change, now: Nanos, by: Option<Doer>) {
        if change.key.starts_with("list:") {
            return self.lists.changed(change, by.map(|by| by.task));
        }
        if !change.key.starts_with("lock:") || change.key.ends_with("%wait") {
            return;
        }
        let (before, after) = (token_of(change.before.as_deref()), token_of(change.after.as_deref()));
        if before == after {
            return;
        }
        if let (Some(token), Some(Doer { process, task, sent })) = (&after, by) {
            let task = before.is_none().then_some(task);
            let again = self.tokens.contains_key(token);
            let written = Token { process, task, sent, written: now, gone: None, again };
            self.tokens.insert(token.clone(), written);
        }
        if let Some(token) = &before {
            self.check_removal(token, change, by);
            if let Some(token) = self.tokens.get_mut(token) {
                token.gone = Some((now, change.cause));
            }
        }
        let lock = self.locks.entry(change.key.clone()).or_default();
        let freed = lock.past.last().filter(|(_, whose)| whose.is_none()).map(|&(time, _)| time);
        lock.past.push((now, after.clone()));
        if change.cause == Cause::Expiry {
            lock.overslept = Some(now);
        }
        if lock.past.len() > PAST {
            lock.past.remove(0);
        }
        if let (Some(freed), Some(_)) = (freed, after) {
            self.tally.longest_free = self.tally.longest_free.max(now - freed);
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

    /// Looks at all holds: whoever relies on a lock must have it.
    pub(crate) fn check_holds(&mut self, now: Nanos, server: &Server) {
        for hold in self.holds.values() {
            if !hold.using || hold.lost || hold.until <= now {
                continue;
            }
            let there = token_of(server.value(&hold.key));
            if there.as_deref() != Some(&hold.token) {
                let found = there.unwrap_or_else(|| "nobody".to_owned());
                let what = format!(
                    "process {} holds {} as {} for {:.6} s yet, but on the server {found} has it",
                    hold.process,
                    hold.key,
                    hold.token,
                    (hold.until - now) as f64 / 1e9
                );
                return self.object(what);
            }
        }
    }

    // --- what clients are told: acquiring ----------------------------------------------------------

    pub(crate) fn asks(&mut self, task: usize, process: usize, key: &str, limit: Option<Nanos>, now: Nanos) {
        let call = Call { key: key.to_owned(), process, begun: now, limit, cancelled: false };
        self.calls.insert(task, call);
    }

    pub(crate) fn cancelled(&mut self, processes: &[usize]) {
        for call in self.calls.values_mut().filter(|call| processes.contains(&call.process)) {
            call.cancelled = true;
        }
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
        let lost = matches!(self.tokens.get(&token), Some(Token { gone: Some((_, Cause::Loss)), .. }));
        let lock = self.locks.entry(call.key.clone()).or_default();
        if until > now && !lost {
            if fence <= lock.greatest_fence {
                let greatest = lock.greatest_fence;
                let what = format!("{} was granted with fence {fence}, after one with {greatest}", call.key);
                self.violation.get_or_insert(what);
            }
            lock.greatest_fence = lock.greatest_fence.max(fence);
        }
        self.last_hold += 1;
        let hold = Hold {
            process: call.process,
            key: call.key,
            token,
            until,
            using: true,
            lost,
            releasing: None,
            in_doubt: false,
        };
        self.holds.insert(self.last_hold, hold);
        self.last_hold
    }

    // --- what clients are told: holding --------------------------------------------------------------

    /// The holder begins to let go, or to change its lease: until that ends, it does not rely on it.
    pub(crate) fn pauses_using(&mut self, hold: u64, now: Nanos, releases: bool) {
        if let Some(hold) = self.holds.get_mut(&hold) {
            hold.using = false;
            if releases {
                hold.releasing.get_or_insert(now);
            }
        }
    }

    /// The holder relies on it again, until then.
    pub(crate) fn uses(&mut self, hold: u64, until: Nanos) {
        if let Some(hold) = self.holds.get_mut(&hold) {
            (hold.using, hold.until) = (true, until);
        }
    }

    /// A request of this task that would let go of locks had no answer.
    pub(crate) fn is_in_doubt(&mut self, process: usize, key: &str) {
        for hold in self.holds.values_mut().filter(|hold| hold.process == process && hold.key == key) {
            hold.in_doubt = hold.releasing.is_some();
        }
    }

    pub(crate) fn told_released(&mut self, hold: u64, server: &Server) {
        let Some(hold) = self.holds.remove(&hold) else { return };
        let there = token_of(server.value(&hold.key));
        let begun = hold.releasing.unwrap_or(0);
        // An attempt of long ago may put it there once more; nobody believes in that, and it is taken off later.
        let again = self.tokens.get(&hold.token).is_some_and(|token| token.written >= begun);
        let objection = match self.tokens.get(&hold.token).and_then(|token| token.gone) {
            _ if there.as_deref() == Some(&hold.token) => (!again).then_some("it is still there"),
            Some((when, Cause::Expiry | Cause::Loss)) if when < begun && !hold.in_doubt => {
                Some("it was lost before that")
            }
            None => Some("it was never there"),
            _ => None,
        };
        if let Some(objection) = objection {
            self.object(format!("{} was called released, and {objection}", hold.key));
        }
    }

    pub(crate) fn told_lost(&mut self, hold: u64, now: Nanos, server: &Server) {
        self.tally.lost += 1;
        let Some(hold) = self.holds.remove(&hold) else { return };
        let again = self.tokens.get(&hold.token).is_some_and(|token| token.again);
        if token_of(server.value(&hold.key)).as_deref() == Some(&hold.token) && !again {
            return self.object(format!("{} was called lost, and is still there", hold.key));
        }
        let gone = self.tokens.get(&hold.token).and_then(|token| token.gone);
        if let Some((when, Cause::Command)) = gone
            && when < hold.until
            && now < hold.until
            && hold.releasing.is_some()
            && !hold.lost
        {
            self.object(format!("{} was called lost, and it was its holder who let go of it", hold.key));
        }
    }

    /// The holder was told that nothing was changed.
    pub(crate) fn told_unchanged(&mut self, hold: u64, begun: Nanos) {
        let Some(hold) = self.holds.get(&hold) else { return };
        if let Some((when, Cause::Command)) = self.tokens.get(&hold.token).and_then(|token| token.gone)
            && when >= begun
        {
            self.object(format!("{} was called unchanged, and it was let go of meanwhile", hold.key));
        }
    }

    /// The holder gave it up without being told anything.
    pub(crate) fn forgets(&mut self, hold: u64) {
        self.holds.remove(&hold);
    }

    pub(crate) fn killed(&mut self, process: usize) {
        self.holds.retain(|_, hold| hold.process != process);
        self.calls.retain(|_, call| call.process != process);
        self.lists.killed(process);
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
                key.starts_with("lock:") && !(key.ends_with("%wait") && server.value(key) == Some(b""))
            });
            if let Some(left) = left {
                self.violation
                    .get_or_insert_with(|| format!("all is over, and {left} is left on the server"));
            }
        }
        if let Some(objection) = self.lists.objection(true) {
            self.object(objection);
        }
    }
}

pub(crate) fn token_of(value: Option<&[u8]>) -> Option<String> {
    OwnerRecord::parse(value?).map(|record| record.token.to_string())
}
