//! What locks in a table promise.

use std::time::Duration;

use super::schema::Engine;
use crate::store::{ClockOf, FencesRise, Guarantees, Order, Scope, Survives};

/// What a table promises. An item expires by the wall clock of the server's host, which is read for
/// each row while it is locked, in microseconds; the clock error is for rounding.
pub(super) const fn guarantees(engine: Engine) -> Guarantees {
    Guarantees {
        scope: Scope::Network,
        clock_error: Duration::from_millis(1),
        clock_step: Duration::from_millis(1),
        // The clock of a virtual machine that was suspended is set right at some time after it
        // continues, and what was stored in between then expires too early.
        suspicious_delay: Some(Duration::from_millis(50)),
        clock: ClockOf::Server,
        survives: match engine {
            Engine::InnoDb => Survives::Persisted,
            Engine::Memory => Survives::Nothing,
        },
        evicts: false,
        fences_rise: FencesRise::WhileClocksDo,
        order: Order::Close,
        guard: None,
        longest_key: 250,
        longest_value: engine.longest_value(),
    }
}
