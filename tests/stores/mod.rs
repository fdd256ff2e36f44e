//! The stores that the conformance suites run on: what each is, what it promises, and through
//! which languages.
//!
//! A new store is a file here that says what [`Store`] asks, its `mod`, and its line in
//! `for_each_store`: then all suites run on it.

use std::any::Any;
use std::time::Duration;

use memlock_tests::process::Server;
use memlock_tests::url;

pub(crate) mod memcached;
pub(crate) mod memory;
pub(crate) mod mysql;
pub(crate) mod postgresql;
pub(crate) mod redis;
pub(crate) mod sqlite;

/// A store, or a variation of one.
pub(crate) struct Store {
    /// Gives a test a place of its own, by a short name that no other test of this run has.
    pub(crate) place: fn(unique: &str) -> Instance,
    /// Whether what one process holds excludes another process.
    pub(crate) shared_between_processes: bool,
    /// The shortest lease that outlasts a slow reply.
    pub(crate) shortest_lease: Duration,
    /// For how long after the end of a lease it may go on to exclude others.
    pub(crate) slack: Duration,
    /// What error messages call it.
    pub(crate) shown: &'static str,
    /// Starts a server of a test's own, if the store is on a server.
    pub(crate) server: Option<fn() -> Box<dyn Server>>,
    /// Whether that server, as it is started, keeps its locks when it is killed.
    pub(crate) keeps_when_killed: bool,
}

/// Where a test's locks are. What it needs there ends with it.
pub(crate) struct Instance {
    /// For clients.
    pub(crate) url: String,
    /// For the store itself, which knows no prefix.
    pub(crate) store_url: String,
    _needed: Box<dyn Any + Send + Sync>,
}

impl Instance {
    /// A store that no other test uses.
    pub(crate) fn of_its_own(url: String, needed: impl Any + Send + Sync) -> Instance {
        Instance { store_url: url.clone(), url, _needed: Box::new(needed) }
    }

    /// A store that other tests use too, under other prefixes. No test's subject is how soon it
    /// answers.
    pub(crate) fn shared(url: &str, unique: &str) -> Instance {
        let store_url = url::patient(url);
        Instance { url: format!("{store_url}&prefix={unique}:"), store_url, _needed: Box::new(()) }
    }
}

/// The registry of servers that the fault suite kills: a store, and the name of its tests.
#[allow(unused_macros, reason = "for the fault suite")]
macro_rules! for_each_server {
    ($then:ident) => {
        $then! {
            (memcached::MEMCACHED: on_memcached)
            (mysql::MYSQL: on_mysql)
            (mysql::IN_MEMORY: on_mysql_in_memory)
            (redis::REDIS: on_redis)
            (redis::THAT_PERSISTS: on_redis_that_persists)
            (redis::VALKEY: on_valkey)
            (postgresql::POSTGRESQL: on_postgresql)
            (postgresql::DURABLE: on_durable_postgresql)
        }
    };
}

/// The registry: a store, and the name of its tests in Rust, C, C++ and Python. `_` where a
/// language would show nothing new: what a variation changes is between the core and the server.
#[allow(unused_macros, reason = "for the conformance suites")]
macro_rules! for_each_store {
    ($then:ident $arguments:tt) => {
        $then! { $arguments
            (memory::MEMORY: rust_on_memory c_on_memory cpp_on_memory python_on_memory)
            (memcached::MEMCACHED: rust_on_memcached c_on_memcached cpp_on_memcached python_on_memcached)
            (mysql::MYSQL: rust_on_mysql c_on_mysql cpp_on_mysql python_on_mysql)
            (redis::REDIS: rust_on_redis c_on_redis cpp_on_redis python_on_redis)
            (postgresql::POSTGRESQL: rust_on_postgresql c_on_postgresql cpp_on_postgresql python_on_postgresql)
            (sqlite::SQLITE: rust_on_sqlite c_on_sqlite cpp_on_sqlite python_on_sqlite)
            (redis::VALKEY: rust_on_valkey _ _ _)
            (postgresql::DURABLE: rust_on_durable_postgresql _ _ _)
            (mysql::IN_MEMORY: rust_on_mysql_in_memory _ _ _)
            (memcached::THAT_REFUSES: rust_on_memcached_that_refuses _ _ _)
        }
    };
}
