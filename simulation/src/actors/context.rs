//! What a task can ask of the world: its own number and process, the time, and the oracle.

use std::time::Duration;

use memlock_core::clock::Moment;
use memlock_core::{Error, ErrorKind};

use crate::time::{MICRO, MILLI, Nanos, SECOND};
use crate::world::{self, with};

pub(crate) const LEASES: [Nanos; 6] =
    [SECOND, 1300 * MILLI, 2 * SECOND, 3 * SECOND, 5 * SECOND, 12 * SECOND];

const STEP: Nanos = 25 * MILLI;

/// The current task, its process, and the time.
pub(crate) fn here() -> (usize, usize, Nanos) {
    with(|world| {
        let task = world.current.unwrap_or_default();
        (task, world.tasks[task].process, world.now)
    })
}

pub(crate) fn trace(what: impl FnOnce() -> String) {
    if with(|world| world.trace.is_recorded) {
        let what = what();
        with(|world| world.trace(|_| what));
    }
}

pub(crate) fn report_violation(what: String) {
    with(|world| world.oracle.report_violation(what));
}

/// In scenarios where everything happens in step: the time until the next step begins, plus a
/// random offset.
pub(crate) fn in_step(length: Nanos) -> Nanos {
    with(|world| match world.scenario.in_step {
        true => {
            (world.now + length).div_ceil(STEP) * STEP - world.now
                + world.rng.within(0..300 * MICRO)
        }
        false => length,
    })
}

pub(crate) fn sleep_for(length: Nanos) {
    let end = with(|world| world.now) + in_step(length);
    while with(|world| world.now < end) && world::sleep_until(end) {}
}

pub(crate) fn duration(nanos: Nanos) -> Duration {
    Duration::from_nanos(nanos)
}

/// Converts a moment of the process's clock to the world's time.
pub(crate) fn in_world(moment: Moment) -> Nanos {
    let (_, process, _) = here();
    with(|world| {
        let host = world.processes[process].host;
        world.world_time(host, moment.since_boot().as_nanos() as Nanos)
    })
}

pub(crate) fn check_error(doing: &str, error: &Error) {
    let fault_free = with(|world| world.scenario.fault_free);
    let misdated = error.kind() == ErrorKind::Config && with(|world| world.scenario.misdated);
    if fault_free
        || !misdated && !matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Unknown)
    {
        report_violation(format!("{doing} failed without a possible cause: {error}"));
    }
}
