//! What locks on a Redis promise.

use std::time::Duration;

use crate::store::{ClockOf, FencesRise, Guarantees, Order, Scope, Survives};

/// What one Redis server promises. It removes an item in the millisecond in which the item's time is
/// over, by its host's wall clock; the clock error is for rounding.
pub(super) const GUARANTEES: Guarantees = Guarantees {
    scope: Scope::Network,
    clock_error: Duration::from_millis(2),
    clock_step: Duration::from_millis(1),
    suspicious_delay: Some(Duration::from_millis(50)),
    clock: ClockOf::Server,
    survives: Survives::Persisted,
    evicts: true,
    fences_rise: FencesRise::WhileClocksDo,
    order: Order::Sent,
    guard: None,
    longest_key: 250,
    longest_value: 1024 * 1024,
};
