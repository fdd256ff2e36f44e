//! What tasks do with mutexes.

use memlock_core::{ErrorKind, Lock, Wait, Waited};

use super::actor::Actor;
use super::context::{duration, here, in_step, in_world, report_violation, trace};
use crate::oracle::Refusal;
use crate::time::{MILLI, Nanos, SECOND};
use crate::world::with;

impl Actor {
    pub(super) fn use_mutex(&mut self, name: &str) {
        let lease = self.lease();
        let rush = with(|world| world.scenario.rush.is_some());
        let limit = match self.rng.within(0..20) {
            _ if rush => None,
            0..=3 => None,
            4..=8 => Some(0),
            _ => Some(in_step(self.rng.spread(20 * MILLI, 7 * SECOND))),
        };
        let beyond = with(|world| world.scenario.guard).filter(|_| self.rng.permille(30));
        let lease = beyond.map_or(lease, |guard| guard + 4 * SECOND);
        let mutex = match self.client.mutex(name, duration(lease)) {
            Ok(mutex) => mutex,
            Err(error) if beyond.is_some() && error.kind() == ErrorKind::Invalid => return,
            Err(error) => return report_violation(format!("a mutex was refused: {error}")),
        };
        let wait = limit.map_or(Wait::FOREVER, |limit| Wait::at_most(duration(limit)));
        let (task, process, now) = here();
        trace(|| format!("asks for {name}, lease {:.1} s, limit {limit:?}", lease as f64 / 1e9));
        with(|world| world.oracle.asks(task, process, &format!("lock:{name}"), limit, now));
        let refusal = match mutex.lock_with(&wait) {
            Ok(Waited::Done(lock)) => return self.hold(lock, lease),
            Ok(Waited::Busy) => Refusal::Busy,
            Ok(Waited::TimedOut) => Refusal::TimedOut,
            Ok(Waited::Interrupted) => Refusal::Interrupted,
            Ok(Waited::Recovering) => Refusal::Recovering,
            Err(error) => {
                trace(|| format!("error: {error}"));
                match error.kind() {
                    ErrorKind::Unreachable => Refusal::Unreachable,
                    ErrorKind::Unknown => Refusal::Unknown,
                    _ => Refusal::Other,
                }
            }
        };
        trace(|| format!("is told {refusal:?}"));
        with(|world| {
            let held_up = world.held_up(process);
            world.oracle.refused(task, refusal, world.now, held_up, &world.server);
        });
    }

    pub(super) fn hold(&mut self, lock: Lock, lease: Nanos) {
        let until = in_world(lock.deadline());
        let (task, _, now) = here();
        trace(|| {
            format!(
                "has it as {} with fence {} for {:.6} s",
                lock.token(),
                lock.fence(),
                until.saturating_sub(now) as f64 / 1e9
            )
        });
        let hold = with(|world| {
            world.oracle.granted(task, lock.token().to_string(), lock.fence(), until, now)
        });
        self.use_held(Box::new(lock), hold, until, lease);
    }
}
