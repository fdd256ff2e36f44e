//! Waits: the answers of refused callers, and how long others wait.

use super::call::Refusal;
use super::limits::{AFTER_EXPIRY, Lateness, PATIENCE_WITHOUT_WAKE};
use super::state::Oracle;
use super::token::token_of;
use crate::server::Server;
use crate::time::{MILLI, Nanos, SECOND};

/// The longest total of the pauses between compare-and-sets of one step: see `cas_backoff`.
const PAUSES: Nanos = 500 * MILLI;

/// The maximum number of lost answers, of a second each, at the end of a wait. Its last attempt
/// reads (2 lost), sets the semaphore up (6), writes (1), distrusts a slow grant and reads (3), and
/// releases it (9). Leaving the queue and waking the next waiter takes 1 + 3 + 3, and reaping what
/// an earlier call left 3.
const UNANSWERED: Nanos = 31 * SECOND;

impl Oracle {
    pub(crate) fn refused(
        &mut self,
        task: usize,
        why: Refusal,
        now: Nanos,
        held_up: Nanos,
        server: &Server,
    ) {
        let Some(call) = self.calls.remove(&task) else { return };
        if matches!(why, Refusal::Unreachable | Refusal::Unknown) {
            self.tally.errors += 1;
        } else {
            self.tally.refusals += 1;
        }
        let key = &call.key;
        let mine = |token: &str| {
            self.tokens.get(token).is_some_and(|it| it.task == Some(task) && it.sent >= call.begun)
        };
        let violation = match why {
            Refusal::Busy => {
                let others = self.was_held_by_another(key, call.begun, &mine);
                (!others).then(|| format!("{key} was called busy, and no other holder has had it since the call began"))
            }
            Refusal::TimedOut => self.check_end_of_wait(call.process, key, (call.begun, call.limit), now, held_up),
            Refusal::Interrupted if !call.cancelled => Some(format!("the wait for {key} was cancelled without a request")),
            Refusal::Unreachable => token_of(server.value(key))
                .filter(|token| mine(token))
                .map(|token| format!("the server of {key} was called unreachable, yet it has {token} of that call")),
            Refusal::Recovering => self.check_recovering(key, call.begun),
            Refusal::Unknown if self.fault_free => Some(format!("there was no fault, yet the outcome for {key} is unknown")),
            Refusal::Invalid | Refusal::NotFound | Refusal::Other => Some(format!("the call for {key} failed without a possible cause")),
            _ => None,
        };
        if let Some(violation) = violation {
            self.report_violation(violation);
        }
    }

    /// Callers are told that a server recovers only while it may.
    pub(crate) fn check_recovering(&self, key: &str, begun: Nanos) -> Option<String> {
        let may = self.guard.is_some() && begun < self.recovers_until;
        (!may).then(|| format!("the server of {key} was said to recover, and it does not"))
    }

    /// Whether another holder, or a reservation, had it at some time since then.
    fn was_held_by_another(&self, key: &str, since: Nanos, mine: &dyn Fn(&str) -> bool) -> bool {
        let Some(lock) = self.locks.get(key) else { return false };
        let mut last_before = None;
        for (time, owner) in &lock.past {
            if *time <= since {
                last_before = owner.as_deref();
            } else if owner.as_deref().is_some_and(|token| !mine(token)) {
                return true;
            }
        }
        last_before.is_some_and(|token| !mine(token))
    }

    pub(crate) fn waiting(&self) -> impl Iterator<Item = usize> {
        self.calls.iter().filter(|(_, call)| call.limit != Some(0)).map(|(&task, _)| task)
    }

    pub(crate) fn check_waiter(
        &mut self,
        task: usize,
        now: Nanos,
        last_fault: Nanos,
        server: &Server,
    ) {
        if let Some(call) = self.calls.remove(&task) {
            let violation = self.passed_over(&call, now);
            self.calls.insert(task, call);
            if let Some(violation) = violation {
                return self.report_violation(violation);
            }
        }
        let Some(call) = self.calls.get(&task) else { return };
        if server.value(&call.key).is_some() {
            return;
        }
        let (mut freed, mut patience) = (0, self.patience);
        if let Some(lock) = self.locks.get(&call.key) {
            freed = lock.past.last().map_or(0, |&(time, _)| time);
            if lock.last_expiry.is_some_and(|when| now < when + AFTER_EXPIRY) {
                patience = patience.max(PATIENCE_WITHOUT_WAKE);
            }
        }
        let since = freed.max(call.begun).max(last_fault);
        if now.saturating_sub(since) > patience {
            let what = format!(
                "{} has been free for {:.3} s, and task {task} waits for it",
                call.key,
                now.saturating_sub(since) as f64 / 1e9
            );
            self.report_violation(what);
        }
    }

    /// A wait ends at its limit, or once its process, its network and the server work again
    /// (`held_up`), and not much later.
    pub(crate) fn check_end_of_wait(
        &self,
        process: usize,
        key: &str,
        (begun, limit): (Nanos, Option<Nanos>),
        now: Nanos,
        held_up: Nanos,
    ) -> Option<String> {
        let passed = (now - begun) as f64;
        let limit = limit.unwrap_or(Nanos::MAX) as f64;
        let end = (limit * 1.0005).max(held_up.saturating_sub(begun) as f64);
        let late = match self.lateness {
            Lateness::OfAnswers => {
                let asked = self.asked_since(process, begun.saturating_add(end as Nanos));
                (asked + PAUSES).min(UNANSWERED)
            }
            Lateness::AtMost(late) => late,
        };
        if passed < limit * 0.9995 - 1e4 {
            Some(format!(
                "the wait for {key} timed out after {:.3} s of {:.3} s",
                passed / 1e9,
                limit / 1e9
            ))
        } else if passed > end + late as f64 {
            Some(format!("the wait for {key} ended {:.3} s too late", (passed - limit) / 1e9))
        } else {
            None
        }
    }

    /// Records an exchange of a thread of that process.
    pub(crate) fn has_asked(&mut self, process: usize, since: Nanos, now: Nanos) {
        if self.lateness == Lateness::OfAnswers {
            self.asked.entry(process).or_default().push((since, now));
        }
    }

    /// For how long since then threads of the process have waited for answers. A thread that is
    /// handed a lock waits for the answers of the thread that hands it over.
    fn asked_since(&self, process: usize, since: Nanos) -> Nanos {
        let mut asked = self.asked.get(&process).cloned().unwrap_or_default();
        asked.sort_unstable();
        let (mut waited, mut until) = (0, since);
        for (begun, ended) in asked {
            waited += ended.saturating_sub(begun.max(until));
            until = until.max(ended);
        }
        waited
    }
}
