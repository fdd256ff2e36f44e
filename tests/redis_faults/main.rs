//! What only locks on a Redis can suffer.
//!
//! | file | contents |
//! | --- | --- |
//! | `scripts` | a server that forgets its script or its data, and how many commands a lock costs |
//! | `plain` | what other programs store under the same keys; what is left behind |
//! | `persistence` | snapshots, the append-only file, replicas |
//! | `guard` | what is held survives the end of a server that saves nothing |
//! | `access` | passwords and the rights of users |
//! | `states` | servers that refuse to work |
//! | `storm` | processes that fight for locks, while everything fails |
//! | `strangers` | servers that are no Redis |
//! | `tls` | encrypted connections |
//! | `places` | Unix sockets |
//! | `clock` | when items expire |
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../stores/mod.rs"]
#[allow(dead_code, reason = "other suites use the rest")]
mod stores;

mod access;
mod clock;
mod guard;
mod persistence;
mod places;
mod plain;
mod scripts;
mod states;
mod storm;
mod strangers;
mod tls;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use memlock_core::{Client, Error, ErrorKind};
use memlock_tests::process::Server;
use memlock_tests::url;
use stores::redis::Redis;

/// A lease that no test outlasts.
const LEASE: Duration = Duration::from_secs(300);
/// For what must happen, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client that waits for a slow machine.
fn client(server: &Redis) -> Client {
    Client::connect(&server.url()).unwrap()
}

/// The error of an attempt to lock `m` at this URL.
fn refusal(url: &str) -> Error {
    let client = match Client::connect(&url::patient(url)) {
        Ok(client) => client,
        Err(error) => return error,
    };
    client.mutex("m", LEASE).unwrap().try_lock().map(|_| ()).unwrap_err()
}

/// The attempt to lock `m` at this URL fails like this.
#[track_caller]
fn refused(url: &str, kind: ErrorKind, says: &str) {
    let error = refusal(url);
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(says), "{says:?} is missing: {error}");
}

/// Everything that memlock offers works there.
#[track_caller]
fn works(client: &Client, name: &str) {
    let mut lock = client.mutex(name, LEASE).unwrap().try_lock().unwrap().unwrap();
    assert!(lock.check().unwrap());
    assert_eq!(lock.extend(LEASE).unwrap(), memlock_core::Extension::Extended);
    assert_eq!(lock.unlock().unwrap(), memlock_core::Release::Released);
    let semaphore = client.semaphore(name, 2, LEASE).unwrap();
    let _ = semaphore.set_up(LEASE).unwrap();
    let mut permit = semaphore.try_acquire().unwrap().unwrap();
    assert_eq!(permit.release().unwrap(), memlock_core::Release::Released);
    assert!(semaphore.tear_down().unwrap());
    // Nothing removes a counter.
    static COUNTERS: AtomicUsize = AtomicUsize::new(0);
    let number = COUNTERS.fetch_add(1, Ordering::Relaxed);
    let counter = client.counter(format!("counter-{name}-{number}")).unwrap();
    assert!(counter.set_up(3).unwrap());
    assert!(counter.try_acquire().unwrap());
    assert_eq!(counter.release().unwrap(), 3);
    let mut list = client.distinct_list(name).unwrap();
    let _ = list.set_up(LEASE).unwrap();
    assert!(list.insert("key").unwrap().is_some());
    assert_eq!(list.entries().unwrap().unwrap().count(), 1);
    assert!(list.tear_down().unwrap());
}
