//! What locks in a PostgreSQL promise.

use std::time::Duration;

use crate::store::{ClockOf, FencesRise, Guarantees, Order, Scope, Survives};

/// What the servers are.
pub(super) const SERVER: &str = "PostgreSQL";

/// Of tables that are not logged: a crash empties them. The server computes with its host's wall
/// clock in microseconds; the clock error is for what sets that clock right while it runs.
const UNLOGGED: Guarantees = Guarantees {
    scope: Scope::Network,
    clock_error: Duration::from_millis(2),
    clock_step: Duration::from_micros(1),
    suspicious_delay: Some(Duration::from_millis(250)),
    clock: ClockOf::Server,
    survives: Survives::CleanRestart,
    evicts: false,
    fences_rise: FencesRise::WhileClocksDo,
    order: Order::Close,
    guard: None,
    longest_key: 250,
    longest_value: 1024 * 1024,
};

/// Of logged tables.
const DURABLE: Guarantees = Guarantees {
    survives: Survives::Crash,
    fences_rise: FencesRise::UnlessRestored,
    order: Order::Open,
    ..UNLOGGED
};

pub(super) fn guarantees(is_durable: bool) -> Guarantees {
    if is_durable { DURABLE } else { UNLOGGED }
}

/// The time to live to ask for: [`Guarantees::covering`].
pub(super) fn covering(lease: Duration) -> Duration {
    UNLOGGED.covering(lease)
}
