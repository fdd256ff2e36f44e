//! What locks in a file promise.

use std::time::Duration;

use crate::store::{ClockOf, FencesRise, Guarantees, Order, Scope, Survives};

pub(super) const GUARANTEES: Guarantees = Guarantees {
    scope: Scope::Host,
    clock_error: Duration::from_millis(1),
    clock_step: Duration::from_millis(1),
    // The process that stores an item reads the clock itself, before it stores the item.
    suspicious_delay: None,
    clock: ClockOf::Host,
    survives: Survives::Restart,
    evicts: false,
    fences_rise: FencesRise::UnlessRestored,
    order: Order::Sent,
    guard: None,
    longest_key: 250,
    longest_value: 512 * 1024 * 1024,
};
