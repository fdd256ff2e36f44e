//! The clock of a server, and the directions in which its network fails.

use crate::rng::Rng;
use crate::time::{MICRO, MILLI, Nanos, SECOND};

/// Distinguishes the random numbers of a quorum from those of the other parts of a scenario, which
/// stay the same whether there is a quorum or not.
pub(super) const QUORUM: u64 = 0x7175_6f72_756d;

/// Whether the seed has a quorum: three in ten have.
pub(crate) fn is_quorum(seed: u64) -> bool {
    Rng::new(seed ^ QUORUM).permille(300)
}

/// The clock of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SiteClock {
    /// How far it is ahead of the world's time.
    pub(crate) ahead: Nanos,
    /// By how many parts per million it runs fast.
    pub(crate) fast: i64,
    /// The maximum time between two of its ticks, and the offset of the first one.
    pub(crate) tick: Nanos,
    pub(crate) first_tick: Nanos,
}

impl SiteClock {
    pub(super) fn of(rng: &mut Rng) -> SiteClock {
        SiteClock {
            ahead: rng.within(0..1000 * SECOND),
            fast: 0,
            tick: SECOND + rng.spread(MICRO, 10 * MILLI),
            first_tick: if rng.permille(500) {
                SECOND - rng.spread(MICRO, 50 * MILLI)
            } else {
                rng.within(0..SECOND)
            },
        }
    }

    /// What it shows at a time of the world.
    pub(crate) fn at(self, now: Nanos) -> Nanos {
        let drift = (i128::from(now) * i128::from(self.fast) / 1_000_000) as i64;
        (now + self.ahead).saturating_add_signed(drift)
    }

    /// The world's time at which it shows `shown`.
    pub(crate) fn world_time(self, shown: Nanos) -> Nanos {
        let since = i128::from(shown.saturating_sub(self.ahead));
        (since * 1_000_000 / i128::from(1_000_000 + self.fast)) as Nanos
    }

    /// The world's time in which one second passes on it.
    pub(crate) fn second(self) -> Nanos {
        self.world_time(self.ahead + SECOND)
    }
}

/// What a partition between a host and a server drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Requests.
    Out,
    /// Replies.
    Back,
    Both,
}
