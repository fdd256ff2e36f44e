#![doc = "Locks, semaphores and distinct lists for programs that share a memcached, a Redis, an SQL database or a file."]
//!
//! ```no_run
//! use std::time::Duration;
//! use memlock_core::{Client, Release};
//!
//! # fn main() -> memlock_core::Result<()> {
//! let client = Client::connect("memcached://127.0.0.1:11211")?;
//! let mutex = client.mutex("nightly-report", Duration::from_secs(30))?;
//! let mut lock = mutex.lock()?;
//! println!("fence {}", lock.fence());
//! // At most 30 seconds of work.
//! match lock.unlock()? {
//!     Release::Released => {}
//!     lost => eprintln!("{}", lock.report(lost)), // another client may have held the lock since
//! }
//! # Ok(()) }
//! ```
//!
//! Modules. Each imports only modules below it (`tests/circles` checks that no files import each
//! other in a circle):
//!
//! | module | contents |
//! | --- | --- |
//! | [`bare`] | Burton's six functions on the process's default client |
//! | [`client`] | [`Client::connect`], from which everything else is made |
//! | [`mutex`], [`semaphore`], [`counter`], [`distinct_list`] | the primitives, written once over any store |
//! | `guard` | [`LeaseGuard`], [`Renewal`], orphaned grants: what is held, of any kind |
//! | [`report`], [`waiters`] | an answer with its sentence; the waiters of a queue, for tools |
//! | [`wait`] | waiting: the queue, the policy, local waiters, limits, cancellation |
//! | `context` | what all primitives use; it knows none of them |
//! | [`notify`] | wake-up messages between processes |
//! | [`store`] | the operations, with memcached, SQLite and memory behind them |
//! | [`fork`], [`active_calls`] | detection of forks; calls in progress |
//! | [`bound`] | what only one thread, or one event loop, will release |
//! | `descriptor` | descriptors that the program may have closed |
//! | `parker` | where a thread sleeps until another thread, or a signal handler, wakes it |
//! | [`lease`], [`owner`], [`name`], [`clock`], [`error`], [`logs`] | small values, without I/O |

// What is fuzzed calls this crate by its name.
#[cfg(test)]
extern crate self as memlock_core;

pub mod bare;
mod base;
mod cas_backoff;
pub mod client;
mod context;
pub mod environment;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod guard;
pub mod logs;
#[cfg(all(test, shuttle))]
mod models;
#[cfg(memlock_sim)]
pub mod mutation;
#[cfg(not(memlock_sim))]
mod mutation;
mod names;
pub mod notify;
mod primitives;
pub mod report;
pub mod store;
mod target;
pub mod wait;
pub mod waiters;

#[cfg(memlock_sim)]
pub use base::thread;
#[cfg(not(memlock_sim))]
pub(crate) use base::thread;
pub use base::{active_calls, bound, clock, error, fork, lease, name, owner, subject, wait_id};
pub(crate) use base::{descriptor, extensions, hash, parker, sync};
pub use primitives::set_up::SetUp;
pub use primitives::{counter, distinct_list, mutex, semaphore};

pub use bound::Bound;
pub use client::Client;
pub use counter::Counter;
pub use distinct_list::{DistinctList, Insertion};
pub use error::{Answer, Error, ErrorKind, Result};
pub use guard::any::Guard;
pub use guard::lease_guard::LeaseGuard;
pub use guard::outcome::{Extension, Loss, Release};
pub use guard::renewal::{Notice, RenewOptions, Renewal};
pub use mutex::{Lock, Mutex};
pub use owner::{OwnerRecord, Token};
pub use report::Report;
pub use semaphore::{Mismatch, Permit, Semaphore};
pub use subject::Subject;
pub use wait::entries::Request;
pub use wait::{Cancel, Wait, Waited};
pub use waiters::Waiter;

/// The version of memlock.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
