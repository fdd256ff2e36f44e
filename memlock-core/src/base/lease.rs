//! How long a lock or a session is held by its holder's clock. The TTL that a store requests from
//! its server, so that an item lives long enough, follows from its
//! [`Guarantees`](crate::store::Guarantees).

use std::time::Duration;

use crate::clock::Moment;
use crate::error::{Error, Result};

/// The shortest lease that may be requested.
pub const MIN_LEASE: Duration = Duration::from_secs(1);

/// The longest lease that may be requested: 366 days. memcached keeps expiry times as 32-bit Unix
/// seconds, and a lock that is held for longer is more likely a mistake in units.
pub const MAX_LEASE: Duration = Duration::from_secs(366 * 24 * 3600);

/// How late the timer behind the server's clock may fire.
pub(crate) const TICK_LATENESS: Duration = Duration::from_millis(10);

/// Two clocks may drift apart by one second in this many.
pub(crate) const DRIFT: u64 = 5000;

/// A duration that was checked to be a valid lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lease(Duration);

impl Lease {
    /// Checks a duration.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) below one second or above 366 days.
    pub fn new(duration: Duration) -> Result<Lease> {
        if duration < MIN_LEASE {
            return Err(Error::invalid(format!(
                "The duration of {} seconds is too short: the shortest is 1 second.",
                exact_seconds(duration)
            )));
        }
        if duration > MAX_LEASE {
            return Err(Error::invalid(format!(
                "The duration of {} seconds is too long: the longest is 366 days ({} seconds).",
                exact_seconds(duration),
                exact_seconds(MAX_LEASE)
            )));
        }
        Ok(Lease(duration))
    }

    /// The checked duration.
    pub fn duration(self) -> Duration {
        self.0
    }

    /// The end of the time for which the holder may rely on a lock whose request left at `sent`.
    pub fn deadline(self, sent: Moment) -> Moment {
        sent + (self.0 - TICK_LATENESS)
    }
}

/// Seconds with as many decimals as it takes: a duration that is refused differs from the bound.
fn exact_seconds(duration: Duration) -> String {
    let text = format!("{}.{:09}", duration.as_secs(), duration.subsec_nanos());
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_outside_one_second_to_366_days_are_refused() {
        for bad in [
            Duration::ZERO,
            Duration::from_millis(999),
            MAX_LEASE + Duration::from_nanos(1),
            Duration::MAX,
        ] {
            let said = Lease::new(bad).unwrap_err().to_string();
            assert!(!said.contains("server"), "{said}: not every store has one");
        }
        for good in [MIN_LEASE, Duration::from_secs(31 * 24 * 3600), MAX_LEASE] {
            assert!(Lease::new(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn a_refusal_tells_how_the_duration_differs_from_the_bound() {
        for (refused, said) in [
            (Duration::ZERO, "of 0 seconds is too short"),
            (Duration::from_millis(500), "of 0.5 seconds is too short"),
            (MIN_LEASE - Duration::from_nanos(1), "of 0.999999999 seconds is too short"),
            (MAX_LEASE + Duration::from_millis(1), "of 31622400.001 seconds is too long"),
            (MAX_LEASE + Duration::from_nanos(1), "of 31622400.000000001 seconds is too long"),
            (Duration::from_secs(40_000_000), "of 40000000 seconds is too long"),
        ] {
            let sentence = Lease::new(refused).unwrap_err().to_string();
            assert!(sentence.contains(said), "{sentence}");
        }
        let sentence = Lease::new(Duration::MAX).unwrap_err().to_string();
        assert!(sentence.contains("the longest is 366 days (31622400 seconds)"), "{sentence}");
    }
}
