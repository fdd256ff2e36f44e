//! The beginning of a renewal, and its end by a release.

use super::renewed_hold::{ROUNDING, RenewedHold};
use crate::oracle::state::Oracle;
use crate::site::Site;
use crate::time::Nanos;

impl Oracle {
    /// Renewal of a hold begins.
    pub(crate) fn begins_renewal(
        &mut self,
        hold: u64,
        lease: Nanos,
        longest: Option<Nanos>,
        now: Nanos,
    ) {
        self.tally.renewed_holds += 1;
        let Some(held) = self.holds.get(&hold) else { return };
        let renewed = RenewedHold {
            process: held.process,
            hold,
            lease,
            longest,
            reliance: vec![(now, held.until)],
            last_renewal: None,
            warned: None,
            claimed: None,
            reported: None,
            known_lost: None,
            releasing: false,
            ended: None,
        };
        self.renewals.all.insert(held.token.clone(), renewed);
    }

    /// Its holder begins to release it, or continues the renewal because the release failed.
    pub(crate) fn set_releasing(&mut self, token: &str, releasing: bool) {
        if let Some(renewed) = self.renewals.all.get_mut(token) {
            renewed.releasing = releasing;
        }
    }

    /// Its holder has released it.
    pub(crate) fn has_released(&mut self, token: &str, now: Nanos) {
        if let Some(renewed) = self.renewals.all.get_mut(token) {
            renewed.ended.get_or_insert(now);
        }
    }

    /// The release was answered that it had been lost before.
    pub(crate) fn was_lost_before(&mut self, token: &str, now: Nanos, sites: &[Site]) {
        let Some(renewed) = self.renewals.all.get(token) else { return };
        let (hold, over) =
            (renewed.hold, renewed.known_lost.is_some() || renewed.until() <= now + ROUNDING);
        if over {
            self.tally.lost += 1;
            self.forgets(hold);
        } else {
            self.told_lost(hold, now, sites);
        }
    }
}
