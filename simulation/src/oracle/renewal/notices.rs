//! The notifications of the holder of a renewed lock: that it is at risk, and that it is lost.

use memlock_core::{Loss, Notice};

use super::renewed_hold::{ROUNDING, RenewedHold};
use crate::oracle::limits::Lateness;
use crate::oracle::state::Oracle;
use crate::site::Site;
use crate::time::{MILLI, Nanos, SECOND};

/// Without faults for this long before its end, a lease must have been renewed: a renewer tries
/// again after a second and needs a few requests.
const TIME_ENOUGH: Nanos = 2500 * MILLI;

/// A renewal that begins with less than this left of the lease may be too late.
const TO_BEGIN: Nanos = 100 * MILLI;

/// A loss must be reported within this time, however long the renewer waits for the server; in a
/// fault-free run, within `TOLD_AT_ONCE`.
const TOLD_WITHIN: Nanos = 20 * SECOND;

const TOLD_AT_ONCE: Nanos = 30 * MILLI;

impl Oracle {
    /// A notice to the holder. `until`: the end of the lease that an `AtRisk` notice states.
    pub(crate) fn notified(
        &mut self,
        token: &str,
        notice: Notice,
        until: Nanos,
        now: Nanos,
        stopped: Nanos,
        sites: &[Site],
    ) {
        let Some(renewed) = self.renewals.all.get_mut(token) else { return };
        let mut violation = None;
        if renewed.releasing || renewed.ended.is_some() {
            violation = Some("though it was released");
        } else if renewed.reported.is_some() {
            violation = Some("after the loss was reported");
        }
        match notice {
            Notice::AtRisk(_) => {
                let at_its_longest = renewed.longest.is_some_and(|longest| longest <= now);
                // A later end means that the lease was renewed after the last notice. At the end of
                // this step, the stated end is compared with what the renewal says.
                if renewed.warned.is_some_and(|(_, end)| until <= end + MILLI) {
                    violation = violation.or(Some("twice"));
                } else if !at_its_longest
                    && (self.fault_free || until.saturating_sub(now) > renewed.lease / 2 + MILLI)
                {
                    violation = violation.or(Some("though it is not at risk"));
                }
                (renewed.warned, renewed.claimed) = (Some((now, until)), Some(until));
            }
            Notice::Lost(loss) => {
                let late = now.saturating_sub(renewed.until());
                // A process that was stopped notices both at the same time.
                let was_stopped = stopped + renewed.lease / 2 + MILLI > renewed.until();
                // One renewal may wait for each server of a quorum, in each of its rounds.
                let is_slow = self.quorum.is_some() && self.lateness == Lateness::OfAnswers;
                let has_time = self.fault_free || renewed.has_time_to_warn() && !is_slow;
                if loss != Loss::Gone && renewed.warned.is_none() && has_time && !was_stopped {
                    violation = violation.or(Some("and not that it was at risk before"));
                } else if loss != Loss::Gone && self.fault_free && late > TOLD_AT_ONCE {
                    violation = violation.or(Some("too late"));
                }
                renewed.reported = Some(loss);
            }
        }
        if let Some(violation) = violation {
            self.report_violation(format!(
                "the holder of {token} was told {notice:?}, {violation}"
            ));
        }
        if let Notice::Lost(loss) = notice {
            self.learns(token, loss, now, sites);
        }
    }

    /// The holder learns that it is lost, from a notice or by asking.
    pub(crate) fn learns(&mut self, token: &str, loss: Loss, now: Nanos, sites: &[Site]) {
        let Some(renewed) = self.renewals.all.get(token) else { return };
        let is_over = renewed.until() <= now + ROUNDING;
        let held_longest = renewed.longest.is_some_and(|longest| longest <= now + ROUNDING);
        let violation = match loss {
            Loss::Gone => {
                let hold = self.holds.get(&renewed.hold);
                let there = hold.is_some_and(|hold| self.is_there(hold, sites));
                // Its votes may be there again for a moment, to be removed.
                let was_taken = hold.is_some_and(|hold| hold.lost);
                let written = self.tokens.get(token);
                let again = written.is_some_and(|written| written.again);
                let gone = written.is_some_and(|written| written.gone.is_some());
                let is_wrong = match self.quorum {
                    Some(_) => there && !is_over && !was_taken,
                    None => (there || !gone) && !again,
                };
                is_wrong.then_some("and nothing has removed it")
            }
            _ if !is_over => Some("and its lease is not over"),
            Loss::MaxHold => (!held_longest).then_some("and max_hold has not passed"),
            Loss::Expired => {
                self.should_be_renewed(renewed, now).then_some("and there was no fault")
            }
        };
        if let Some(renewed) = self.renewals.all.get_mut(token) {
            renewed.known_lost.get_or_insert(now);
        }
        if let Some(violation) = violation {
            self.report_violation(format!("{token} was called lost ({loss:?}), {violation}"));
        }
    }

    /// Whether there were no faults for so long that the lease should have been renewed.
    fn should_be_renewed(&self, renewed: &RenewedHold, now: Nanos) -> bool {
        let since = renewed.until().saturating_sub(TIME_ENOUGH.min(renewed.lease));
        renewed.began() + TO_BEGIN < renewed.until()
            && self.renewers.all_was_well(renewed.process, since, now)
    }

    /// Called periodically: losses are reported in time. `stopped`: until when a process was
    /// stopped.
    pub(crate) fn check_losses_are_told(&mut self, now: Nanos, stopped: impl Fn(usize) -> Nanos) {
        let silent = self.renewals.all.iter().find(|(_, renewed)| {
            let runs_since = renewed.until().max(stopped(renewed.process));
            let is_held = self.holds.contains_key(&renewed.hold);
            is_held
                && !renewed.releasing
                && renewed.reported.is_none()
                && runs_since + TOLD_WITHIN < now
        });
        if let Some(token) = silent.map(|(token, _)| token.clone()) {
            self.report_violation(format!("the loss of {token} is not reported"));
        }
    }
}
