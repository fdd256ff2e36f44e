//! How long a free lock may stay without a holder while a call waits for it, and how late a wait
//! may end.

use crate::scenario::Scenario;
use crate::server::OFF_ITS_PROCESSOR;
use crate::time::{MILLI, Nanos, SECOND};

/// How long a lock may be free while somebody waits for it who was not rung.
pub(crate) const PATIENCE_WITHOUT_WAKE: Nanos = 13 * SECOND;

/// For so long it matters that a holder overslept its lease: it rings nobody, and may leave a place
/// in the queue behind.
pub(crate) const AFTER_EXPIRY: Nanos = 20 * SECOND;

/// How long after its limit a wait may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lateness {
    AtMost(Nanos),
    /// As long as it waits for answers, which may be lost or late at each of its last steps.
    OfAnswers,
}

impl Lateness {
    /// Where nothing goes wrong: a moment, and the delays of three writes: the waiter leaves the
    /// queue, gathers no more permits, and takes the line off of the waiter that it rings. Where
    /// the server or the network fails once: three answers that do not come.
    pub(crate) fn of(scenario: &Scenario) -> Lateness {
        match scenario {
            Scenario { fault_free: true, unordered, .. } => {
                let writes = if *unordered { 3 * OFF_ITS_PROCESSOR } else { 0 };
                Lateness::AtMost(30 * MILLI + writes)
            }
            Scenario { lossy_permille: 0, slow_permille: 0, .. } => Lateness::AtMost(3500 * MILLI),
            _ => Lateness::OfAnswers,
        }
    }
}
