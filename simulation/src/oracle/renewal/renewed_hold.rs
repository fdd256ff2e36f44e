//! What is renewed, and what its holder believes.

use std::collections::BTreeMap;

use memlock_core::Loss;

use crate::time::{MICRO, Nanos, SECOND};

/// A lease that is shorter may end before a renewer that waits for one slow answer after another
/// gets to tell of the danger.
const TIME_TO_WARN: Nanos = 12 * SECOND;

/// What is lost by reckoning between two clocks.
pub(super) const ROUNDING: Nanos = 10 * MICRO;

/// All that was ever kept, by its token.
#[derive(Debug, Default)]
pub(crate) struct Renewals {
    pub(super) all: BTreeMap<String, RenewedHold>,
}

#[derive(Debug)]
pub(super) struct RenewedHold {
    pub(super) process: usize,
    pub(super) hold: u64,
    pub(super) lease: Nanos,
    /// From then on it is not renewed.
    pub(super) longest: Option<Nanos>,
    /// Since when its holder believed in it, and until when.
    pub(super) beliefs: Vec<(Nanos, Nanos)>,
    /// When the last renewal left that was carried out.
    pub(super) last_renewal: Option<Nanos>,
    /// When its holder was last told of the danger, and what was said to be its end.
    pub(super) warned: Option<(Nanos, Nanos)>,
    /// Until when it was said to be held, as its holder was warned: to be compared with what it
    /// believes by then.
    pub(super) claimed: Option<Nanos>,
    pub(super) told: Option<Loss>,
    /// Since when its holder knows that it is lost; and that it has let go, or is about to.
    pub(super) known_lost: Option<Nanos>,
    pub(super) releasing: bool,
    pub(super) ended: Option<Nanos>,
}

impl RenewedHold {
    /// Until when its holder believes in it, or did so last.
    pub(super) fn until(&self) -> Nanos {
        self.beliefs.iter().rev().map(|&(_, until)| until).find(|&until| until > 0).unwrap_or(0)
    }

    pub(super) fn began(&self) -> Nanos {
        self.beliefs.first().map_or(0, |&(began, _)| began)
    }

    /// Whether a renewer that waits for the server gets to tell of the danger before the end.
    pub(super) fn has_time_to_warn(&self) -> bool {
        self.lease >= TIME_TO_WARN && self.began() + self.lease < self.until() + SECOND
    }

    /// Whether its holder believed in it at that time, or just before something happened then.
    pub(super) fn is_believed(&self, at: Nanos) -> bool {
        let before = self.beliefs.iter().rev().find(|&&(since, _)| since < at);
        let then = self.beliefs.iter().filter(|&&(since, _)| since == at);
        before.into_iter().chain(then).any(|&(_, until)| until + ROUNDING > at)
    }
}

impl Renewals {
    /// For which lease something is renewed.
    pub(crate) fn lease_of(&self, token: &str) -> Option<Nanos> {
        self.all.get(token).map(|renewed| renewed.lease)
    }
}
