//! Random numbers from a seed, for clients of tests: SplitMix64, good enough to decide how long
//! waiters wait.

use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};

/// The seed of a test run: MEMLOCK_SEED, or always the same one.
///
/// What fails with a seed fails with it again, as far as the seed decides. `make prove` sets fresh
/// ones.
pub fn seed_of_run() -> u64 {
    let text = std::env::var("MEMLOCK_SEED").ok();
    text.map_or(1, |text| text.parse().expect("MEMLOCK_SEED is a number below 2^64"))
}

/// Any number, another one in each run.
pub fn random() -> u64 {
    let mut bytes = [0; 8];
    SystemClock.random(&mut bytes).expect("the system has random bytes");
    u64::from_ne_bytes(bytes)
}

/// A stream of decisions.
#[derive(Clone, Debug)]
pub struct Chance(pub u64);

impl Chance {
    /// That of the [`seed_of_run`].
    pub fn of_run() -> Chance {
        Chance(seed_of_run())
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of `0..end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    /// A place in a list of this length.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// From `least` to just below `most` milliseconds.
    pub fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least) + Duration::from_micros(self.below((most - least) * 1000))
    }
}
