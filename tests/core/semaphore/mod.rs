//! Semaphores on a real server: permits, their leases, the order of waiters, and what the number of
//! permits costs.

use std::time::Duration;

use memlock_core::{Client, Semaphore};
use memlock_tests::frozen::Frozen;
use memlock_tests::server::Memcached;

mod basics;
mod crowd;
mod failures;
mod fairness;
mod hand_over;
mod mismatch;

const LEASE: Duration = Duration::from_secs(30);
/// For what must happen, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server, and a client of its own for each caller.
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

    /// As from another process, for which no time passes: its waiters get nothing unless they are
    /// woken.
    fn frozen(&self, permits: u32) -> Semaphore {
        let client = Client::with_clock(&self.server.url(), Frozen::clock()).unwrap();
        client.semaphore("s", permits, LEASE).unwrap()
    }
}
