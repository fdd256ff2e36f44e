//! The C library. See `include/memlock.h`, which `make header` generates from these files.
//!
//! | file | contents |
//! | --- | --- |
//! | `boundary` | what every entry point uses: NULL checks, the panic boundary, the last error |
//! | `cancellation` | why a call runs to completion in a cancelled thread |
//! | `bare` | Burton's six functions, and five for the semaphore, on the default client |
//! | `client`, `lock`, `wait`, `semaphore`, `list` | the handles |
//! | `renewal` | the acquisition behind a lock or permit handle, and its renewal |
//! | `counter` | the counter without leases |
//! | `log` | the log callback |
//!
//! Types express ownership. A handle owned by C is a `Box` that was made by `boundary::give` and is
//! returned to `boundary::take_back`. A pointer lent by C is a reference for the duration of the
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
extern crate self as memlock;
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
