//! What the tasks of a run do: take turns with mutexes, insert into lists, and tell the judge what
//! they were told.

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
