//! A store whose connection sweeps when a test wants it to.

use std::sync::Arc;

use memlock_core::name::{Key, Keyspace};
use memlock_core::store::{Expiry, Failure, Op, Reply, Returns, Route, Store};

use crate::client::{self, LEASE};
use crate::launch;

/// A connection sweeps when it has stored so many items.
const EVERY: usize = 256;

/// The store. A test that runs one batch at a time uses one connection.
#[derive(Debug)]
pub struct Sweeping {
    store: Arc<dyn Store>,
    route: Route,
}

impl Sweeping {
    /// At a server, whose first items are stored.
    pub fn at(server: &str) -> Sweeping {
        let first = key("first");
        let sweeping = Sweeping { store: client::store(server), route: Route::of(&first) };
        sweeping.add(&first).expect("the server is free");
        sweeping
    }

    /// Stores new items, so that a sweep is due. Returns when they are answered.
    pub fn store_until_due(&self) {
        let (process, round) = (std::process::id(), launch::number());
        let name = |n| format!("a{process}.{round}.{n}");
        let keys: Vec<Key> = (0..EVERY).map(|n| key(&name(n))).collect();
        let replies = self.store.run(self.route, &keys.iter().map(add).collect::<Vec<_>>());
        let replies = replies.expect("a batch without locked rows");
        assert!(replies.iter().all(|reply| matches!(reply, Reply::Stored(_))), "{replies:?}");
    }

    /// Whether the server counts as silent.
    pub fn is_silent(&self) -> bool {
        self.store.silence(self.route).is_some()
    }

    /// Stores an item.
    ///
    /// # Errors
    /// As for any batch.
    pub fn add(&self, key: &Key) -> Result<Reply, Failure> {
        Ok(self.store.run(self.route, &[add(key)])?.remove(0))
    }
}

/// The key of a lock.
pub fn key(name: &str) -> Key {
    Keyspace::default().lock(name.as_bytes())
}

fn add(key: &Key) -> Op<'_> {
    Op::add(key, b"v", Expiry::After(LEASE), Returns::Version)
}
