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
