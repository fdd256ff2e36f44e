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
                "The duration of {} seconds is too short: the server's clock ticks once a second, \
                 so ask for at least 1 second.",
                duration.as_secs_f64()
            )));
        }
        if duration > MAX_LEASE {
            return Err(Error::invalid(format!(
                "The duration of {} seconds is too long: the longest is 366 days ({} seconds).",
                duration.as_secs(),
                MAX_LEASE.as_secs()
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
            assert!(Lease::new(bad).is_err(), "{bad:?}");
        }
        for good in [MIN_LEASE, Duration::from_secs(31 * 24 * 3600), MAX_LEASE] {
            assert!(Lease::new(good).is_ok(), "{good:?}");
        }
    }
}
