//! A store: a function from a batch of operations to replies. One call is one round trip.
//!
//! Everything above is written once over this trait. A store decides nothing: each operation is
//! atomic on its own, and what a reply means is the primitive's business. What it promises stands
//! in its [`Guarantees`]. A test store is a wrapper that loses, delays, evicts or restarts; a new
//! store is one folder, plus one line in [`schemes`].

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

#[cfg(feature = "admin")]
use crate::error::{Error, Result};
#[cfg(feature = "admin")]
use admin::Admin;

pub mod admin;
pub mod guarantees;
#[cfg(feature = "memcached")]
pub mod memcached;
pub mod memory;
mod ops;
mod route;
pub mod schemes;
#[cfg(feature = "sqlite")]
mod sqlite;
mod url;

pub use admin::Node;
pub use guarantees::{ClockOf, FencesRise, Guarantees, Scope, Survives};
pub use ops::{Epoch, Expiry, Failure, Item, Op, Reply, Returns, Stored, Version};
pub use route::Route;
pub(crate) use url::Url;
pub use url::without_password;

/// A place that keeps items with versions and a time to live.
pub trait Store: Send + Sync + fmt::Debug {
    /// Runs `ops` in order on the server that owns `route`, each atomic on its own, in one round
    /// trip, and answers each with one reply.
    ///
    /// # Errors
    /// A [`Failure`] says whether the server may have got the request.
    fn run(&self, route: Route, ops: &[Op<'_>]) -> std::result::Result<Vec<Reply>, Failure>;

    /// As [`Store::run`], and calls `meanwhile`, at most once, as soon as the request has left; a
    /// store that cannot tell when that is calls it before.
    ///
    /// # Errors
    /// As [`Store::run`].
    fn run_while(
        &self,
        route: Route,
        ops: &[Op<'_>],
        meanwhile: &dyn Fn(),
    ) -> std::result::Result<Vec<Reply>, Failure> {
        meanwhile();
        self.run(route, ops)
    }

    /// Which of several servers owns `route`: what goes to one of them can go in one batch.
    fn server_of(&self, _route: Route) -> usize {
        0
    }

    /// Whether the server that owns `route` did not answer its last request in time, a short while
    /// ago. Whatever can do without that server then leaves it alone; calls of the user are tried
    /// all the same.
    fn is_silent(&self, _route: Route) -> bool {
        false
    }

    /// Closes the idle connections.
    fn disconnect(&self) {}

    /// What it promises.
    fn guarantees(&self) -> Guarantees;

    /// The time of the server that owns `route`, since its own epoch, as far as it is known without
    /// a request: rather too late than too early. It is the time of [`Expiry::At`]. `None` before
    /// the first contact.
    fn time(&self, route: Route) -> Option<Duration>;

    /// The address by which this process was last connected to the server that owns `route`: where
    /// other clients of that server can most likely reach us. `None` when there is none.
    fn local_address(&self, _route: Route) -> Option<IpAddr> {
        None
    }

    /// The servers, or what keeps the items in their place, in the order of [`Store::server_of`].
    /// There is at least one.
    fn nodes(&self) -> Vec<Node>;

    /// A tool's own connection to one of the nodes.
    ///
    /// # Errors
    /// As for any read; [`ErrorKind::Config`](crate::ErrorKind::Config) where there is nothing to
    /// be examined.
    #[cfg(feature = "admin")]
    fn admin(&self, _node: usize) -> Result<Box<dyn Admin + '_>> {
        Err(Error::config("Nothing can be examined there."))
    }
}
