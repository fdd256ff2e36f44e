//! The random numbers of a seed.

use std::ops::Range;

/// A pseudo-random generator: SplitMix64, which is small and the same everywhere.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x006d_656d_6c6f_636b)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Another generator, independent of this one from here on.
    pub(crate) fn fork(&mut self) -> Rng {
        Rng(self.bits())
    }

    /// A number of `range`.
    pub(crate) fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.bits() % (range.end - range.start)
    }

    /// True with a probability of `times` in a thousand.
    pub(crate) fn permille(&mut self, times: u64) -> bool {
        self.within(0..1000) < times
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.within(0..of.len() as u64) as usize]
    }

    /// From `low` to `high`, uniform in the logarithm: as many between 1 and 10 as between 10 and
    /// 100.
    pub(crate) fn spread(&mut self, low: u64, high: u64) -> u64 {
        let (low, high) = (low.max(1) as f64, high as f64);
        let fraction = self.bits() as f64 / u64::MAX as f64;
        (low * (high / low).powf(fraction)) as u64
    }
}
