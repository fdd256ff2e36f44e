//! How long a quorum's mutex may stay free while a call waits for it, and how long a call that does
//! not wait may take.

use crate::oracle::call::{Call, Refusal};
use crate::oracle::limits::Lateness;
use crate::oracle::state::Oracle;
use crate::time::{Nanos, SECOND};

/// How long after the end of a lease a server still has the vote.
pub(in crate::oracle) const VOTE_OUTLIVES: Nanos = 4 * SECOND;

/// How long a mutex may be free in a run without faults.
const PATIENCE: Nanos = 3 * SECOND;

/// The same where wake-ups do not reach all waiters: those further back look after five seconds at the
/// latest.
const PATIENCE_UNWOKEN: Nanos = 6 * SECOND;

/// How much longer it may be free where any reply may be lost: each round of an acquisition needs
/// most servers, and votes that had no reply are removed one after the other.
const PATIENCE_UNANSWERED: Nanos = 240 * SECOND;

/// How long a call takes that does not wait: without faults, with faults of some servers, and where
/// any reply may be lost.
const TRY_WITHOUT_FAULTS: Nanos = SECOND;
const TRY: Nanos = 12 * SECOND;
const TRY_UNANSWERED: Nanos = 31 * SECOND;

impl Oracle {
    /// Notes which mutexes are held. Called now and then.
    pub(crate) fn note_progress(&mut self, now: Nanos) {
        let Some(quorum) = &mut self.quorum else { return };
        // Also what its holder gave up: the votes stay until they end. A hold that is known to be
        // lost has no end any more.
        for hold in self.holds.values().filter(|hold| hold.until > 0) {
            // A renewed hold may end before its votes do, by `max_hold`.
            let lease = self.renewals.lease_of(&hold.token).unwrap_or(0);
            let ends = hold.until + lease + VOTE_OUTLIVES;
            let progress = quorum.progress.entry(hold.key.clone()).or_default();
            *progress = if hold.using { ends.max(*progress) } else { now.max(*progress) };
        }
    }

    /// A mutex was granted, so that it may have votes until then, or released.
    pub(in crate::oracle) fn progressed(&mut self, key: &str, until: Nanos) {
        if let Some(quorum) = &mut self.quorum {
            quorum.progress.insert(key.to_owned(), until);
        }
    }

    /// A mutex has votes until then, or longer, as was known before.
    pub(in crate::oracle) fn progressed_at_least(&mut self, key: &str, until: Nanos) {
        if let Some(quorum) = &mut self.quorum {
            let progress = quorum.progress.entry(key.to_owned()).or_default();
            *progress = until.max(*progress);
        }
    }

    /// Most servers have been well since `last_fault`, and this call waits.
    pub(in crate::oracle) fn check_quorum_waiter(
        &mut self,
        task: usize,
        now: Nanos,
        last_fault: Nanos,
    ) {
        let (Some(quorum), Some(call)) = (&self.quorum, self.calls.get(&task)) else { return };
        let progress = quorum.progress.get(&call.key).copied().unwrap_or(0);
        // A holder may have been killed, and its votes, which are of different ages, end with their
        // leases.
        let patience = match self.lateness {
            _ if self.fault_free && self.all_reachable => PATIENCE,
            _ if self.fault_free => PATIENCE_UNWOKEN,
            Lateness::AtMost(_) => self.patience + 3 * quorum.guard,
            Lateness::OfAnswers => self.patience + 3 * quorum.guard + PATIENCE_UNANSWERED,
        };
        let passed = now.saturating_sub(progress.max(call.begun).max(last_fault));
        if passed > patience {
            let key = &call.key;
            let passed = passed as f64 / 1e9;
            self.report_violation(format!(
                "{key} has not been granted for {passed:.3} s, and task {task} waits for it"
            ));
        }
    }

    /// A call that does not wait takes a few exchanges only.
    pub(in crate::oracle) fn check_try(
        &self,
        call: &Call,
        why: Refusal,
        now: Nanos,
        held_up: Nanos,
    ) -> Option<String> {
        if self.quorum.is_none() || call.limit != Some(0) {
            return None;
        }
        let most = match self.lateness {
            _ if self.fault_free => TRY_WITHOUT_FAULTS,
            Lateness::AtMost(_) => TRY,
            Lateness::OfAnswers => TRY_UNANSWERED,
        };
        let passed = now.saturating_sub(call.begun.max(held_up));
        (passed > most).then(|| {
            let (key, passed) = (&call.key, passed as f64 / 1e9);
            format!("a try for {key} took {passed:.3} s, and was answered {why:?}")
        })
    }
}
