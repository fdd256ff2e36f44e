//! The primitives, written once over any store. Each knows the context, and none the client.

pub mod counter;
pub mod distinct;
mod first_try;
pub mod mutex;
pub mod semaphore;
