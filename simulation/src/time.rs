//! Time in nanoseconds, as the simulated world counts it.

pub(crate) type Nanos = u64;
pub(crate) const MICRO: Nanos = 1_000;
pub(crate) const MILLI: Nanos = 1_000_000;
pub(crate) const SECOND: Nanos = 1_000_000_000;
