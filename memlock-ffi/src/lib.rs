//! The C library. See `include/memlock.h`, which is generated from these files by `make header`.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `boundary` | what every entry point goes through: NULL checks, the panic boundary, the last error |
//! | `cancellation` | why a thread that is cancelled goes through with its call |
//! | `bare` | Burton's six functions, and those of the semaphore in the same manner, on the default client |
//! | `client`, `lock`, `wait`, `semaphore`, `list` | the handles |
//! | `keep` | one acquisition behind a handle, and its keeping |
//! | `counter` | the counter without leases |
//! | `log` | what memlock logs |
//!
//! Ownership is in the types. A handle that C owns is a `Box` that came from `boundary::give` and
//! goes back to `boundary::take_back`; a pointer that C lends is a reference for the time of the
//! call.
#![allow(non_camel_case_types)]

#[cfg(feature = "bare-names")]
mod bare;
mod boundary;
mod cancellation;
mod client;
mod counter;
mod list;
mod lock;
mod log;
mod renewal;
mod semaphore;
#[cfg(test)]
mod tests;
mod wait;

#[cfg(feature = "bare-names")]
pub use bare::*;
pub use boundary::*;
pub use client::*;
pub use counter::*;
pub use list::*;
pub use lock::*;
pub use log::*;
pub use renewal::*;
pub use semaphore::*;
pub use wait::*;
