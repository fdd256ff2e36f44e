//! Stores on one or several servers: everything except the protocol.
//!
//! | file | contents |
//! | --- | --- |
//! | `mod` | the store that is made of a protocol |
//! | `protocol` | what a protocol implements |
//! | `hosts` | the servers that a URL names, and which of them owns a route |
//! | `settings` | addresses, timeouts and the size of the pool |
//! | `server` | one server: when connections are opened, and when a failed batch is sent again |
//! | `idle` | its idle connections, and what is known of it |
//! | `probe` | whether a silent server answers again |
//! | `agreement` | what all clients of a server have to agree on |
//! | `resolve` | the addresses of a host name |
//! | `dial` | connecting |
//! | `stream` | TCP or a Unix socket |
//! | `socket` | one connection: deadlines, input and output |

mod agreement;
mod dial;
mod hosts;
mod idle;
mod probe;
mod protocol;
mod resolve;
mod server;
mod settings;
mod socket;
mod stream;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "admin")]
use super::admin::Admin;
use super::recovery::Guard;
use super::url::Url;
use super::{Epoch, Failure, Guarantees, Node, Op, Recovery, Reply, Route, Sent, Store};
use crate::clock::Clock;
#[cfg(feature = "admin")]
use crate::error::Error;
use crate::error::Result;
use crate::name::Key;
#[cfg(feature = "memcached")]
use agreement::Membership;
use hosts::Hosts;
use server::Server;

pub(super) use dial::Pin;
#[cfg(feature = "admin")]
pub(super) use dial::connect;
#[cfg(fuzzing)]
pub use dial::fuzzed::dial_these;
pub(super) use hosts::split;
pub(super) use protocol::{Connection, Protocol, aside};
#[allow(unused_imports, reason = "each store has the kind of clock that it has")]
pub(super) use protocol::{Reading, ServerTime};
#[cfg(any(feature = "memcached", feature = "redis"))]
pub(super) use settings::refuses_evictions;
pub(super) use settings::{Address, Place, Settings};
#[cfg(feature = "mysql")]
pub(super) use socket::lost;
pub(super) use socket::{Patience, Socket};
#[cfg(feature = "admin")]
pub(super) use stream::Stream;

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
            Some(_) => url.take_some_duration("guard")?.map(Guard::new).transpose()?,
            None => None,
        };
        let server = |place| Server::new(place, settings, guard, None, Arc::clone(clock));
        let servers = Hosts::new(url, places.into_iter().map(server))?;
        Ok(Remote { protocol, guard, servers })
    }

    /// Stores of one server each, which are the members of a quorum.
    #[cfg(feature = "memcached")]
    pub(super) fn members(
        protocol: &P,
        places: &[Place],
        url: &mut Url,
        clock: &Arc<dyn Clock>,
    ) -> Result<Vec<Arc<dyn Store>>>
    where
        P: Clone,
    {
        let settings = Settings::take(url)?;
        let guard = url.take_some_duration("guard")?.map(Guard::new).transpose()?;
        let all = places.iter().map(|place| Address::new(place.clone(), settings));
        let all = Hosts::new(url, all)?.all().cloned().collect();
        let quorum = Arc::new(Membership::new(all));
        let member = |place: &Place| {
            let quorum = Some(Arc::clone(&quorum));
            let server = Server::new(place.clone(), settings, guard, quorum, Arc::clone(clock));
            let servers = Hosts::new(url, [server].into_iter())?;
            Ok(Arc::new(Remote { protocol: protocol.clone(), guard, servers }) as Arc<dyn Store>)
        };
        places.iter().map(member).collect()
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
    fn run(&self, route: Route, ops: &[Op<'_>]) -> std::result::Result<Vec<Reply>, Failure> {
        self.run_while(route, ops, &|| {})
    }

    fn run_while(
        &self,
        route: Route,
        ops: &[Op<'_>],
        meanwhile: &dyn Fn(),
    ) -> std::result::Result<Vec<Reply>, Failure> {
        self.owner(route).run(&self.protocol, ops, meanwhile)
    }

    fn send<'a>(&'a self, route: Route, ops: &'a [Op<'a>]) -> Sent<'a> {
        self.owner(route).send(&self.protocol, ops)
    }

    fn server_of(&self, route: Route) -> usize {
        self.servers.place(route)
    }

    fn is_silent(&self, route: Route) -> bool {
        self.owner(route).is_silent()
    }

    fn probe(&self, route: Route, anew: Option<Duration>) {
        self.owner(route).probe(P::PROBE, anew);
    }

    fn removal_sql(&self, key: &Key, start: &[u8]) -> Option<String> {
        self.protocol.removal_sql(key, start)
    }

    fn disconnect(&self) {
        self.servers.all().for_each(Server::disconnect);
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

    fn recovers(&self, route: Route, life: Epoch) -> bool {
        self.owner(route).recovers(life)
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
        self.protocol.admin(self.server(node)?.address())
    }
}
