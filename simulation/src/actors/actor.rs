//! An actor: one thread of a process and its state.

use std::sync::{Arc, Mutex as StdMutex};

use memlock_core::{Client, Guard};

use super::opened::Items;
use super::registry::Registry;
use crate::rng::Rng;

/// What a thread holds. A forked child inherits it.
pub(crate) type HeldSlot = Arc<StdMutex<Option<Box<dyn Guard>>>>;

pub(crate) struct Actor {
    pub(crate) client: Client,
    pub(crate) rng: Rng,
    pub(crate) held_slot: HeldSlot,
    pub(crate) items: Items,
    pub(crate) registry: Registry,
}
