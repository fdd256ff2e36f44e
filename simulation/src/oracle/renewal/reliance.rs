//! Until when a holder may rely on a renewed lock.

use super::renewed_hold::ROUNDING;
use crate::oracle::quorum::end_of_majority;
use crate::oracle::state::Oracle;
use crate::oracle::token::Token;
use crate::site::Site;
use crate::time::{MILLI, Nanos};

impl Oracle {
    /// The renewal would say now that the lock is held until `until`; if that has passed, that it
    /// is not held.
    pub(crate) fn relies(&mut self, token: &str, until: Nanos, now: Nanos, sites: &[Site]) {
        let Some(renewed) = self.renewals.all.get_mut(token) else { return };
        let until = if until > now { until } else { 0 };
        let last = renewed.reliance.last().map_or(0, |&(_, last)| last);
        let claimed = renewed
            .claimed
            .take()
            .filter(|claimed| claimed.abs_diff(until) > MILLI + renewed.lease / 1000);
        let mut violation = claimed.map(|_| "for another time than its AtRisk notice stated");
        let mut ends = None;
        if let Some(hold) = self.holds.get_mut(&renewed.hold) {
            hold.until = until;
            ends = match hold.permits {
                _ if hold.lost => None,
                None if self.quorum.is_some() => {
                    end_of_majority(&hold.key, token, self.guard.unwrap_or(0), sites)
                }
                None => sites[0].server.ends(&hold.key),
                Some(_) => self
                    .semaphores
                    .line(&hold.key, token)
                    .map(|line| sites[0].server.world_time_of(line.until)),
            };
        }
        // A holder that releases does not rely on it, and the end of its lease is no loss.
        if last.abs_diff(until) < ROUNDING || until == 0 && (last <= now || renewed.releasing) {
            return violation
                .into_iter()
                .for_each(|what| self.report_violation(format!("{token} is held {what}")));
        }
        let longer = until > renewed.until() + ROUNDING;
        if longer {
            let slack = renewed.lease / 5000;
            if renewed.last_renewal.is_none_or(|sent| sent + renewed.lease + slack < until) {
                violation = Some("for longer than a renewal on the server explains");
            } else if ends.is_some_and(|ends| ends + slack < until) {
                violation = Some("for longer than the server stores it");
            }
            // While no more than half of the lease is left, it is at risk.
            let is_safe = until > now + renewed.lease / 2 + MILLI;
            renewed.warned = renewed.warned.filter(|&(when, _)| when == now || !is_safe);
        }
        if until > 0 && renewed.known_lost.is_some() {
            violation = Some("again, after its holder knew that it was lost");
        }
        if until > 0 && renewed.ended.is_some() {
            violation = Some("again, after it was released");
        }
        renewed.reliance.push((now, until));
        if let Some(violation) = violation {
            self.report_violation(format!("{token} is held {violation}"));
        }
    }

    /// A check answered that the server has it.
    pub(crate) fn was_there(&mut self, token: &str, begun: Nanos) {
        // What was taken away from the majority of a quorum may have been stored again.
        let again = |token: &Token| token.again || self.quorum.is_some();
        let gone =
            self.tokens.get(token).filter(|token| !again(token)).and_then(|token| token.gone);
        if let Some((when, cause)) = gone.filter(|&(when, _)| when < begun) {
            self.report_violation(format!(
                "a check answered that {token} is there, and it was gone at {:.6} ({cause:?})",
                when as f64 / 1e9
            ));
        }
    }
}
