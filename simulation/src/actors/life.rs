//! What a thread does from its start to its end.

use std::time::Duration;

use memlock_core::{Extension, Release};

use super::actor::{Actor, Pocket};
use super::context::{nap, object, say};
use crate::scenario::Scenario;
use crate::time::{MICRO, SECOND};
use crate::world::with;

impl Actor {
    /// What a thread does in its life.
    pub(crate) fn live(mut self) {
        let (turns, mutexes, lists, semaphores) = with(|world| {
            let Scenario { turns, mutexes, lists, ref semaphores, .. } = world.scenario;
            (turns, mutexes, lists, semaphores.permille)
        });
        let mut list = None;
        for _ in 0..turns {
            if self.chance.permille(300) {
                let rest = self.chance.spread(10 * MICRO, 3 * SECOND);
                nap(rest);
            }
            if semaphores > 0 && self.chance.permille(semaphores) {
                self.permit_turn();
            } else if lists && self.chance.permille(600) {
                self.insert(&mut list);
            } else {
                let name = format!("m{}", self.chance.within(0..mutexes));
                self.turn(&name);
            }
        }
    }

    /// What a child does first: it tries to use what its parent holds.
    pub(crate) fn inherit(self, parents: &Pocket) {
        if let Ok(mut pocket) = parents.try_lock()
            && let Some(held) = pocket.as_mut()
        {
            say(|| "the child unlocks what its parent holds".to_owned());
            if !held.remaining().is_zero() {
                object("a child was told that its parent's lock is its own".to_owned());
            }
            match (held.extend(Duration::from_secs(2)), held.release()) {
                (Ok(Extension::NotHeld), Ok(Release::NotHeld)) => {}
                other => object(format!(
                    "a child's steps with its parent's lock were answered {other:?}"
                )),
            }
        }
        self.live();
    }
}
