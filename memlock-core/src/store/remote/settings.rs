//! Addresses, timeouts, the size of the pool, and what is said of evictions.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::resolver::Resolver;
use crate::error::Result;
use crate::store::url::Url;

/// How much less time a server is given that is asked [briefly](crate::store::TimeLimit::Brief).
pub(super) const BRIEFLY: u32 = 4;

/// How a server is accessed.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct Settings {
    /// The time limit for connecting to one server.
    pub(in crate::store) connect_timeout: Duration,
    /// The limit of each wait for the server within a batch.
    pub(in crate::store) io_timeout: Duration,
    /// How many idle connections are kept per server.
    pub(in crate::store) pool: usize,
}

impl Settings {
    /// Takes the parameters from the URL.
    pub(in crate::store) fn take(url: &mut Url) -> Result<Settings> {
        Ok(Settings {
            connect_timeout: url.take_duration("connect_timeout", Duration::from_secs(1))?,
            io_timeout: url.take_duration("io_timeout", Duration::from_secs(1))?,
            pool: url.take_count("pool", 16)?,
        })
    }

    pub(super) fn briefly(self) -> Settings {
        let Settings { connect_timeout, io_timeout, pool } = self;
        let io_timeout = io_timeout / BRIEFLY;
        Settings { connect_timeout: connect_timeout.min(io_timeout), io_timeout, pool }
    }
}

/// What the URL says of servers that may evict locks to make room for other items.
#[allow(dead_code, reason = "not every store evicts")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Evictions {
    /// Nothing.
    Unmentioned,
    /// They are allowed.
    Allowed,
    /// They are refused.
    Refused,
}

impl Evictions {
    /// Takes the parameter from the URL.
    #[cfg(any(feature = "memcached", feature = "redis"))]
    pub(in crate::store) fn take(url: &mut Url) -> Result<Evictions> {
        match url.take("evictions").as_deref() {
            None => Ok(Evictions::Unmentioned),
            Some("allow") => Ok(Evictions::Allowed),
            Some("refuse") => Ok(Evictions::Refused),
            Some(other) => {
                Err(url.bad_parameter("evictions", other, "is neither allow nor refuse."))
            }
        }
    }
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) enum Place {
    /// A host name or IP address, and a TCP port.
    Tcp(String, u16),
    /// The path of a Unix socket.
    #[allow(dead_code, reason = "not every store has servers on Unix sockets")]
    Unix(PathBuf),
}

/// The address of a server, and how the server is accessed.
#[derive(Clone, Debug)]
pub(in crate::store) struct Address {
    name: String,
    pub(in crate::store) place: Place,
    pub(in crate::store) settings: Settings,
    /// Shared by the clones, so that a tool goes to the server that its client uses.
    pub(super) resolver: Arc<Resolver>,
}

impl Address {
    pub(in crate::store) fn new(place: Place, settings: Settings) -> Address {
        let name = match &place {
            Place::Tcp(host, port) if host.contains(':') => format!("[{host}]:{port}"),
            Place::Tcp(host, port) => format!("{host}:{port}"),
            Place::Unix(path) => path.display().to_string(),
        };
        Address { name, place, settings, resolver: Arc::new(Resolver::new()) }
    }

    /// The same server, which is given less time.
    pub(super) fn briefly(&self) -> Address {
        Address { settings: self.settings.briefly(), ..self.clone() }
    }

    /// `host:port`, or the path, by which humans and the hash identify the server.
    pub(in crate::store) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the server has a host name, which may lead elsewhere.
    pub(in crate::store) fn has_name(&self) -> bool {
        matches!(&self.place, Place::Tcp(host, _) if host.parse::<IpAddr>().is_err())
    }

    /// The server in messages, such as `memcached at 10.0.0.7:11211`. `server`: what it is.
    pub(in crate::store) fn title(&self, server: &str) -> String {
        format!("{server} at {}", self.name)
    }
}
