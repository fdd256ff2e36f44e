//! A real PostgreSQL, which all tests of a run share under prefixes of their own.

use std::time::Duration;

use memlock_tests::postgresql::Postgresql;
use memlock_tests::process::Server;
use memlock_tests::url;

use super::{Instance, Store};

/// With tables that are not logged.
pub(crate) const POSTGRESQL: Store = Store {
    place: |unique| Instance::shared(&Postgresql::shared().url(), unique),
    shared_between_processes: true,
    shortest_lease: Duration::from_secs(1),
    // Semaphores note ends in whole seconds.
    slack: Duration::from_millis(2100),
    shown: "on PostgreSQL at 127.0.0.1:",
    server: Some(|| Box::new(Postgresql::start())),
    keeps_when_killed: false,
};

/// With logged tables, in a schema of another name.
pub(crate) const DURABLE: Store = Store {
    place: |unique| {
        let url = url::with(&Postgresql::shared().url(), "durable=yes&schema=Locks_2");
        Instance::shared(&url, unique)
    },
    server: Some(|| Box::new(Postgresql::start().with_parameters("durable=yes"))),
    keeps_when_killed: true,
    ..POSTGRESQL
};
