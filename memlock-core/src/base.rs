//! Small values, and the means to survive `fork`. Nothing in this module contacts a server.

pub mod active_calls;
pub mod bound;
pub mod clock;
pub(crate) mod descriptor;
pub mod error;
pub(crate) mod extensions;
pub mod fork;
pub(crate) mod hash;
pub mod lease;
pub mod name;
pub mod owner;
pub(crate) mod parker;
pub mod subject;
pub(crate) mod sync;
#[cfg(memlock_sim)]
pub mod thread;
#[cfg(not(memlock_sim))]
pub(crate) mod thread;
pub mod wait_id;
