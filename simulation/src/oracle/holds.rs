//! The answers that holders get, and what they may rely on: **while a lease is valid by its
//! holder's clock, the server has the lock**, unless the server lost it.

use std::collections::BTreeMap;

use super::hold::HoldInterval;
use super::state::Oracle;
use super::token::token_of;
use crate::server::{Cause, Server};
use crate::time::Nanos;

impl Oracle {
    /// Checks all holds: the server must have each one that its holder relies on.
    pub(crate) fn check_holds(&mut self, now: Nanos, server: &Server) {
        for hold in self.holds.values() {
            if !hold.using || hold.lost || hold.until <= now {
                continue;
            }
            if !hold.forgotten && !self.is_valid(hold, server) {
                let found = self.found(hold, server);
                let what = format!(
                    "process {} holds {} as {} for {:.6} s yet, but on the server {found} has it",
                    hold.process,
                    hold.key,
                    hold.token,
                    (hold.until - now) as f64 / 1e9
                );
                return self.report_violation(what);
            }
        }
        self.check_sums(now);
        self.check_exclusion(now);
    }

    /// No mutex has two holders that rely on it, whatever the server has.
    fn check_exclusion(&mut self, now: Nanos) {
        let valid = |hold: &&HoldInterval| hold.using && !hold.lost && hold.until > now;
        let mut holders: BTreeMap<&str, &HoldInterval> = BTreeMap::new();
        let mut second = None;
        for hold in self.holds.values().filter(valid).filter(|hold| hold.permits.is_none()) {
            if let Some(other) = holders.insert(&hold.key, hold) {
                second = Some(format!(
                    "processes {} and {} hold {} at once, as {} and {}",
                    other.process, hold.process, hold.key, other.token, hold.token
                ));
            }
        }
        if let Some(what) = second {
            self.report_violation(what);
        }
    }

    /// No more permits are held than there are.
    fn check_sums(&mut self, now: Nanos) {
        let mut sums: BTreeMap<&str, u32> = BTreeMap::new();
        for hold in self.holds.values().filter(|hold| hold.using && !hold.lost && hold.until > now)
        {
            if let Some(permits) = hold.permits {
                *sums.entry(&hold.key).or_default() += permits;
            }
        }
        let over = sums
            .iter()
            .find(|(key, sum)| self.semaphores.most(key).is_some_and(|most| **sum > most));
        if let Some(what) =
            over.map(|(key, sum)| format!("{sum} permits of {key} are held, and there are fewer"))
        {
            self.report_violation(what);
        }
    }

    /// Whether the server has what a holder relies on, with an end that has not passed.
    fn is_valid(&self, hold: &HoldInterval, server: &Server) -> bool {
        match hold.permits {
            None => self.is_there(hold, server),
            Some(permits) => self
                .semaphores
                .live_line(&hold.key, &hold.token, server.time())
                .is_some_and(|line| line.permits == permits),
        }
    }

    /// Whether the server has it.
    pub(crate) fn is_there(&self, hold: &HoldInterval, server: &Server) -> bool {
        match hold.permits {
            None => token_of(server.value(&hold.key)).as_deref() == Some(&hold.token),
            Some(_) => self.semaphores.line(&hold.key, &hold.token).is_some(),
        }
    }

    /// What the server has instead.
    fn found(&self, hold: &HoldInterval, server: &Server) -> String {
        match (hold.permits, server.value(&hold.key)) {
            (Some(_), Some(record)) => {
                format!("{:?} at {}", String::from_utf8_lossy(record), server.time())
            }
            (_, value) => token_of(value).unwrap_or_else(|| "no holder".to_owned()),
        }
    }

    /// Records a hold, and returns its number.
    pub(crate) fn holds(&mut self, hold: HoldInterval) -> u64 {
        self.last_hold += 1;
        self.holds.insert(self.last_hold, hold);
        self.last_hold
    }

    /// The holder begins to release or to extend it, and does not rely on it until that call
    /// returns.
    pub(crate) fn pauses_using(&mut self, hold: u64, now: Nanos, releases: bool) {
        if let Some(hold) = self.holds.get_mut(&hold) {
            hold.using = false;
            if releases {
                hold.releasing.get_or_insert(now);
            }
        }
    }

    /// The holder begins to extend it.
    pub(crate) fn extends(&mut self, hold: u64) {
        if let Some(hold) = self.holds.get_mut(&hold) {
            hold.extending = true;
        }
    }

