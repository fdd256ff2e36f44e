//! A real memcached, which all tests of a run share under prefixes of their own.

use std::sync::OnceLock;
use std::time::Duration;

use memlock_tests::server::Memcached;

use super::{Instance, Store};

/// With its defaults.
pub(crate) const MEMCACHED: Store = Store {
    place: |unique| {
        static SERVER: OnceLock<Memcached> = OnceLock::new();
        Instance::shared(SERVER.get_or_init(Memcached::start).url(), unique)
    },
    shared_between_processes: true,
    // One second more than it may be: a slow reply may take that off.
    shortest_lease: Duration::from_secs(2),
    // Whole seconds of a clock that may be two behind: see `lease.rs`.
    slack: Duration::from_millis(3100),
    shown: "on memcached at 127.0.0.1:",
    server: Some(|| Box::new(Memcached::start())),
    keeps_when_killed: false,
};

/// A server that refuses to store when it is full. It gets classic commands, because a meta command
/// that is refused deletes the item.
pub(crate) const THAT_REFUSES: Store = Store {
    place: |unique| {
        static SERVER: OnceLock<Memcached> = OnceLock::new();
        let server = SERVER.get_or_init(|| Memcached::with_args(&["-M", "-m", "100"]));
        Instance::shared(server.url(), unique)
    },
    ..MEMCACHED
};
