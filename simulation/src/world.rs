//! The world: one simulated time, in which tasks run one at a time and everything else is an event.
//!
//! A task is a thread of a simulated process: real memlock code on a stack of its own, which yields
//! only where it would wait for the network, a wake-up message or the clock. So a run is determined
//! by its seed alone.

mod current;
mod event;
mod faults;
mod link;
pub(crate) mod network;
mod partitions;
mod probe;
mod process;
mod request;
mod state;
mod step;
mod trace;

pub(crate) use current::{begin, end, enter_task, leave_task, sleep_all_until, sleep_until, with};
pub(crate) use event::{Event, Todo};
pub(crate) use link::Link;
pub(crate) use process::ListenerState;
pub(crate) use state::World;
