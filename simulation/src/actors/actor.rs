//! An actor: one thread of a process, and what it has.

use std::sync::{Arc, Mutex as StdMutex};

use memlock_core::Client;

use super::opened::Items;
use super::registry::Registry;
use crate::chance::Chance;
use crate::held::Held;

/// Where a thread keeps what it holds: a child finds it there.
pub(crate) type Pocket = Arc<StdMutex<Option<Held>>>;

pub(crate) struct Actor {
    pub(crate) client: Client,
    pub(crate) chance: Chance,
    pub(crate) pocket: Pocket,
    pub(crate) items: Items,
    pub(crate) registry: Registry,
}
