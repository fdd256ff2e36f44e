//! The memcached store: one or several servers, accessed by the meta protocol over memlock's own
//! sockets.
//!
//! | file | contents |
//! | --- | --- |
//! | `mod` | the URL, and which server owns a route |
//! | `settings` | timeouts, addresses and the size of the pool |
//! | `server` | one server: its idle connections, and when a failed batch is sent again |
//! | `dial` | resolving a host name, and connecting |
//! | `connection` | one socket: deadlines, framing, the check of opaques |
//! | `handshake` | what a server must be: its version, its cas, its life |
//! | `command` | the commands that carry out operations |
//! | `codec` | commands to bytes and replies back, by the `memcache` crate's meta layer |
//! | `admin` | the requests of tools: the keys and the health of a server |
//! | `life` | one life of a server: versions and fences |
//! | `ttl` | how long items live, and what that promises |

#[cfg(feature = "admin")]
mod admin;
mod codec;
mod command;
mod connection;
mod dial;
mod handshake;
mod life;
mod server;
mod settings;
mod ttl;

pub use life::Life;
pub use ttl::{GUARANTEES, Ttl};

#[cfg(fuzzing)]
pub use admin::fuzzed::Tool;
#[cfg(fuzzing)]
pub use command::Command;
#[cfg(fuzzing)]
pub use dial::fuzzed::dial_these;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "admin")]
use super::admin::Admin;
use super::url::Url;
use super::{Failure, Guarantees, Node, Op, Reply, Route, Store};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::hash::{fnv1a, mix};
use crate::name::Keyspace;
use server::Server;
use settings::Settings;

const DEFAULT_PORT: u16 = 11211;

/// The store for `memcached://host[:port][,host2…]`.
#[derive(Debug)]
pub(crate) struct Memcached {
    servers: Vec<Server>,
}

impl Memcached {
    /// As [`Memcached::new`], for the list of schemes.
    pub(crate) fn open(url: &mut Url, clock: &Arc<dyn Clock>) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(Memcached::new(url, clock)?))
    }

    /// Parses the URL. No connection is opened until the first operation.
    fn new(url: &mut Url, clock: &Arc<dyn Clock>) -> Result<Memcached> {
        let settings = Settings {
            connect_timeout: url.take_duration("connect_timeout", Duration::from_secs(1))?,
            io_timeout: url.take_duration("io_timeout", Duration::from_secs(1))?,
            pool: url.take_count("pool", 16)?,
        };
        let stamp = Keyspace::new(url.get("prefix").unwrap_or_default())
            .map_err(|error| url.refused("prefix", error))?
            .internal("stamp");
        let mut servers: Vec<Server> = Vec::new();
        for host in url.authority()?.split(',') {
            let (host, port) = split_host(url, host)?;
            let server = Server::new(host, port, settings, stamp.clone(), Arc::clone(clock));
            if servers.iter().any(|known| known.name() == server.name()) {
                return Err(Error::config(format!(
                    "{} is named twice.",
                    url.part("The server", server.name())
                )));
            }
            servers.push(server);
        }
        Ok(Memcached { servers })
    }

    /// Rendezvous hashing: the server with the highest weight for the route. A server that is down
    /// keeps its keys, because its locks may still be held behind a broken network: failing over
    /// would grant a lock twice.
    fn owner(&self, route: Route) -> &Server {
        &self.servers[self.place(route)]
    }

    fn place(&self, route: Route) -> usize {
        // `new` adds at least one server: splitting any text yields at least one part.
        (1..self.servers.len()).fold(0, |best, place| {
            let key = |place: usize| {
                let name = self.servers[place].name();
                (weight(name, route), name)
            };
            if key(place) > key(best) { place } else { best }
        })
    }
}

