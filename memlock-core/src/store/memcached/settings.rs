//! Timeouts, addresses and the size of the pool.

use std::time::Duration;

/// How a server is accessed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// The time limit for connecting to one server.
    pub(super) connect_timeout: Duration,
    /// The limit of each wait for the server within a batch.
    pub(super) io_timeout: Duration,
    /// How many idle connections are kept per server.
    pub(super) pool: usize,
}

/// The address of a server, and its time limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// `host:port`, by which humans and the hash identify the server.
    pub(super) name: String,
    /// The server's host name or IP address.
    pub(super) host: String,
    /// The server's TCP port.
    pub(super) port: u16,
    /// The time limit for connecting.
    pub(super) connect_timeout: Duration,
    /// The limit of each wait for the server.
    pub(super) io_timeout: Duration,
}
