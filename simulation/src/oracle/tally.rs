//! What a run did, in numbers.

use crate::time::Nanos;

/// Counters of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) grants: u64,
    pub(crate) permits: u64,
    pub(crate) refusals: u64,
    pub(crate) errors: u64,
    pub(crate) lost: u64,
    pub(crate) inserts: u64,
    pub(crate) renewed_holds: u64,
    pub(crate) renewals: u64,
    pub(crate) longest_free: Nanos,
}
