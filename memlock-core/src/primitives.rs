//! The primitives, written once over any store. Each uses the context; none uses the client.

mod acquisition;
pub mod counter;
pub mod distinct_list;
mod first_try;
pub mod mutex;
pub mod semaphore;
pub(crate) mod set_up;
