//! The memory of a process.

use std::time::Duration;

use super::{Instance, Store};

/// `memory://name`.
pub(crate) const MEMORY: Store = Store {
    place: |unique| Instance::of_its_own(format!("memory://{unique}"), ()),
    shared_between_processes: false,
    shortest_lease: Duration::from_secs(1),
    // It keeps leases in whole seconds, as memcached does.
    slack: Duration::from_millis(3100),
    shown: "in this process's memory",
    server: None,
    keeps_when_killed: false,
};
