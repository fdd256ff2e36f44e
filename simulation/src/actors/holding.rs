//! What tasks do with a mutex or permits that they hold.

use std::sync::PoisonError;
use std::time::Duration;

use memlock_core::{Error, ErrorKind, Extension, Guard, Release};

use super::actor::Actor;
use super::context::{duration, here, in_world, report_violation, sleep_for, trace};
use crate::time::{MICRO, MILLI, Nanos, SECOND};
use crate::world::with;

impl Actor {
    /// Holds it for a while, with or without renewal, and releases it.
    pub(crate) fn use_held(&mut self, held: Box<dyn Guard>, hold: u64, until: Nanos, lease: Nanos) {
        let often = with(|world| world.scenario.renewed_permille);
        if often > 0 && self.rng.permille(often) {
            if !self.rng.permille(250) {
                return self.renew(held, hold, lease);
            }
            *self.held_slot() = Some(held);
            // Before its renewal, a hold may have been extended by another lease than it was
            // acquired with.
            let Some(extended) = self.extend(hold) else { return };
            let Some(lease) = extended else { return self.release(hold) };
            let Some(held) = self.held_slot().take() else { return };
            return self.renew(held, hold, lease);
        }
        let (_, _, now) = here();
        *self.held_slot() = Some(held);
        if let Some(length) = with(|world| world.scenario.rush) {
            sleep_for(length);
            return self.release(hold);
        }
        let length = match self.rng.within(0..10) {
            0..=2 => 0,
            3..=6 => self.rng.spread(100 * MICRO, 80 * MILLI),
            // Holds it until the lease ends.
            7 => until.saturating_sub(now),
            _ => self.rng.spread(80 * MILLI, 4 * SECOND),
        };
        sleep_for(length);
        while self.rng.permille(250) {
            if self.extend(hold).is_none() {
                return;
            }
            let length = self.rng.spread(MILLI, 5 * SECOND);
            sleep_for(length);
        }
        self.release(hold);
    }

    /// The slot is empty while the held object is in use: a child forked meanwhile does not find
    /// it.
    fn held_slot(&self) -> std::sync::MutexGuard<'_, Option<Box<dyn Guard>>> {
        self.held_slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the lease of the extension, if it succeeded; `None` if the hold is over.
    fn extend(&mut self, hold: u64) -> Option<Option<Nanos>> {
        let mut held = self.held_slot().take()?;
        let lease = if self.rng.permille(400) { SECOND } else { self.lease() };
        let (task, process, begun) = here();
        with(|world| {
            world.oracle.semaphores.leases(process, task, begun, lease);
            world.oracle.pauses_using(hold, begun, false);
            world.oracle.extends(hold);
        });
        let extended = held.extend(duration(lease));
        trace(|| format!("extending by {:.1} s is answered {extended:?}", lease as f64 / 1e9));
        let (_, _, now) = here();
        match extended {
            Ok(Extension::Extended) => {}
            Ok(Extension::Lost) => {
                with(|world| world.oracle.told_lost(hold, now, &world.server));
                return None;
            }
            Ok(Extension::NotHeld) => {
                report_violation("a holder was told that it holds nothing".to_owned())
            }
            Err(ref error) => self.failed(hold, begun, error),
        }
        let until = in_world(held.deadline());
        with(|world| {
            world.oracle.uses(hold, until);
            if extended.is_ok() {
                world.oracle.told_unbroken(hold);
            }
        });
        *self.held_slot() = Some(held);
        Some(extended.is_ok().then_some(lease))
    }

    pub(crate) fn failed(&self, hold: u64, begun: Nanos, error: &Error) {
        with(|world| {
            world.oracle.tally.errors += 1;
            if world.scenario.fault_free {
                world.oracle.report_violation(format!("there was no fault, yet: {error}"));
            }
        });
        match error.kind() {
            ErrorKind::Unreachable => with(|world| world.oracle.told_unchanged(hold, begun)),
            ErrorKind::Unknown => {}
            _ => report_violation(format!(
                "a holder's step failed without a possible cause: {error}"
            )),
        }
    }

    fn release(&mut self, hold: u64) {
        let Some(mut held) = self.held_slot().take() else { return };
        // An abandoned lock stays until its lease ends; a fault-free run does not wait for that.
        let way = self.rng.within(if with(|world| world.scenario.fault_free) { 1 } else { 0 }..20);
        for _ in 0..3 {
            let (_, _, begun) = here();
            with(|world| world.oracle.pauses_using(hold, begun, true));
            if way < 3 {
                break;
            }
            let released = held.release();
            trace(|| format!("unlocking is answered {released:?}"));
            let (_, _, now) = here();
            match released {
                Ok(Release::Released) => {
                    with(|world| world.oracle.told_released(hold, &world.server));
                    return self.release_again(held);
                }
                Ok(Release::Lost) => {
                    return with(|world| world.oracle.told_lost(hold, now, &world.server));
                }
                Ok(Release::NotHeld) => {
                    report_violation("a holder was told that it holds nothing".to_owned())
                }
                Err(error) => self.failed(hold, begun, &error),
            }
            let until = in_world(held.deadline());
            with(|world| world.oracle.uses(hold, until));
            let pause = self.rng.spread(MILLI, 2 * SECOND);
            sleep_for(pause);
        }
        let (_, _, now) = here();
        with(|world| world.oracle.pauses_using(hold, now, true));
        trace(|| if way == 0 { "abandons it" } else { "drops it" }.to_owned());
        if way == 0 {
            held.abandon()
        } else {
            drop(held)
        }
        with(|world| world.oracle.forgets(hold));
    }

    /// Sometimes releases permits a second time, which must not create permits.
    fn release_again(&mut self, mut held: Box<dyn Guard>) {
        if held.fence().is_none() && self.rng.permille(200) {
            match (held.release(), held.extend(Duration::from_secs(1))) {
                (Ok(Release::NotHeld), Ok(Extension::NotHeld)) => {}
                other => report_violation(format!("a released lock is still held: {other:?}")),
            }
        }
    }
}
