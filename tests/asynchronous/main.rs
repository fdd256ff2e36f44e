//! Locks that are awaited: on several runtimes, side by side with threads that block, cancelled, and
//! left behind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod cancelled;
mod hung;
mod many;
mod runtimes;
mod semaphores;
mod storm;

#[path = "../stores/mod.rs"]
#[allow(dead_code, reason = "other suites use the rest")]
mod stores;

use std::time::Duration;

use memlock_core::{Client, Lock, Mutex};
use memlock_tests::launch::poll_until;
use memlock_tests::server::Memcached;

const LEASE: Duration = Duration::from_secs(30);
/// For what must happen, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The lock, once it is granted.
async fn held(mutex: &Mutex) -> Lock {
    mutex.lock_async(Some(PATIENCE)).await.unwrap().unwrap()
}

/// The number of threads of this process that carry out calls.
fn workers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
    tasks
        .filter_map(|task| name(task.unwrap()).ok())
        .filter(|name| name.starts_with("memlock-worker"))
        .count()
}

/// The number of entries in the lock's queue.
fn queued(server: &Memcached, name: &str) -> usize {
    Client::connect(&server.url()).unwrap().mutex(name, LEASE).unwrap().waiters().unwrap().len()
}

/// Whether somebody holds the lock.
fn is_held(server: &Memcached, name: &str) -> bool {
    let client = Client::connect(&server.url()).unwrap();
    client.mutex(name, LEASE).unwrap().owner().unwrap().is_some()
}

fn comes_true(what: &str, is: impl Fn() -> bool) {
    assert!(poll_until(PATIENCE, || is().then_some(())).is_some(), "{what}");
}
