//! When renewal begins, and when it ends because the holder releases.

use super::kept::{Kept, ROUNDING};
use crate::oracle::state::Oracle;
use crate::server::Server;
use crate::time::Nanos;

impl Oracle {
    /// A hold is kept from now on.
    pub(crate) fn begins_to_keep(
        &mut self,
        hold: u64,
        lease: Nanos,
        longest: Option<Nanos>,
        now: Nanos,
    ) {
        self.tally.kept += 1;
        let Some(held) = self.holds.get(&hold) else { return };
        let kept = Kept {
            process: held.process,
            hold,
            lease,
            longest,
            beliefs: vec![(now, held.until)],
            renewed: None,
            warned: None,
            claimed: None,
            told: None,
            known_lost: None,
            releasing: false,
            ended: None,
        };
        self.keeping.all.insert(held.token.clone(), kept);
    }

    /// Its holder begins to let go, or goes on keeping it, as that had failed.
    pub(crate) fn lets_go(&mut self, token: &str, releasing: bool) {
        if let Some(kept) = self.keeping.all.get_mut(token) {
            kept.releasing = releasing;
        }
    }

    /// Its holder has let go.
    pub(crate) fn has_let_go(&mut self, token: &str, now: Nanos) {
        if let Some(kept) = self.keeping.all.get_mut(token) {
            kept.ended.get_or_insert(now);
        }
    }

    /// Its holder was told, when it let go, that it had been lost before.
    pub(crate) fn was_lost_before(&mut self, token: &str, now: Nanos, server: &Server) {
        let Some(kept) = self.keeping.all.get(token) else { return };
        let (hold, over) = (kept.hold, kept.known_lost.is_some() || kept.until() <= now + ROUNDING);
        if over {
            self.tally.lost += 1;
            self.forgets(hold);
        } else {
            self.told_lost(hold, now, server);
        }
    }
}
