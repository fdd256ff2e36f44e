//! A store: a function from a batch of operations to replies. One call is one round trip.
//!
//! Everything above a store is written once over this trait. A store makes no decisions: each
//! operation is atomic on its own, and the primitive interprets the replies. What a store promises
//! is in its [`Guarantees`]. A test store is a wrapper that loses, delays, evicts or restarts; a
//! new store is one folder, plus one line in [`schemes`].

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use crate::clock::Moment;
#[cfg(feature = "admin")]
use crate::error::{Error, Result};
use crate::name::Key;
#[cfg(feature = "admin")]
use admin::Admin;

pub mod admin;
pub mod guarantees;
#[cfg(feature = "memcached")]
pub mod memcached;
pub mod memory;
#[cfg(feature = "mysql")]
mod mysql;
mod ops;
mod pending;
#[cfg(feature = "postgresql")]
mod postgresql;
pub mod recovery;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "memcached", feature = "mysql", feature = "postgresql", feature = "redis"))]
mod remote;
mod route;
#[cfg(any(feature = "mysql", feature = "postgresql", feature = "redis"))]
mod said;
pub mod schemes;
#[cfg(any(feature = "memcached", feature = "mysql", feature = "postgresql", feature = "redis"))]
mod send;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "tls")]
mod tls;
mod url;

pub use admin::Node;
pub use guarantees::{ClockOf, FencesRise, Guarantees, Order, Scope, Survives};
pub use ops::{Admission, Epoch, Expiry, Failure, Item, Op, Reply, Returns, Stored, Version};
pub use pending::{Pending, Replies, Request, TimeLimit};
pub use recovery::{Admitted, Recovery};
pub use route::Route;
pub(crate) use url::Url;
pub use url::{has_secret_url, without_password};

/// A store of items with versions and a time to live.
pub trait Store: Send + Sync + fmt::Debug {
    /// Sends a request, and leaves the replies to be received. Both are one round trip.
    fn send<'a>(&'a self, request: Request<'a>) -> Pending<'a>;

    /// Sends a request with the usual time limit, and receives the replies.
    ///
    /// # Errors
    /// As [`Pending::receive`].
    fn run(&self, route: Route, ops: &[Op<'_>]) -> Replies {
        self.send(Request::new(route, ops)).receive()
    }

    /// The index of the server that owns `route`: operations on the same server can share a batch.
    fn server_of(&self, _route: Route) -> usize {
        0
    }

    /// Whether the server that owns `route` recently did not answer a request in time. Steps that
    /// can do without that server then do not contact it; calls of the user are tried all the same.
    fn silence(&self, _route: Route) -> Option<Silence> {
        None
    }

    /// The SQL statement that removes the item if its value begins with these bytes, for a
    /// transaction of the caller's on the same database. It changes one row, or none if the value is
    /// another one. `None` if the store is not a database that callers have transactions on.
    fn removal_sql(&self, _key: &Key, _start: &[u8]) -> Option<String> {
        None
    }

    /// Closes the idle connections, and keeps none from now on.
    fn disconnect(&self) {}

    /// Whether the server that owns `route` recently refused a connection because it had too many.
    fn is_crowded(&self, _route: Route) -> bool {
        false
    }

    /// Called before a thread sleeps for long that has used the server that owns `route`. Where
    /// servers have few connections to give, one is closed, unless no more than `kept` of them are
    /// idle.
    fn rest(&self, _route: Route, _kept: usize) {}

    /// What the store promises.
    fn guarantees(&self) -> Guarantees;

    /// The time of the server that owns `route`, since the server's own epoch, as far as known
    /// without a request; rather too late than too early. [`Expiry::At`] refers to this time.
    /// `None` before the first contact.
    fn time(&self, route: Route) -> Option<Duration>;

    /// If the server that owns `route` gives no new grants yet, for how long, as far as known
    /// without a request.
    fn recovery(&self, _route: Route) -> Option<Recovery> {
        None
    }

    /// For how long the server that owns `route` gives no new grants yet in this life, at most, as
    /// far as known without a request: for the whole time, if the last life that was seen is
    /// another one. Zero if it gives them.
    fn recovers_for(&self, _route: Route, _life: Epoch) -> Duration {
        Duration::ZERO
    }

    /// The address from which this process last connected to the server that owns `route`: the
    /// address at which other clients of that server can most likely reach this process. `None` if
    /// there is none.
    fn local_address(&self, _route: Route) -> Option<IpAddr> {
        None
    }

    /// The servers, or what stores the items instead, in the order of [`Store::server_of`]. There
    /// is at least one.
    fn nodes(&self) -> Vec<Node>;

    /// What is missing on this node as long as nothing has been stored there, as a sentence; `None`
    /// if nothing is. Creates nothing, unlike the operations.
    #[cfg(feature = "admin")]
    fn missing(&self, _node: usize) -> Option<String> {
        None
    }

    /// A tool's own connection to one of the nodes.
    ///
    /// # Errors
    /// As for any read; [`ErrorKind::Config`](crate::ErrorKind::Config) if the store cannot be
    /// examined.
    #[cfg(feature = "admin")]
    fn admin(&self, _node: usize) -> Result<Box<dyn Admin + '_>> {
        Err(Error::config("Nothing can be examined there."))
    }
}

/// A server that did not answer a request in time.
#[derive(Clone, Copy, Debug)]
pub struct Silence {
    /// Since when.
    pub since: Moment,
    /// How long after its beginning a call that tries once may still ask it
    /// [briefly](TimeLimit::Brief).
    pub patience: Duration,
}
