//! An actor: one thread of a process and its state.

use std::sync::{Arc, Mutex as StdMutex};

use memlock_core::{Client, Guard};

use super::context::LEASES;
use super::opened::Items;
use super::registry::Registry;
use crate::rng::Rng;
use crate::time::Nanos;
use crate::world::with;

/// What a thread holds. A forked child inherits it.
pub(crate) type HeldSlot = Arc<StdMutex<Option<Box<dyn Guard>>>>;

pub(crate) struct Actor {
    pub(crate) client: Client,
    pub(crate) rng: Rng,
    pub(crate) held_slot: HeldSlot,
    pub(crate) items: Items,
    pub(crate) registry: Registry,
}

impl Actor {
    /// A lease for the next request: no longer than the guard, if there is one.
    pub(crate) fn lease(&mut self) -> Nanos {
        let guard = with(|world| world.scenario.guard).unwrap_or(Nanos::MAX);
        let leases: Vec<Nanos> = LEASES.into_iter().filter(|lease| *lease <= guard).collect();
        self.rng.pick(&leases)
    }
}
