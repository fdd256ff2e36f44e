//! What the tasks of a run do: they use mutexes, semaphores and lists, and report the answers to
//! the oracle.

mod actor;
mod context;
mod holding;
mod life;
mod lists;
mod mutexes;
mod opened;
mod permits;
mod registry;
pub(crate) mod renewing;

pub(crate) use actor::{Actor, HeldSlot};
pub(crate) use opened::Items;
pub(crate) use registry::Registry;
