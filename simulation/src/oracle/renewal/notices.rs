//! What the holder of something renewed is told: that it is at risk, and that it is lost.

use memlock_core::{Loss, Notice};

use super::renewed_hold::{ROUNDING, RenewedHold};
use crate::oracle::state::Oracle;
use crate::server::Server;
use crate::time::{MILLI, Nanos, SECOND};

/// If all goes well for so long, what is kept is renewed: a renewer tries again after a second, and
/// in a few packets.
const TIME_ENOUGH: Nanos = 2500 * MILLI;

/// What is kept when less than that is left of its lease may be too late.
const TO_BEGIN: Nanos = 100 * MILLI;

/// Until then its holder is told of a loss, however long the renewer waits for the server; and where
/// nothing goes wrong.
const TOLD_WITHIN: Nanos = 20 * SECOND;

const TOLD_AT_ONCE: Nanos = 30 * MILLI;

impl Oracle {
    /// The renewer tells something. `until`: when it ends, if it is that which is told.
    pub(crate) fn told(
        &mut self,
        token: &str,
        notice: Notice,
        until: Nanos,
        now: Nanos,
        stopped: Nanos,
        server: &Server,
    ) {
        let Some(renewed) = self.renewals.all.get_mut(token) else { return };
        let mut violation = None;
        if renewed.releasing || renewed.ended.is_some() {
            violation = Some("though it was let go of");
        } else if renewed.told.is_some() {
            violation = Some("after it was told of the loss");
        }
        match notice {
            Notice::AtRisk(_) => {
                let at_its_longest = renewed.longest.is_some_and(|longest| longest <= now);
                // A later end means that it was renewed since the last warning. What the holder
                // believes at the end of this step is compared with that end.
                if renewed.warned.is_some_and(|(_, end)| until <= end + MILLI) {
                    violation = violation.or(Some("once more"));
                } else if !at_its_longest
                    && (self.fault_free || until.saturating_sub(now) > renewed.lease / 2 + MILLI)
                {
                    violation = violation.or(Some("though there is no danger"));
                }
                (renewed.warned, renewed.claimed) = (Some((now, until)), Some(until));
            }
            Notice::Lost(loss) => {
                let late = now.saturating_sub(renewed.until());
                // A process that was stopped finds both at once.
                let was_stopped = stopped + renewed.lease / 2 + MILLI > renewed.until();
                let has_time = self.fault_free || renewed.has_time_to_warn();
                if loss != Loss::Gone && renewed.warned.is_none() && has_time && !was_stopped {
                    violation = violation.or(Some("and not of the danger before"));
                } else if loss != Loss::Gone && self.fault_free && late > TOLD_AT_ONCE {
                    violation = violation.or(Some("too late"));
                }
                renewed.told = Some(loss);
            }
        }
        if let Some(violation) = violation {
            self.report_violation(format!(
                "the holder of {token} was told {notice:?}, {violation}"
            ));
        }
        if let Notice::Lost(loss) = notice {
            self.learns(token, loss, now, server);
        }
    }

    /// Its holder learns that it is lost, from the renewer or because it has asked.
    pub(crate) fn learns(&mut self, token: &str, loss: Loss, now: Nanos, server: &Server) {
        let Some(renewed) = self.renewals.all.get(token) else { return };
        let is_over = renewed.until() <= now + ROUNDING;
        let held_longest = renewed.longest.is_some_and(|longest| longest <= now + ROUNDING);
        let violation = match loss {
            Loss::Gone => {
                let there =
                    self.holds.get(&renewed.hold).is_some_and(|hold| self.is_there(hold, server));
                let written = self.tokens.get(token);
                let again = written.is_some_and(|written| written.again);
                let gone = written.is_some_and(|written| written.gone.is_some());
                ((there || !gone) && !again).then_some("and nothing has taken it away")
            }
            _ if !is_over => Some("and its lease is not over"),
            Loss::MaxHold => (!held_longest).then_some("and it might have been held for longer"),
            Loss::Expired => self.should_be_renewed(renewed, now).then_some("and all went well"),
        };
        if let Some(renewed) = self.renewals.all.get_mut(token) {
            renewed.known_lost.get_or_insert(now);
        }
        if let Some(violation) = violation {
            self.report_violation(format!("{token} was called lost ({loss:?}), {violation}"));
        }
    }

    /// Whether all went well for long enough that what ended then should have been renewed.
    fn should_be_renewed(&self, renewed: &RenewedHold, now: Nanos) -> bool {
        let since = renewed.until().saturating_sub(TIME_ENOUGH.min(renewed.lease));
        renewed.began() + TO_BEGIN < renewed.until()
            && self.renewers.all_was_well(renewed.process, since, now)
    }

    /// To be called now and then: those who lost something are told of it. `stopped`: until when
    /// each process was.
    pub(crate) fn check_losses_are_told(&mut self, now: Nanos, stopped: impl Fn(usize) -> Nanos) {
        let silent = self.renewals.all.iter().find(|(_, renewed)| {
            let runs_since = renewed.until().max(stopped(renewed.process));
            let is_held = self.holds.contains_key(&renewed.hold);
            is_held
                && !renewed.releasing
                && renewed.told.is_none()
                && runs_since + TOLD_WITHIN < now
        });
        if let Some(token) = silent.map(|(token, _)| token.clone()) {
            self.report_violation(format!("the holder of {token} is not told that it is lost"));
        }
    }
}
