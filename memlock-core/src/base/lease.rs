//! How long a lock or a session lives: on our clock and on the server's.
//!
//! memcached's clock ticks once a second, and shows whole seconds. Its timer runs a little late
//! each time, so the ticks wander through the second; and when they pass its end, one second is
//! left out: for a second the clock is almost two behind. So an item with TTL T lives between T-2
//! and T seconds, most often more than T-1. A lease of L is therefore sent as ceil(L) + 2: the item
//! outlives the lease by 0 to 3 seconds. To that comes 1 in 5,000 of the lease, because two clocks
//! do not run alike. The holder counts from *before* the request left, and 10 milliseconds less
//! than the lease, since the server's timer may be late: so it stops believing in its lock before
//! the server does.

use std::time::Duration;

use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::mutation::{self, Mutation};

/// The shortest lease that may be asked for.
pub const MIN_LEASE: Duration = Duration::from_secs(1);

/// The longest lease that may be asked for: 366 days. memcached keeps expiry times as 32-bit Unix
/// seconds, and a lock that is held for longer is more likely a mistake in units.
pub const MAX_LEASE: Duration = Duration::from_secs(366 * 24 * 3600);

/// How far the server's clock may be behind when it stores an item, and so how much sooner than its
/// TTL an item may die.
pub(crate) const CLOCK_ERROR: Duration = Duration::from_secs(2);

/// When an answer took longer than this, the server may have been stopped, and its once-a-second
/// clock may have stood still meanwhile, also while it stored an item of ours. We then ask it how
/// long the item really lives.
pub(crate) const SUSPICIOUS_DELAY: Duration = Duration::from_millis(50);

/// How late the timer may be by which the server's clock ticks.
pub(crate) const TICK_LATENESS: Duration = Duration::from_millis(10);

/// Two clocks may drift apart by one second in so many.
pub(crate) const DRIFT: u64 = 5000;

/// The time to live of an item. The store converts it where the wire wants something else, such as
/// memcached's absolute times beyond 30 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// So many whole seconds from its being stored.
    For(u64),
    /// Until the server's clock shows so many seconds.
    Until(u64),
    /// For ever.
    Never,
}

impl Ttl {
    /// The TTL that keeps an item for at least `lease`.
    pub fn covering(lease: Duration) -> Ttl {
        if mutation::has(Mutation::TtlOfTheLease) || mutation::has(Mutation::TtlPlusOne) {
            let partial = u64::from(lease.subsec_nanos() > 0);
            return Ttl::For(
                lease.as_secs() + partial + u64::from(mutation::has(Mutation::TtlPlusOne)),
            );
        }
        Ttl::For(covering(lease))
    }
}

/// For how many of the server's seconds, beginning with the one it shows, something must be kept to
/// be there for at least `lease`.
pub(crate) fn covering(lease: Duration) -> u64 {
    let partial = u64::from(lease.subsec_nanos() > 0);
    lease.as_secs() + partial + CLOCK_ERROR.as_secs() + lease.as_secs() / DRIFT
}

/// A duration that was checked to be a usable lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lease(Duration);

impl Lease {
    /// Checks a lease.
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

    /// What to tell the server.
    pub fn ttl(self) -> Ttl {
        Ttl::covering(self.0)
    }

    /// When the server has let go of an item whose request left at `sent`, at the latest.
    pub fn gone(self, sent: Moment) -> Moment {
        sent + Duration::from_secs(covering(self.0) + 1)
    }

    /// Until when the holder may believe in a lock whose request left at `sent`.
    pub fn deadline(self, sent: Moment) -> Moment {
        sent + (self.0 - TICK_LATENESS)
    }
}

/// A server keeps something until then by a request for `old`. Until when it keeps it at least if
/// it may also have carried out a later request for `new`: its clock may stand still, but never
/// goes back.
pub(crate) fn by_either(until: Moment, old: Lease, new: Lease) -> Moment {
    let less = Duration::from_secs(covering(old.0).saturating_sub(covering(new.0)));
    Moment::from_boot(until.since_boot().saturating_sub(less + less / DRIFT as u32))
}

/// Until when a server certainly keeps what it said, in reply to a look, to keep for so many of its
/// seconds.
///
/// A reply that takes too long may come from a server that stood still, and its clock with it,
/// since a time that is not known: then `None`, and it is to be asked again. `first`: when that
/// look left. Since its reply the server ran, so its clock has stood still for no longer than from
/// then on.
pub(crate) fn kept_until(
    left: Duration,
    sent: Moment,
    came: Moment,
    first: Option<Moment>,
) -> Option<Moment> {
    let stood = match (came.since(sent) > SUSPICIOUS_DELAY, first) {
        (false, _) => Duration::ZERO,
        (true, Some(first)) => came.since(first),
        (true, None) => return None,
    };
    Some(sent + left.saturating_sub(CLOCK_ERROR + stood))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn the_item_outlives_the_lease_at_every_phase_of_the_servers_clock(
            millis in 1000_u64..100_000_000, behind_nanos in 0_u64..2_010_000_000,
        ) {
            let lease = Lease::new(Duration::from_millis(millis)).unwrap();
            // Stored when the server's clock was so far behind, it dies when that has risen by TTL.
            let lives = Duration::from_secs(covering(lease.duration())) - Duration::from_nanos(behind_nanos);
            let drift = Duration::from_secs(lease.duration().as_secs() / DRIFT);
            let sent = Moment::from_boot(Duration::ZERO);
            prop_assert!(sent + lives > lease.deadline(sent) + drift);
            prop_assert!(lives <= lease.duration() + drift + Duration::from_secs(3));
        }
    }
}
