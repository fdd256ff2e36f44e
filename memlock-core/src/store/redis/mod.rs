//! The Redis store: one or several servers of Redis or Valkey, over memlock's own sockets.
//!
//! | file | contents |
//! | --- | --- |
//! | `mod` | the forms of the URL |
//! | `settings` | user, password, database and parameters |
//! | `connection` | one connection: a batch to commands, their replies, and the fence |
//! | `handshake` | logging in, and what a server must be |
//! | `retention` | whether a server evicts when its memory is full |
//! | `request` | operations to commands, by the `redis` crate, and their replies back |
//! | `packed` | the commands of each acquisition and release by hand, and their replies |
//! | `script.lua` | one operation in one atomic step, for what plain commands cannot do |
//! | `fence.lua` | raises the counter of fences |
//! | `replies` | where a reply ends; its value by the `redis` crate |
//! | `errors` | errors that the server replies with, and what to do |
//! | `admin`, `health` | the requests of tools: the keys and the health of a server |
//! | `replicas` | its replicas, and how far their clocks are from its own |
//! | `promises` | what locks on a Redis promise |

#[cfg(feature = "admin")]
mod admin;
mod connection;
mod errors;
mod handshake;
#[cfg(feature = "admin")]
mod health;
mod packed;
mod promises;
#[cfg(feature = "admin")]
mod replicas;
mod replies;
mod request;
mod retention;
mod settings;

use std::sync::Arc;

#[cfg(feature = "admin")]
use super::admin::Admin;
use super::remote::{self, Address, Evictions, Place, Protocol, Remote, Socket};
#[cfg(feature = "tls")]
use super::tls::Tls;
use super::url::Url;
use super::{Guarantees, Store};
use crate::clock::Clock;
use crate::error::Result;
use crate::name::Key;
use connection::Connection;
use settings::Settings;

const DEFAULT_PORT: u16 = 6379;

/// The protocol of `redis:`, `rediss:` and `redis+unix:`.
#[derive(Clone, Debug)]
pub(crate) struct Redis {
    settings: Arc<Settings>,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

impl Redis {
    /// Parses `redis://[[user]:password@]host[:port][,host2…][/database]`. No connection is opened
    /// until the first operation.
    pub(crate) fn open(url: &mut Url, clock: &Arc<dyn Clock>) -> Result<Arc<dyn Store>> {
        let (protocol, places) = Redis::of_hosts(url)?;
        Ok(Arc::new(Remote::new(protocol, places, url, clock)?))
    }

    /// Parses `rediss://…`: the same, encrypted.
    #[cfg(feature = "tls")]
    pub(crate) fn open_tls(url: &mut Url, clock: &Arc<dyn Clock>) -> Result<Arc<dyn Store>> {
        let (protocol, places) = Redis::of_hosts(url)?;
        let protocol = Redis { tls: Some(Tls::take(url)?), ..protocol };
        Ok(Arc::new(Remote::new(protocol, places, url, clock)?))
    }

    /// Parses `redis+unix:///path/of/socket?db=N`, with `user=` and `password=`.
    pub(crate) fn open_unix(url: &mut Url, clock: &Arc<dyn Clock>) -> Result<Arc<dyn Store>> {
        let place = remote::unix_socket(url)?;
        let (user, password) = (url.take("user"), url.take_secret("password"));
        let database = url.take("db");
        let settings = Settings::take(url, user, password, database.as_deref())?;
        let protocol = Redis::new(settings);
        Ok(Arc::new(Remote::new(protocol, vec![place], url, clock)?))
    }

    fn of_hosts(url: &mut Url) -> Result<(Redis, Vec<Place>)> {
        let account = url.account()?;
        let hosts = account.hosts.split(',').map(|host| remote::split(url, host, DEFAULT_PORT));
        let places = hosts.collect::<Result<_>>()?;
        let (user, password, path) = (account.user, account.password, account.path);
        let settings = Settings::take(url, user, password, path.as_deref())?;
        Ok((Redis::new(settings), places))
    }

    fn new(settings: Settings) -> Redis {
        Redis {
            settings: Arc::new(settings),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    fn connect(&self, address: &Address, clock: &Arc<dyn Clock>) -> Result<Socket> {
        let socket = Socket::connect(address, Redis::SERVER, clock)?;
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return socket.encrypt(tls, address);
        }
        Ok(socket)
    }
}

impl Protocol for Redis {
    type Connection = Connection;

    const SERVER: &'static str = "Redis";

    fn dial(&self, address: &Address, clock: &Arc<dyn Clock>) -> Result<Connection> {
        Connection::introduce(self.connect(address, clock)?, &self.settings)
    }

    fn guarantees(&self) -> Guarantees {
        let evicts = self.settings.evictions != Evictions::Refused;
        Guarantees { evicts, ..promises::GUARANTEES }
    }

    fn evictions(&self) -> Evictions {
        self.settings.evictions
    }

    fn config(&self) -> Option<&Key> {
        Some(&self.settings.config)
    }

    #[cfg(feature = "admin")]
    fn admin(&self, address: &Address) -> Result<Box<dyn Admin>> {
        Ok(Box::new(admin::Tool::connect(self, address)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::store::schemes;

    fn open(text: &str) -> Result<Arc<dyn Store>> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        schemes::connect(text, &clock)
    }

    fn settings(text: &str) -> Result<Settings> {
        let mut url = Url::parse(text)?;
        let (redis, _) = Redis::of_hosts(&mut url)?;
        Ok(Arc::try_unwrap(redis.settings).unwrap())
    }

    #[test]
    fn urls_are_read_in_every_form() {
        for (text, name) in [
            ("redis://localhost", "localhost:6379"),
            ("redis://:pw@localhost:1/3", "localhost:1"),
            ("redis://u:p%40w@[::1]/", "[::1]:6379"),
            ("redis://h?evictions=refuse", "h:6379"),
            ("redis+unix:///run/redis.sock?db=2", "/run/redis.sock"),
        ] {
            assert_eq!(open(text).unwrap().nodes()[0].name, name, "{text}");
        }
        for bad in [
            "redis:x",
            "redis://",
            "redis://h/x",
            "redis://h/-1",
            "redis://h:0",
            "redis://h,h:6379",
            "redis://%4@h",
            "redis://h?evictions=no",
            "redis://h?tls_ca=/x",
            "redis+unix://h",
            "redis+unix:///s?db=x",
        ] {
            assert!(open(bad).is_err(), "{bad}");
        }
        let error = open("redis://u:secret@h/x").unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn users_and_passwords_are_told_apart() {
        let read = |text| {
            let settings = settings(text).unwrap();
            (settings.user, settings.password.map(|password| password.0), settings.database)
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(read("redis://h"), (None, None, 0));
        assert_eq!(read("redis://:p%3Aw@h/7"), (None, some("p:w"), 7));
        assert_eq!(read("redis://u:pw@h,i"), (some("u"), some("pw"), 0));
        assert!(settings("redis://u@h").is_err());
        assert!(!format!("{:?}", settings("redis://u:secret@h").unwrap()).contains("secret"));
    }
}
