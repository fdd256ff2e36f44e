//! Semaphores on a real server: permits, their leases, who comes next, and what the number of permits costs.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use memlock_core::{Client, Semaphore};
use memlock_tests::server::Memcached;

mod basics;
mod leases;
mod lost_replies;
mod order;
mod trouble;

const LEASE: Duration = Duration::from_secs(30);
/// For what must happen, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server, and a client of its own for each who asks.
struct Bench {
    server: Memcached,
}

impl Bench {
    fn new() -> Bench {
        Bench { server: Memcached::start() }
    }

    fn client(&self) -> Client {
        Client::connect(&self.server.url()).unwrap()
    }

    /// As from another process.
    fn semaphore(&self, permits: u32) -> Semaphore {
        self.client().semaphore("s", permits, LEASE).unwrap()
    }
}
