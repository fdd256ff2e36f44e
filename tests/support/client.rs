//! Clients of databases.

use std::time::Duration;

use memlock_core::Client;

use crate::url;

/// A lease that no test outlasts.
pub const LEASE: Duration = Duration::from_secs(300);
/// For what must happen, however slow the machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A [patient](url::patient) client.
pub fn connect(url: &str) -> Client {
    Client::connect(&url::patient(url)).expect("a good URL")
}

/// Whether a lock is free, as another client sees it.
pub fn is_free(client: &Client, name: &str) -> bool {
    let mutex = client.mutex(name, LEASE).expect("a good name");
    mutex.owner().expect("the server answers").is_none()
}
