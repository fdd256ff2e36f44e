//! Stores on one or several servers: everything except the protocol.
//!
//! | file | contents |
//! | --- | --- |
//! | `mod` | the store that is made of a protocol |
//! | `protocol` | what a protocol implements |
//! | `hosts` | the servers that a URL names, and which of them owns a route |
//! | `settings` | addresses, timeouts, the size of the pool, what is said of evictions |
//! | `server` | one server: its idle connections, and what is known of it |
//! | `server/exchange` | one batch, and when it is sent again |
//! | `evictions` | which batches are refused on a server that may evict locks |
//! | `agreement` | the guard on which all clients of a server have to agree |
//! | `resolver` | the addresses of a host name, and which of them is used |
//! | `dial` | connecting |
//! | `stream` | TCP or a Unix socket |
//! | `socket` | one connection: deadlines, input and output |
//! | `sweeps` | when a connection deletes the rows of items that ended |
//! | `tool` | a tool's connection, which is replaced when it was closed |

mod agreement;
mod dial;
mod evictions;
mod hosts;
mod protocol;
mod resolver;
mod server;
mod settings;
mod socket;
mod stream;
#[cfg(any(feature = "mysql", feature = "postgresql"))]
mod sweeps;
#[cfg(feature = "admin")]
mod tool;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "admin")]
use super::admin::Admin;
use super::recovery::Guard;
use super::url::Url;
use super::{Epoch, Guarantees, Node, Pending, Recovery, Request, Route, Silence, Store};
use crate::clock::Clock;
#[cfg(feature = "admin")]
use crate::error::Error;
use crate::error::Result;
use crate::lease::MIN_LEASE;
use crate::name::Key;
use hosts::Hosts;
use server::Server;
#[cfg(feature = "admin")]
use tool::Tool;

#[cfg(feature = "admin")]
pub(super) use dial::connect;
#[cfg(any(fuzzing, test))]
pub use dial::fuzzed::dial_these;
#[cfg(feature = "postgresql")]
pub(super) use hosts::bad_server;
pub(super) use hosts::split;
#[cfg(any(feature = "memcached", feature = "redis"))]
pub(super) use hosts::unix_socket;
pub(super) use protocol::{Connection, Protocol};
#[allow(unused_imports, reason = "each store has the kind of clock that it has")]
pub(super) use protocol::{Reading, ServerTime};
#[cfg(any(feature = "memcached", feature = "redis"))]
pub(super) use settings::Evictions;
pub(super) use settings::{Address, Place, Settings};
#[cfg(feature = "mysql")]
pub(super) use socket::lost;
pub(super) use socket::{Patience, Socket};
#[cfg(feature = "admin")]
pub(super) use stream::Stream;
#[cfg(feature = "mysql")]
pub(super) use sweeps::EXAMINED;
#[cfg(any(feature = "mysql", feature = "postgresql"))]
pub(super) use sweeps::SweepCounter;

/// The servers of a URL.
#[derive(Debug)]
pub(super) struct Remote<P: Protocol> {
    protocol: P,
    guard: Option<Guard>,
    servers: Hosts<Server<P>>,
}

impl<P: Protocol> Remote<P> {
    /// No connection is opened until the first operation.
    pub(super) fn new(
        protocol: P,
        places: Vec<Place>,
        url: &mut Url,
        clock: &Arc<dyn Clock>,
    ) -> Result<Remote<P>> {
        let settings = Settings::take(url)?;
        let guard = match protocol.config() {
            Some(_) => {
                url.take_some_duration("guard", MIN_LEASE, "60s")?.map(Guard::new).transpose()?
            }
            None => None,
        };
        let server = |place| Server::new(place, settings, guard, Arc::clone(clock));
        let servers = Hosts::new(url, places.into_iter().map(server))?;
        Ok(Remote { protocol, guard, servers })
    }

    fn owner(&self, route: Route) -> &Server<P> {
        self.servers.owner(route)
    }

    #[cfg(feature = "admin")]
    fn server(&self, node: usize) -> Result<&Server<P>> {
        self.servers.get(node).ok_or_else(|| Error::config("There is no such server."))
    }
}

impl<P: Protocol> Store for Remote<P> {
    fn send<'a>(&'a self, request: Request<'a>) -> Pending<'a> {
        self.owner(request.route).send(&self.protocol, request)
    }

    fn server_of(&self, route: Route) -> usize {
        self.servers.place(route)
    }

    fn silence(&self, route: Route) -> Option<Silence> {
        self.owner(route).silence()
    }

    fn removal_sql(&self, key: &Key, start: &[u8]) -> Option<String> {
        self.protocol.removal_sql(key, start)
    }

    fn disconnect(&self) {
        self.servers.all().for_each(Server::disconnect);
    }

    fn is_crowded(&self, route: Route) -> bool {
        self.owner(route).is_crowded()
    }

    fn rest(&self, route: Route, kept: usize) {
        if P::CONNECTIONS_ARE_FEW {
            self.owner(route).rest(kept);
        }
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees { guard: self.guard, ..self.protocol.guarantees() }
    }

    fn time(&self, route: Route) -> Option<Duration> {
        self.owner(route).time()
    }

    fn recovery(&self, route: Route) -> Option<Recovery> {
        self.owner(route).recovery()
    }

    fn recovers_for(&self, route: Route, life: Epoch) -> Duration {
        self.owner(route).recovers_for(life)
    }

    fn local_address(&self, route: Route) -> Option<IpAddr> {
        self.owner(route).local_address()
    }

    fn nodes(&self) -> Vec<Node> {
        let node = |server: &Server<P>| Node {
            name: server.address().name().to_owned(),
            title: server.address().title(P::SERVER),
            is_container: false,
            timeout: server.address().settings.io_timeout,
        };
        self.servers.all().map(node).collect()
    }

    #[cfg(feature = "admin")]
    fn missing(&self, node: usize) -> Option<String> {
        self.protocol.missing(self.server(node).ok()?.address())
    }

    #[cfg(feature = "admin")]
    fn admin(&self, node: usize) -> Result<Box<dyn Admin + '_>> {
        Ok(Box::new(Tool::connect(&self.protocol, self.server(node)?.address())?))
    }
}
