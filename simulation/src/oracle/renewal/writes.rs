//! What a renewer writes to the server.

use super::renewed_hold::{ROUNDING, RenewedHold};
use crate::oracle::requester::Requester;
use crate::oracle::semaphores::Line;
use crate::oracle::state::Oracle;
use crate::oracle::token::token_of;
use crate::server::{Cause, Change, Server};
use crate::time::{MILLI, Nanos, SECOND};

/// How much longer than the lease a server may store the item, counted from the write.
const AFTER_THE_LEASE: Nanos = 3 * SECOND + 50 * MILLI;

impl Oracle {
    /// A renewer has written a mutex: this must be a renewal.
    pub(crate) fn renewer_wrote_lock(
        &mut self,
        change: &Change,
        now: Nanos,
        by: Requester,
        server: &Server,
    ) {
        let (before, after) =
            (token_of(change.before.as_deref()), token_of(change.after.as_deref()));
        // A record that counts for nothing is removed: the lock was put back too late, or a late request
        // may have added it.
        let ended = |token: &str| {
            let renewed = self.renewals.all.get(token);
            renewed.is_some_and(|it| it.process == by.process && !it.is_relied_on(now))
        };
        if after.is_none() && before.as_deref().is_some_and(ended) {
            return;
        }
        self.renewer_wrote(before.as_deref(), after.as_deref(), by);
        let lease = after.and_then(|token| self.renewals.lease_of(&token)).unwrap_or(0);
        let latest = now + lease + AFTER_THE_LEASE + lease / 5000;
        if change.expires.is_none_or(|expires| server.world_time_of(expires) > latest) {
            self.report_violation(format!("{} was renewed for longer than its lease", change.key));
        }
    }

    /// A renewer has replaced the token `before` by `after`.
    fn renewer_wrote(&mut self, before: Option<&str>, after: Option<&str>, by: Requester) {
        let is_forgotten = |token: &str| {
            let gone = self.tokens.get(token).and_then(|token| token.gone);
            matches!(gone, Some((_, Cause::Forgotten)))
        };
        let sent = self.renewers.begun(by);
        // A request to put it back may arrive after the release, of which the reply may not have come.
        let is_late = |token: &str| {
            let ended = self.renewals.all.get(token).and_then(|renewed| renewed.ended);
            let mut releases = self.holds.values().filter(|hold| hold.token == token);
            let ends = releases.find_map(|hold| hold.releasing).or(ended);
            self.guard.is_some() && ends.is_some_and(|ends| ends >= sent)
        };
        let puts_back =
            before.is_none() && after.is_some_and(|token| is_forgotten(token) || is_late(token));
        let (Some(token), true) = (after, before == after || puts_back) else {
            return self.report_violation(format!("a renewer replaced {before:?} by {after:?}"));
        };
        let Some(renewed) = self.renewals.all.get_mut(token) else {
            return self.report_violation(format!("{token} was renewed, and is not to be"));
        };
        let violation = if renewed.process != by.process {
            Some("by another process")
        } else if renewed.ended.is_some_and(|ended| ended < sent) {
            Some("after it was released")
        } else if renewed.longest.is_some_and(|longest| longest + ROUNDING < sent)
            && (!puts_back || self.renewers.has(by.task))
        {
            Some("after max_hold")
        } else if !renewed.is_relied_on(sent) {
            Some("after its lease was over")
        } else {
            None
        };
        renewed.last_renewal = renewed.last_renewal.max(Some(sent));
        self.tally.renewals += 1;
        if let Some(violation) = violation {
            self.report_violation(format!("{token} was renewed {violation}"));
        }
    }

    /// A process has written a semaphore. Lines of its renewals whose ends have moved are renewed,
    /// either by its renewer or by another thread on its behalf.
    pub(crate) fn renewed_lines(&mut self, before: &[Line], after: &[Line], by: Requester) {
        let of =
            |lines: &[Line], token: &str| lines.iter().find(|line| line.token == token).cloned();
        for line in after {
            let is_kept = |renewed: &&mut RenewedHold| renewed.process == by.process;
            let Some(renewed) = self.renewals.all.get_mut(&line.token).filter(is_kept) else {
                continue;
            };
            match of(before, &line.token) {
                // It may have been renewed within the same second.
                Some(was) if was == *line => {
                    renewed.last_renewal = renewed.last_renewal.max(Some(by.sent))
                }
                was => {
                    let was = was.map(|line| line.token);
                    self.renewer_wrote(was.as_deref(), Some(&line.token), by);
                }
            }
        }
    }
}
