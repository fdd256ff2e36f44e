//! Burton's six functions, and functions of the same style for semaphores, on the process's default
//! client.
//!
//! The default client is that of [`init`], or else of the environment variable `MEMLOCK_URL`, or
//! else `memcached://127.0.0.1:11211`. A mutex is owned by the process: any of its threads may
//! unlock it, and two of its threads exclude each other. A forked child owns nothing of its
//! parent's.

mod default_client;
mod holdings;
mod list;
mod mutex;
mod semaphore;

pub use default_client::{DEFAULT_URL, default_client, existing_client, init};
pub use list::{distinct_list_insert, distinct_list_set_up, distinct_list_tear_down};
pub use mutex::{lock, mutex_lock, mutex_lock_nonblock, mutex_unlock};
pub use semaphore::{
    acquire, semaphore_acquire, semaphore_acquire_nonblock, semaphore_release, semaphore_set_up,
    semaphore_tear_down,
};
