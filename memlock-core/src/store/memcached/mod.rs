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
//! | `limit` | whether that is enough for an item |
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

#[cfg(any(fuzzing, test))]
pub use super::remote::dial_these;
#[cfg(all(feature = "admin", any(fuzzing, test)))]
pub use admin::fuzzed::Tool;
#[cfg(any(fuzzing, test))]
pub use command::Command;

use std::sync::Arc;

#[cfg(feature = "admin")]
use super::admin::Admin;
use super::remote::{self, Address, Evictions, Place, Protocol, Remote};
use super::url::Url;
use super::{Guarantees, Store};
use crate::clock::Clock;
use crate::error::Result;
use crate::name::{Key, Keyspace};
use connection::Connection;

const DEFAULT_PORT: u16 = 11211;

/// The protocol of `memcached:` and `memcached+unix:`.
#[derive(Debug)]
pub(crate) struct Memcached {
    /// The item from which stamps are drawn.
    stamp: Arc<Key>,
    /// The item in which all clients of a server agree on the guard.
    config: Key,
    evictions: Evictions,
}

impl Memcached {
    /// Parses the URL. No connection is opened until the first operation.
    pub(crate) fn open(url: &mut Url, clock: &Arc<dyn Clock>) -> Result<Arc<dyn Store>> {
        let hosts = url.authority()?.split(',');
        let places = hosts.map(|host| remote::split(url, host, DEFAULT_PORT));
        let places = places.collect::<Result<_>>()?;
        Memcached::at(places, url, clock)
    }

    /// Parses `memcached+unix:///path/of/socket`.
    pub(crate) fn open_unix(url: &mut Url, clock: &Arc<dyn Clock>) -> Result<Arc<dyn Store>> {
        Memcached::at(vec![remote::unix_socket(url)?], url, clock)
    }

    fn at(places: Vec<Place>, url: &mut Url, clock: &Arc<dyn Clock>) -> Result<Arc<dyn Store>> {
        let keys = Keyspace::new(url.get("prefix").unwrap_or_default())?;
        let (stamp, config) = (Arc::new(keys.internal("stamp")), keys.config());
        let protocol = Memcached { stamp, config, evictions: Evictions::take(url)? };
        Ok(Arc::new(Remote::new(protocol, places, url, clock)?))
    }
}

impl Protocol for Memcached {
    type Connection = Connection;

    const SERVER: &'static str = "memcached";

    fn dial(&self, address: &Address, clock: &Arc<dyn Clock>) -> Result<Connection> {
        Connection::dial(address, clock, &self.stamp, &self.config)
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees { evicts: self.evictions != Evictions::Refused, ..GUARANTEES }
    }

    fn evictions(&self) -> Evictions {
        self.evictions
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

    #[test]
    fn the_path_of_a_socket_is_read() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let open = |text: &str| Memcached::open_unix(&mut Url::parse(text)?, &clock);
        for text in ["memcached+unix:///run/a%20b?pool=1", "memcached+unix:/run/a%20b"] {
            assert_eq!(open(text).unwrap().nodes()[0].name, "/run/a b", "{text}");
        }
        for bad in ["memcached+unix://h", "memcached+unix:run/a", "memcached+unix:///a&b"] {
            let error = open(bad).unwrap_err();
            assert!(error.to_string().contains("memcached+unix:///path/of/socket"), "{error}");
        }
    }

    /// The surplus might be taken for the reply to the first request.
    #[test]
    fn a_server_that_says_more_than_it_was_asked_is_refused() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let url = format!("memcached://{address}?connect_timeout=20s&io_timeout=20s");
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
