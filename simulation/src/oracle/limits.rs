//! How long a lock may be free while a call waits for it, and how late a wait may end.

use crate::scenario::Scenario;
use crate::server::OFF_ITS_PROCESSOR;
use crate::time::{MILLI, Nanos, SECOND};

/// How long a lock may be free while a waiter that got no wake-up message waits for it.
pub(crate) const PATIENCE_WITHOUT_WAKE: Nanos = 13 * SECOND;

/// For this long after a lease ended without a release, waiters may be late: no waiter was woken,
/// and the holder's position may still be in the queue.
pub(crate) const AFTER_EXPIRY: Nanos = 20 * SECOND;

/// How long after its limit a wait may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lateness {
    AtMost(Nanos),
    /// As long as the call waits for answers, which may be lost or late at each of its last steps.
    OfAnswers,
}

impl Lateness {
    /// In a fault-free run: a short time, plus the delays of three writes (the waiter leaves the
    /// queue, gives up its reservation, and removes the line of the waiter that it wakes). With a
    /// single fault of the server or the network: three answers that do not come.
    pub(crate) fn of(scenario: &Scenario) -> Lateness {
        match scenario {
            Scenario { fault_free: true, unordered, .. } => {
                let writes = if *unordered { 3 * OFF_ITS_PROCESSOR } else { 0 };
                Lateness::AtMost(30 * MILLI + writes)
            }
            // Each server of a quorum may be cut off, one after the other.
            Scenario { lossy_permille: 0, slow_permille: 0, sites, .. } => {
                Lateness::AtMost((2500 + 1000 * sites.len() as u64) * MILLI)
            }
            _ => Lateness::OfAnswers,
        }
    }
}
