//! What the tests stand on: locks and permits alike, and stores in memory that fail on purpose.

use std::sync::Arc;
use std::time::Duration;

use memlock_core::clock::Clock;
use memlock_core::store::memory::Memory;
use memlock_core::store::{Failure, Op, Route, Store, memcached};
use memlock_core::{Client, Error, ErrorKind, Guard, Result};
use memlock_tests::intercepted::{Replies, intercepted};
use memlock_tests::server::Memcached;

/// What is held for a lease: a lock, or the only permit of a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Lock,
    Permit,
}

pub(crate) const KINDS: [Kind; 2] = [Kind::Lock, Kind::Permit];

impl Kind {
    pub(crate) fn attempt(
        self,
        client: &Client,
        name: &str,
        lease: Duration,
    ) -> Result<Option<Box<dyn Guard>>> {
        fn boxed(guard: impl Guard + 'static) -> Box<dyn Guard> {
            Box::new(guard)
        }
        match self {
            Kind::Lock => Ok(client.mutex(name, lease)?.try_lock()?.map(boxed)),
            Kind::Permit => Ok(client.semaphore(name, 1, lease)?.try_acquire()?.map(boxed)),
        }
    }

    /// Acquires what must be free.
    #[track_caller]
    pub(crate) fn hold(self, client: &Client, name: &str, lease: Duration) -> Box<dyn Guard> {
        self.attempt(client, name, lease).unwrap().expect("it was free")
    }

    pub(crate) fn is_free(self, client: &Client, name: &str) -> bool {
        let lease = Duration::from_secs(30);
        match self {
            Kind::Lock => client.mutex(name, lease).unwrap().owner().unwrap().is_none(),
            Kind::Permit => {
                let status = client.semaphore(name, 1, lease).unwrap().status().unwrap();
                status.is_none_or(|status| status.available == 1)
            }
        }
    }
}

/// A client of a store in memory that promises what memcached does, and whose batches pass through
/// `run`; and a client beside it whose batches do not.
pub(crate) fn on_memory(
    clock: &Arc<dyn Clock>,
    run: impl Fn(&dyn Store, Route, &[Op<'_>]) -> Replies + Send + Sync + 'static,
) -> (Client, Client) {
    let memory: Arc<dyn Store> = Arc::new(Memory::like(memcached::GUARANTEES, Arc::clone(clock)));
    let store = intercepted(Arc::clone(&memory), run);
    (Client::with_store(store, Arc::clone(clock)), Client::with_store(memory, Arc::clone(clock)))
}

/// The request was sent, and no reply came.
pub(crate) fn lost() -> Failure {
    Failure { error: Error::new(ErrorKind::Unknown, "The reply was lost."), sent: true }
}

/// Nothing was sent.
pub(crate) fn away() -> Failure {
    let error = Error::new(ErrorKind::Unreachable, "It cannot be connected to.");
    Failure { error, sent: false }
}

/// Stores values that expire in each class of sizes, until there is no room in any.
pub(crate) fn fill(server: &Memcached) {
    for size in [400_000, 100_000, 20_000, 5000, 1000, 500, 300, 200, 150, 120, 90, 60, 30, 6] {
        fill_with(server, size);
    }
}

/// Stores values of this size until there is no room for another one. Returns the last item's key.
pub(crate) fn fill_with(server: &Memcached, size: usize) -> String {
    let (mut plain, value) = (server.plain(), "x".repeat(size));
    let key = |number: u32| format!("f{size}-{number}");
    let mut store =
        |number| plain.command(&format!("set {} 0 1000 {size}\r\n{value}", key(number)));
    let full = (0..100_000).find(|&number| store(number) != "STORED");
    key(full.expect("the server does not refuse anything: it evicts").saturating_sub(1))
}
