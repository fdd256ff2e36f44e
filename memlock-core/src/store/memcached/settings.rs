//! How servers are spoken to.

use std::time::Duration;

/// How a server is spoken to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// The limit of dialling one server.
    pub(super) connect_timeout: Duration,
    /// The limit of each wait for the server within a batch.
    pub(super) io_timeout: Duration,
    /// How many idle connections are kept per server.
    pub(super) pool: usize,
}

/// Where a server is, and how long it may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// `host:port`, by which people and hashing know it.
    pub(super) name: String,
    /// Its host's name or address.
    pub(super) host: String,
    /// Its TCP port.
    pub(super) port: u16,
    /// The limit of dialling it.
    pub(super) connect_timeout: Duration,
    /// The limit of each wait for it.
    pub(super) io_timeout: Duration,
}
