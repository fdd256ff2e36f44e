//! A renewed hold, and until when its holder relied on it.

use std::collections::BTreeMap;

use memlock_core::Loss;

use crate::time::{MICRO, Nanos, SECOND};

/// A shorter lease may end before a renewer that waits for several slow answers can report that it
/// is at risk.
const TIME_TO_WARN: Nanos = 12 * SECOND;

/// The rounding error of converting between two clocks.
pub(super) const ROUNDING: Nanos = 10 * MICRO;

/// All renewals of the run, by token.
#[derive(Debug, Default)]
pub(crate) struct Renewals {
    pub(super) all: BTreeMap<String, RenewedHold>,
}

#[derive(Debug)]
pub(super) struct RenewedHold {
    pub(super) process: usize,
    pub(super) hold: u64,
    pub(super) lease: Nanos,
    /// The end of `max_hold`: from then on it is not renewed.
    pub(super) longest: Option<Nanos>,
    /// Until when the holder relied on it, with the time since when it did.
    pub(super) reliance: Vec<(Nanos, Nanos)>,
    /// When the last renewal that the server executed was sent.
    pub(super) last_renewal: Option<Nanos>,
    /// When the last `AtRisk` notice came, and the end that it stated.
    pub(super) warned: Option<(Nanos, Nanos)>,
    /// The end that an `AtRisk` notice stated: to be compared with what the renewal says at the end
    /// of the step.
    pub(super) claimed: Option<Nanos>,
    pub(super) reported: Option<Loss>,
    /// Since when its holder knows that it is lost.
    pub(super) known_lost: Option<Nanos>,
    pub(super) releasing: bool,
    pub(super) ended: Option<Nanos>,
}

impl RenewedHold {
    /// Until when its holder relies on it, or relied on it last.
    pub(super) fn until(&self) -> Nanos {
        self.reliance.iter().rev().map(|&(_, until)| until).find(|&until| until > 0).unwrap_or(0)
    }

    pub(super) fn began(&self) -> Nanos {
        self.reliance.first().map_or(0, |&(began, _)| began)
    }

    /// Whether a renewer that waits for the server can report the risk before the end.
    pub(super) fn has_time_to_warn(&self) -> bool {
        self.lease >= TIME_TO_WARN && self.began() + self.lease < self.until() + SECOND
    }

    /// Whether its holder relied on it at that time, or immediately before an event at that time.
    pub(super) fn is_relied_on(&self, at: Nanos) -> bool {
        let before = self.reliance.iter().rev().find(|&&(since, _)| since < at);
        let then = self.reliance.iter().filter(|&&(since, _)| since == at);
        before.into_iter().chain(then).any(|&(_, until)| until + ROUNDING > at)
    }
}

impl Renewals {
    /// The lease of a renewal.
    pub(crate) fn lease_of(&self, token: &str) -> Option<Nanos> {
        self.all.get(token).map(|renewed| renewed.lease)
    }
}
