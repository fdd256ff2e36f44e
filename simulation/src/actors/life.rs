//! The life of a thread.

use std::time::Duration;

use memlock_core::{Extension, Release};

use super::actor::{Actor, HeldSlot};
use super::context::{report_violation, sleep_for, trace};
use crate::scenario::Scenario;
use crate::time::{MICRO, SECOND};
use crate::world::with;

impl Actor {
    /// Runs the thread's rounds.
    pub(crate) fn live(mut self) {
        let (rounds, mutexes, lists, semaphores) = with(|world| {
            let Scenario { rounds, mutexes, lists, ref semaphores, .. } = world.scenario;
            (rounds, mutexes, lists, semaphores.permille)
        });
        let mut list = None;
        for _ in 0..rounds {
            if self.rng.permille(300) {
                let rest = self.rng.spread(10 * MICRO, 3 * SECOND);
                sleep_for(rest);
            }
            if semaphores > 0 && self.rng.permille(semaphores) {
                self.use_semaphore();
            } else if lists && self.rng.permille(600) {
                self.insert(&mut list);
            } else {
                let name = format!("m{}", self.rng.within(0..mutexes));
                self.use_mutex(&name);
            }
        }
    }

    /// Runs a forked child: it first tries to use what its parent holds.
    pub(crate) fn inherit(self, parents: &HeldSlot) {
        if let Ok(mut held_slot) = parents.try_lock()
            && let Some(held) = held_slot.as_mut()
        {
            trace(|| "the child unlocks its parent's lock".to_owned());
            if !held.remaining().is_zero() {
                report_violation("a child was told that it holds its parent's lock".to_owned());
            }
            match (held.extend(Duration::from_secs(2)), held.release()) {
                (Ok(Extension::NotHeld), Ok(Release::NotHeld)) => {}
                other => report_violation(format!(
                    "a child's calls on its parent's lock were answered {other:?}"
                )),
            }
        }
        self.live();
    }
}
