//! The answers that holders of a quorum's mutexes get.

use super::support::{has_majority, votes};
use crate::oracle::hold::HoldInterval;
use crate::oracle::state::Oracle;
use crate::site::Site;
use crate::time::Nanos;

impl Oracle {
    /// A holder was told that it has released the mutex: it had it until then.
    pub(in crate::oracle) fn quorum_told_released(&mut self, hold: &HoldInterval, sites: &[Site]) {
        let Some(quorum) = &self.quorum else { return };
        // Of what was taken away, a release without a reply may have been the first.
        if hold.lost {
            return;
        }
        let begun = hold.releasing.unwrap_or(0);
        let added = quorum.added.get(&hold.token).copied().unwrap_or(0);
        let other = quorum.granted_to_other(&hold.key, &hold.token, hold.since, begun);
        let violation = if let Some(other) = other {
            Some(format!("{other} had been granted it before"))
        } else if has_majority(&hold.key, &hold.token, sites) && added < begun {
            Some("a majority still has it".to_owned())
        } else {
            None
        };
        if let Some(violation) = violation {
            let HoldInterval { key, token, .. } = hold;
            self.report_violation(format!("{key} of {token} was called released, and {violation}"));
        }
    }

    /// A holder was told that it has held the mutex without a break.
    pub(in crate::oracle) fn quorum_told_unbroken(&mut self, hold: u64) {
        let (Some(quorum), Some(hold)) = (&self.quorum, self.holds.get(&hold)) else { return };
        // What was taken away while its extension was under way was extended before that.
        let until = if hold.lost { hold.extends_since } else { Nanos::MAX };
        let other = quorum.granted_to_other(&hold.key, &hold.token, hold.since, until);
        if let Some(other) = other {
            let HoldInterval { key, token, .. } = hold;
            let what = format!("{key} was extended for {token}, and {other} was granted it before");
            self.report_violation(what);
        }
    }

    /// A holder was told that the mutex is lost.
    pub(in crate::oracle) fn quorum_told_lost(
        &mut self,
        hold: &HoldInterval,
        now: Nanos,
        sites: &[Site],
    ) {
        let HoldInterval { key, token, until, .. } = hold;
        if hold.lost {
            return;
        }
        if now < *until && has_majority(key, token, sites) && !hold.unsure {
            let count = votes(key, token, sites);
            let left = (until - now) as f64 / 1e9;
            self.report_violation(format!(
                "{key} of {token} was called lost {left:.3} s before its end, and {count} servers \
                 have it"
            ));
        }
    }
}
