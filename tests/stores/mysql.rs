//! A real MariaDB, which all tests of a run share under prefixes of their own.

use std::sync::OnceLock;
use std::time::Duration;

use memlock_tests::mysql::MariaDb;
use memlock_tests::process::Server;

use super::{Instance, Store};

/// With its defaults; the shared one does not wait for the disk.
pub(crate) const MYSQL: Store = Store {
    place: |unique| {
        static SERVER: OnceLock<MariaDb> = OnceLock::new();
        Instance::shared(&SERVER.get_or_init(MariaDb::start_fast).url(), unique)
    },
    shared_between_processes: true,
    shortest_lease: Duration::from_secs(1),
    // Semaphores note ends in whole seconds.
    slack: Duration::from_millis(2100),
    shown: "on MySQL at 127.0.0.1:",
    server: Some(|| Box::new(MariaDb::start(&[]))),
    keeps_when_killed: true,
};

/// A table in memory: short values, and locks that a restart frees.
pub(crate) const IN_MEMORY: Store = Store {
    place: |unique| {
        static SERVER: OnceLock<MariaDb> = OnceLock::new();
        // By default, a table in memory has room for 3,800 rows.
        let start = || in_memory(&["--max-heap-table-size=256M"]);
        Instance::shared(&SERVER.get_or_init(start).url(), unique)
    },
    server: Some(|| Box::new(in_memory(&[]))),
    keeps_when_killed: false,
    ..MYSQL
};

fn in_memory(args: &[&str]) -> MariaDb {
    MariaDb::start(args).with_parameters("?engine=MEMORY")
}