impl Store for Memcached {
    fn run(&self, route: Route, ops: &[Op<'_>]) -> std::result::Result<Vec<Reply>, Failure> {
        self.owner(route).run(ops, &|| {})
    }

    fn run_while(
        &self,
        route: Route,
        ops: &[Op<'_>],
        meanwhile: &dyn Fn(),
    ) -> std::result::Result<Vec<Reply>, Failure> {
        self.owner(route).run(ops, meanwhile)
    }

    fn server_of(&self, route: Route) -> usize {
        self.place(route)
    }

    fn is_silent(&self, route: Route) -> bool {
        self.owner(route).is_silent()
    }

    fn disconnect(&self) {
        self.servers.iter().for_each(Server::disconnect);
    }

    fn guarantees(&self) -> Guarantees {
        GUARANTEES
    }

    fn time(&self, route: Route) -> Option<Duration> {
        self.owner(route).time()
    }

    fn local_address(&self, route: Route) -> Option<IpAddr> {
        self.owner(route).local_address()
    }

    fn nodes(&self) -> Vec<Node> {
        let node = |server: &Server| Node {
            name: server.name().to_owned(),
            title: format!("memcached at {}", server.name()),
            is_container: false,
            timeout: server.address().io_timeout,
        };
        self.servers.iter().map(node).collect()
    }

    #[cfg(feature = "admin")]
    fn admin(&self, node: usize) -> Result<Box<dyn Admin + '_>> {
        let server =
            self.servers.get(node).ok_or_else(|| Error::config("There is no such server."))?;
        Ok(Box::new(admin::Text::connect(&server.address())?))
    }
}

/// A server's weight for a route: the SplitMix64 finalizer over the route's hash and the FNV-1a of
/// `host:port`. Pinned by golden vectors: programs of different versions must agree on it.
fn weight(server: &str, route: Route) -> u64 {
    mix(fnv1a(server.as_bytes()) ^ route.hash())
}

fn split_host(url: &Url, text: &str) -> Result<(String, u16)> {
    let bad = |why: &str| {
        Err(Error::config(format!(
            "{} {why}: write host, host:port or [ipv6]:port, and commas between servers.",
            url.part("The server", text)
        )))
    };
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, rest)) => match rest.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None => return bad("has text behind ']'"),
        },
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return bad("has no host");
    }
    let port = match port.map(str::parse) {
        None => DEFAULT_PORT,
        Some(Ok(port)) if port != 0 => port,
        Some(_) => return bad("has no port from 1 to 65535"),
    };
    Ok((host.to_ascii_lowercase(), port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::error::ErrorKind;
    use crate::name::Keyspace;
    use std::io::Write;

    fn open(text: &str) -> Result<Memcached> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        Memcached::new(&mut Url::parse(text)?, &clock)
    }

    #[test]
    fn hosts_are_read_in_every_form() {
        for (text, name) in [
            ("memcached://localhost", "localhost:11211"),
            ("memcached://LocalHost:1", "localhost:1"),
            ("memcached://[::1]", "[::1]:11211"),
            ("memcached://[::1]:12", "[::1]:12"),
        ] {
            assert_eq!(open(text).unwrap().servers[0].name(), name);
        }
        for bad in [
            "memcached://",
            "memcached://a,",
            "memcached://:1",
            "memcached://a:0",
            "memcached://a:x",
            "memcached://a:70000",
            "memcached://[::1]x",
            "memcached://::1",
            "memcached://a,a:11211",
        ] {
            assert!(open(bad).is_err(), "{bad}");
        }
    }

    /// The surplus might be taken for the reply to the first request.
    #[test]
    fn a_server_that_says_more_than_it_was_asked_is_refused() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("memcached://{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let said = "STAT pid 5\r\nSTAT uptime 1\r\nSTAT time 9\r\nSTAT version 1.6.18\r\nEND\r\n\
                STAT cas_enabled yes\r\nEND\r\nSTORED\r\n";
            stream.write_all(said.as_bytes()).unwrap();
            stream
        });
        let key = Keyspace::default().lock(b"x");
        let append = [Op::Append { key: &key, value: b"v" }];
        let failure = open(&url).unwrap().run(Route::of(&key), &append).unwrap_err();
        assert_eq!((failure.error.kind(), failure.sent), (ErrorKind::Protocol, false));
        drop(server.join().unwrap());
    }

    /// Other programs, and other versions of memlock, must find the same server.
    #[test]
    fn the_choice_of_server_is_pinned() {
        let store = open("memcached://a,b,c:11212").unwrap();
        let chosen: Vec<&str> = ["x", "y", "z", "payments/42", "cron", "ü"]
            .iter()
            .map(|name| store.owner(Route::of(&Keyspace::default().lock(name.as_bytes()))).name())
            .collect();
        assert_eq!(chosen, ["c:11212", "a:11211", "b:11211", "a:11211", "b:11211", "c:11212"]);
        let route = Route::of(&Keyspace::default().lock(b"x"));
        assert_eq!(route.hash(), 0x4dca128b630470ca);
        assert_eq!(weight("a:11211", route), 0x506b0f699d7ab001);
    }

    #[test]
    fn the_order_of_servers_does_not_matter_and_the_load_is_spread() {
        let (one, two) = (open("memcached://a,b,c").unwrap(), open("memcached://c,a,b").unwrap());
        let mut load = std::collections::HashMap::new();
        for number in 0..3000 {
            let route = Route::of(&Keyspace::default().lock(format!("name {number}").as_bytes()));
            assert_eq!(one.owner(route).name(), two.owner(route).name());
            *load.entry(one.owner(route).name()).or_insert(0) += 1;
        }
        assert!(load.values().all(|&share| (850..1150).contains(&share)), "{load:?}");
    }
}
