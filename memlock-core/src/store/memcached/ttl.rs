//! How long memcached keeps an item.
//!
//! memcached's clock ticks once a second, and shows whole seconds. Its timer fires a little late
//! each time, so the ticks drift through the second; when they pass its end, one second is skipped,
//! and for a second before that the clock is almost two seconds behind. An item with TTL T
//! therefore lives between T-2 and T seconds, most often more than T-1. A lease of L is sent as
//! ceil(L) + 2, so the item outlives the lease by 0 to 3 seconds. In addition, 1 in 5,000 of the
//! lease is added, because two clocks drift apart. The holder counts from *before* the request was
//! sent, and deducts 10 milliseconds from the lease, since the server's timer may be late: it stops
//! relying on its lock before the server drops the lock.

use std::time::Duration;

use crate::clock::whole_seconds;
use crate::mutation::{self, Mutation};
use crate::store::{ClockOf, Expiry, FencesRise, Guarantees, Order, Scope, Survives};

/// The guarantees of one memcached.
pub const GUARANTEES: Guarantees = Guarantees {
    scope: Scope::Network,
    clock_error: Duration::from_secs(2),
    clock_step: Duration::from_secs(1),
    suspicious_delay: Some(Duration::from_millis(50)),
    clock: ClockOf::Server,
    survives: Survives::Nothing,
    evicts: true,
    fences_rise: FencesRise::WhileClocksDo,
    order: Order::Sent,
    guard: None,
    longest_key: 250,
    longest_value: 1024 * 1024,
};

/// The time to live of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// This many whole seconds from when the item is stored.
    For(u64),
    /// The whole seconds that were left before. The item lives no longer than it would have, and
    /// less only if more than 30 days were left.
    Left(u64),
    /// Until the server's clock shows this many seconds.
    Until(u64),
    /// Forever.
    Never,
}

impl Ttl {
    /// The TTL with which an item lives as long as requested.
    pub fn of(expiry: Expiry) -> Ttl {
        match expiry {
            Expiry::After(lease) => Ttl::covering(lease),
            Expiry::At(time) => Ttl::Until(whole_seconds(time)),
            Expiry::Unchanged(Some(left)) => Ttl::Left(left.as_secs().max(1)),
            Expiry::Unchanged(None) | Expiry::Never => Ttl::Never,
        }
    }

    fn covering(lease: Duration) -> Ttl {
        if mutation::has(Mutation::TtlOfTheLease) {
            return Ttl::For(whole_seconds(lease));
        }
        if mutation::has(Mutation::TtlPlusOne) {
            return Ttl::For(whole_seconds(lease) + 1);
        }
        Ttl::For(GUARANTEES.covering(lease).as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Moment;
    use crate::lease::{DRIFT, Lease};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_item_outlives_the_lease_at_every_phase_of_the_servers_clock(
            millis in 1000_u64..100_000_000, behind_nanos in 0_u64..2_010_000_000,
        ) {
            let lease = Lease::new(Duration::from_millis(millis)).unwrap();
            // Stored while the server's clock was this far behind, the item expires when the clock
            // has risen by the TTL.
            let Ttl::For(seconds) = Ttl::of(lease.into()) else { panic!() };
            let lives = Duration::from_secs(seconds) - Duration::from_nanos(behind_nanos);
            let drift = Duration::from_secs(lease.duration().as_secs() / DRIFT);
            let sent = Moment::from_boot(Duration::ZERO);
            prop_assert!(sent + lives > lease.deadline(sent) + drift);
            prop_assert!(lives <= lease.duration() + drift + Duration::from_secs(3));
            prop_assert!(sent + lives <= GUARANTEES.gone(lease, sent));
        }
    }

    #[test]
    fn what_was_left_is_not_made_longer() {
        let seconds = Duration::from_secs;
        assert_eq!(Ttl::of(Expiry::Unchanged(Some(seconds(7)))), Ttl::Left(7));
        assert_eq!(Ttl::of(Expiry::Unchanged(Some(seconds(0)))), Ttl::Left(1));
        assert_eq!(Ttl::of(Expiry::Unchanged(None)), Ttl::Never);
        assert_eq!(Ttl::of(Expiry::At(seconds(1_795_170_000))), Ttl::Until(1_795_170_000));
    }
}
