//! How far a server's clock is from another one.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Finding;
use super::Verdict::{Good, Note};
use crate::clock::brief;
use crate::error::Result;

/// By how many seconds clocks may differ that tell fractions of a second.
#[cfg(any(feature = "mysql", feature = "postgresql", feature = "redis"))]
pub(in crate::store) const FINE: f64 = 1.0;

/// What a wrong clock means on a store with replicas.
#[cfg(any(feature = "mysql", feature = "postgresql", feature = "redis"))]
pub(in crate::store) const WITH_REPLICAS: &str =
    "leases do not mind; but fences can fall after a failover between servers whose clocks differ";

/// The difference between two clocks.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct Skew {
    /// By how many seconds the first one is ahead; negative if it is behind.
    pub(in crate::store) ahead: f64,
    /// A smaller difference counts as none.
    pub(in crate::store) tolerance: f64,
}

impl Skew {
    /// `shown`: by a clock, between the two readings of `other`. `limit`: by how many seconds they may
    /// differ, if the readings take no time.
    pub(in crate::store) fn new(shown: Duration, other: [Duration; 2], limit: f64) -> Skew {
        let [before, after] = other.map(|reading| reading.as_secs_f64());
        Skew {
            ahead: shown.as_secs_f64() - (before + after) / 2.0,
            tolerance: limit + (after - before).max(0.0),
        }
    }

    /// Whether the clocks agree.
    pub(in crate::store) fn is_none(self) -> bool {
        self.ahead.abs() < self.tolerance
    }

    /// Such as `29 s behind`, before the name of the other clock.
    pub(in crate::store) fn in_words(self) -> String {
        let rounded = (self.ahead.abs() * 10.0).round() / 10.0;
        let by = Duration::try_from_secs_f64(rounded).unwrap_or(Duration::MAX);
        let way = if self.ahead > 0.0 { "ahead of" } else { "behind" };
        format!("{} {way}", brief(by))
    }

    /// The finding about a server's clock, compared with this host's. `meaning`: what it means if it
    /// is wrong.
    pub(in crate::store) fn finding(self, meaning: &str) -> Finding {
        if self.is_none() {
            return Finding::new("clock", Good, "agrees with ours");
        }
        Finding::new("clock", Note, format!("is {} ours: {meaning}", self.in_words()))
    }
}

/// Asks a server, and reads this host's clock before and after.
pub(in crate::store) fn timed<T>(ask: impl FnOnce() -> Result<T>) -> Result<(T, [Duration; 2])> {
    let before = unix_now();
    let answer = ask()?;
    Ok((answer, [before, unix_now()]))
}

fn unix_now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_beyond_the_limit_and_the_round_trip_is_reported_with_its_direction() {
        let said = |shown: u64, [before, after]: [u64; 2]| {
            let at = Duration::from_millis;
            Skew::new(at(shown), [at(before), at(after)], 1.0).finding("beware")
        };
        for (shown, verdict, says) in [
            (100_900, Good, "agrees with ours"),
            (99_100, Good, "agrees with ours"),
            (128_990, Note, "is 29 s ahead of ours: beware"),
            (71_000, Note, "is 29 s behind ours: beware"),
            (u64::MAX, Note, "ahead of ours"),
            (0, Note, "behind ours"),
        ] {
            let finding = said(shown, [100_000, 100_000]);
            assert!(
                finding.verdict == verdict && finding.said.contains(says),
                "{shown}: {finding:?}"
            );
        }
        // The readings took two seconds.
        assert_eq!(said(103_900, [100_000, 102_000]).verdict, Good);
        assert_eq!(said(104_100, [100_000, 102_000]).verdict, Note);
        // Another clock that is set back meanwhile, or is nonsense.
        assert_eq!(said(100_000, [100_000, 0]).verdict, Note);
        let whole = Duration::MAX;
        assert_eq!(Skew::new(whole, [whole, whole], 1.0).finding("").verdict, Good);
    }
}