    /// The holder relies on it again, until `until`.
    pub(crate) fn uses(&mut self, hold: u64, until: Nanos) {
        if let Some(hold) = self.holds.get_mut(&hold) {
            (hold.using, hold.until, hold.extending) = (true, until, false);
        }
    }

    /// The holder was told that it has held it without a break. After a restart of the server its
    /// token alone does not prove that.
    pub(crate) fn told_unbroken(&mut self, number: u64) {
        let Some(hold) = self.holds.get(&number).filter(|hold| hold.permits.is_none()) else {
            return;
        };
        if hold.is_late {
            let what = format!("{} was extended, and was put back after its lease", hold.key);
            return self.report_violation(what);
        }
        let Some(lock) = self.locks.get(&hold.key) else { return };
        let mut later = lock.past.iter().filter(|(time, _)| *time > hold.since);
        let other = later.find_map(|(_, owner)| {
            owner.as_deref().filter(|owner| *owner != hold.token && !owner.starts_with("waiter"))
        });
        if let Some(other) = other.filter(|_| !hold.lost) {
            let what = format!("{} was held by {other} while {} had it", hold.key, hold.token);
            self.report_violation(what);
        }
    }

    /// A request of this process about the lock had no answer. `writes`: it may have released it.
    pub(crate) fn is_in_doubt(&mut self, process: usize, key: &str, writes: bool) {
        for hold in
            self.holds.values_mut().filter(|hold| hold.process == process && hold.key == key)
        {
            hold.unsure |= hold.releasing.is_some() || hold.extending;
            hold.in_doubt |= writes && hold.releasing.is_some();
        }
    }

    pub(crate) fn told_released(&mut self, hold: u64, server: &Server) {
        let Some(hold) = self.holds.remove(&hold) else { return };
        let there = self.is_there(&hold, server);
        let begun = hold.releasing.unwrap_or(0);
        // A delayed attempt may write it again; no holder relies on that, and it is reaped later.
        let again = self.tokens.get(&hold.token).is_some_and(|token| token.written >= begun);
        let violation = match self.tokens.get(&hold.token).and_then(|token| token.gone) {
            _ if there => (!again).then_some("it is still there"),
            _ if hold.is_late => Some("it was put back after its lease"),
            Some((when, Cause::Expiry | Cause::Loss)) if when < begun && !hold.in_doubt => {
                Some("it was lost before that")
            }
            // A renewed hold has no end any more once its release begins.
            Some((_, Cause::Forgotten)) if (1..=begun).contains(&hold.until) && !hold.in_doubt => {
                Some("its lease had ended, and the server had forgotten it")
            }
            None => Some("it was never there"),
            _ => None,
        };
        if let Some(violation) = violation {
            self.report_violation(format!("{} was called released, and {violation}", hold.key));
        }
    }

    pub(crate) fn told_lost(&mut self, hold: u64, now: Nanos, server: &Server) {
        self.tally.lost += 1;
        let Some(hold) = self.holds.remove(&hold) else { return };
        if hold.forgotten && !hold.lost && !hold.unsure && now < hold.until {
            return self.report_violation(format!(
                "{} was called lost, and its holder could have put it back",
                hold.key
            ));
        }
        let again = self.tokens.get(&hold.token).is_some_and(|token| token.again);
        if self.is_there(&hold, server) && !again {
            return self
                .report_violation(format!("{} was called lost, and is still there", hold.key));
        }
        let gone = self.tokens.get(&hold.token).and_then(|token| token.gone);
        if gone.is_none() && !again {
            return self.report_violation(format!(
                "{} was called lost, and nothing has removed it",
                hold.key
            ));
        }
        if let Some((when, Cause::Command)) = gone
            && when < hold.until
            && now < hold.until
            && hold.releasing.is_some()
            && !hold.lost
            && !hold.forgotten
        {
            self.report_violation(format!(
                "{} was called lost, and its holder had released it",
                hold.key
            ));
        }
    }

    /// The holder got the answer that nothing was changed.
    pub(crate) fn told_unchanged(&mut self, hold: u64, begun: Nanos) {
        let Some(hold) = self.holds.get(&hold) else { return };
        if let Some((when, Cause::Command)) =
            self.tokens.get(&hold.token).and_then(|token| token.gone)
            && when >= begun
        {
            self.report_violation(format!(
                "{} was called unchanged, and it was released meanwhile",
                hold.key
            ));
        }
    }

    /// The holder dropped it without an answer.
    pub(crate) fn forgets(&mut self, hold: u64) {
        self.holds.remove(&hold);
    }
}
