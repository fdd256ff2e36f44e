//! The memcached store: one or several servers, accessed by the meta protocol over memlock's own
//! sockets.
//!
//! | file | contents |
//! | --- | --- |
//! | `mod` | the URL |
//! | `connection` | one connection: a batch to commands, framing, the check of opaques |
//! | `handshake` | what a server must be: its version, its cas, its life |
//! | `command` | the commands that carry out operations |
//! | `codec` | commands to bytes and replies back, by the `memcache` crate's meta layer |
//! | `admin` | the requests of tools: the keys and the health of a server |
//! | `life` | one life of a server: versions and fences |
//! | `retention` | what a full server keeps |
//! | `limit` | whether it keeps what an operation stores |
//! | `ttl` | how long items live, and what that promises |

#[cfg(feature = "admin")]
mod admin;
mod codec;
mod command;
mod connection;
mod handshake;
mod life;
mod limit;
mod retention;
mod ttl;

pub use life::Life;
pub use ttl::{GUARANTEES, Ttl};

#[cfg(fuzzing)]
pub use super::remote::dial_these;
#[cfg(fuzzing)]
pub use admin::fuzzed::Tool;
#[cfg(fuzzing)]
pub use command::Command;

use std::sync::Arc;

#[cfg(feature = "admin")]
use super::admin::Admin;
use super::quorum::{self, Quorum};
use super::remote::{self, Address, Pin, Protocol, Remote};
use super::url::Url;
use super::{Guarantees, Store};
use crate::clock::Clock;
use crate::error::Result;
use crate::name::{Key, Keyspace};
use connection::Connection;
use retention::Demands;

const DEFAULT_PORT: u16 = 11211;

/// The protocol of `memcached://host[:port][,host2…]`.
#[derive(Clone, Debug)]
pub(crate) struct Memcached {
    /// The item from which stamps are drawn.
    stamp: Arc<Key>,
    /// The item on which all clients of a server agree.
    config: Key,
    demands: Demands,
}

impl Memcached {
    /// Parses the URL. No connection is opened until the first operation.
    pub(crate) fn open(url: &mut Url, clock: &Arc<dyn Clock>) -> Result<Arc<dyn Store>> {
        let keys = Keyspace::new(url.get("prefix").unwrap_or_default())
            .map_err(|error| url.refused("prefix", error))?;
        let hosts = url.authority()?.split(',');
        let places = hosts.map(|host| remote::split(url, host, DEFAULT_PORT));
        let places = places.collect::<Result<Vec<_>>>()?;
        let (stamp, config) = (Arc::new(keys.internal("stamp")), keys.config());
        let is_quorum = quorum::is_requested(url)?;
        // Members that evict votes or counters would make a majority of no use.
        let no_evictions = remote::refuses_evictions(url, is_quorum)?;
        let demands = Demands { no_evictions, no_flush: is_quorum };
        let protocol = Memcached { stamp, config, demands };
        if is_quorum {
            let members = Remote::members(&protocol, &places, url, clock)?;
            return Ok(Arc::new(Quorum::new(members, Arc::clone(clock))?));
        }
        Ok(Arc::new(Remote::new(protocol, places, url, clock)?))
    }
}

impl Protocol for Memcached {
    type Connection = Connection;

    const SERVER: &'static str = "memcached";
    const PROBE: &'static [u8] = b"version\r\n";

    fn dial(
        &self,
        address: &Address,
        pinned: Option<Pin>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Connection> {
        let Memcached { stamp, config, demands } = self;
        Connection::dial(address, pinned, clock, stamp, config, *demands)
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees { evicts: !self.demands.no_evictions, ..GUARANTEES }
    }

    fn config(&self) -> Option<&Key> {
        Some(&self.config)
    }

    #[cfg(feature = "admin")]
    fn admin(&self, address: &Address) -> Result<Box<dyn Admin>> {
        Ok(Box::new(admin::Text::connect(address)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::error::ErrorKind;
    use crate::store::{Op, Route};
    use std::io::Write;

    fn open(text: &str) -> Result<Arc<dyn Store>> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        Memcached::open(&mut Url::parse(text)?, &clock)
    }

    /// The surplus might be taken for the reply to the first request.
    #[test]
    fn a_server_that_says_more_than_it_was_asked_is_refused() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("memcached://{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let said = "STAT pid 5\r\nSTAT uptime 1\r\nSTAT time 9\r\nSTAT version 1.6.18\r\nEND\r\n\
                STAT cas_enabled yes\r\nEND\r\nEN O0\r\nSTORED\r\n";
            stream.write_all(said.as_bytes()).unwrap();
            stream
        });
        let key = Keyspace::default().lock(b"x");
        let append = [Op::Append { key: &key, value: b"v" }];
        let failure = open(&url).unwrap().run(Route::of(&key), &append).unwrap_err();
        assert_eq!((failure.error.kind(), failure.sent), (ErrorKind::Protocol, false));
        drop(server.join().unwrap());
    }
}
