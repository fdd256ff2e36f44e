//! The store in a table of a MySQL or MariaDB, over memlock's own sockets.
//!
//! An item is a row of one table. Each operation is one statement, which commits itself; the
//! statements of a batch are sent in one packet.
//!
//! | file | contents |
//! | --- | --- |
//! | `mod` | the URL |
//! | `settings`, `account` | what a connection needs; the user and the password |
//! | `packets` | packets over a socket, by the `mysql_common` crate |
//! | `login`, `key` | the server's greeting and its challenges; encrypting a password |
//! | `handshake` | the session, and what a server tells about itself |
//! | `connection` | one connection: a batch to requests, and their replies back |
//! | `statements` | operations to statements, and what the replies to them mean |
//! | `prepared` | prepared statements, for the operations that locks consist of |
//! | `schema` | the table |
//! | `sweep` | removing rows that are not needed any more |
//! | `errors` | errors that the server replies with, and what to do |
//! | `admin`, `health` | the requests of tools: the keys and the health of a server |
//! | `promises` | what locks in a table promise |

mod account;
#[cfg(feature = "admin")]
mod admin;
mod connection;
mod errors;
mod handshake;
#[cfg(feature = "admin")]
mod health;
mod key;
mod login;
mod packets;
mod prepared;
mod promises;
mod schema;
mod settings;
mod statements;
mod sweep;

use std::path::PathBuf;
use std::sync::Arc;

#[cfg(feature = "admin")]
use super::admin::Admin;
use super::remote::{self, Address, Place, Protocol, Remote, Socket};
#[cfg(feature = "tls")]
use super::tls::Tls;
use super::url::Url;
use super::{Guarantees, Store};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::name::Key;
use account::Account;
use connection::Connection;
use login::Transport;
use packets::Wire;
use schema::Engine;
use settings::Settings;

const DEFAULT_PORT: u16 = 3306;

/// The protocol of `mysql:` and `mariadb:`.
#[derive(Debug)]
pub(crate) struct MySql {
    settings: Arc<Settings>,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

impl MySql {
    /// Parses `mysql://user:password@host[:port][,host2…]/database`. No connection is opened until the
    /// first operation.
    pub(crate) fn open(url: &mut Url, clock: &Arc<dyn Clock>) -> Result<Arc<dyn Store>> {
        let (protocol, places) = MySql::parse(url)?;
        Ok(Arc::new(Remote::new(protocol, places, url, clock)?))
    }

    fn parse(url: &mut Url) -> Result<(MySql, Vec<Place>)> {
        let account = url.account()?;
        let (user, password, database) = (account.user, account.password, account.path);
        let hosts = account.hosts.to_owned();
        let database = database.ok_or_else(|| {
            Error::config(format!(
                "{} names no database: write {}://user:password@host/database.",
                url.shown(),
                url.scheme
            ))
        })?;
        let places = match url.take("socket") {
            Some(path) if path.starts_with('/') && !hosts.contains(',') => {
                vec![Place::Unix(PathBuf::from(path))]
            }
            Some(path) => {
                return Err(url.bad_parameter(
                    "socket",
                    &path,
                    "is for one server, and an absolute path.",
                ));
            }
            None => hosts
                .split(',')
                .map(|host| remote::split(url, host, DEFAULT_PORT))
                .collect::<Result<_>>()?,
        };
        let engine = MySql::engine(url)?;
        let mode = url.take("tls");
        if let Some(mode) = mode.as_deref().filter(|&mode| mode != "verify") {
            return Err(url.bad_parameter(
                "tls",
                mode,
                "is not verify, by which connections are encrypted and the server's certificate is \
                 verified.",
            ));
        }
        #[cfg(not(feature = "tls"))]
        if mode.is_some() {
            return Err(Error::config("This memlock was built without the feature tls."));
        }
        let protocol = MySql {
            settings: Arc::new(Settings {
                account: Account::complete(user, password),
                database,
                engine,
            }),
            #[cfg(feature = "tls")]
            tls: mode.map(|_| Tls::take(url)).transpose()?,
        };
        Ok((protocol, places))
    }

    fn engine(url: &mut Url) -> Result<Engine> {
        let Some(name) = url.take("engine") else { return Ok(Engine::InnoDb) };
        Engine::from_name(&name)
            .ok_or_else(|| url.bad_parameter("engine", &name, "is neither InnoDB nor MEMORY."))
    }

    /// The statement that creates the table, for somebody who may run it.
    pub(crate) fn schema(url: &mut Url) -> Result<String> {
        Ok(format!("{};\n", MySql::engine(url)?.definition()))
    }

    /// Connects and logs in.
    fn connect(&self, address: &Address, clock: &Arc<dyn Clock>) -> Result<Wire> {
        let socket = Socket::connect(address, MySql::SERVER, clock)?;
        let wire = Wire::new(socket, self.settings.account.secret());
        let transport = match address.place {
            Place::Unix(_) => Transport::Unix,
            Place::Tcp(..) => Transport::Plain,
        };
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let encrypt = |socket: Socket| socket.encrypt(tls, address);
            return login::login(wire, &self.settings, transport, Some(&encrypt));
        }
        login::login(
            wire,
            &self.settings,
            transport,
            #[cfg(feature = "tls")]
            None,
        )
    }
}

impl Protocol for MySql {
    type Connection = Connection;

    const SERVER: &'static str = "MySQL";
    const CONNECTIONS_ARE_FEW: bool = true;

    fn dial(&self, address: &Address, clock: &Arc<dyn Clock>) -> Result<Connection> {
        let wire = self.connect(address, clock)?;
        Connection::introduce(wire, &self.settings, address.settings.io_timeout)
    }

    fn guarantees(&self) -> Guarantees {
        promises::guarantees(self.settings.engine)
    }

    fn removal_sql(&self, key: &Key, start: &[u8]) -> Option<String> {
        // A table in memory takes part in no transaction.
        (self.settings.engine == Engine::InnoDb)
            .then(|| statements::removal(&self.settings.database, key, start))
    }

    #[cfg(feature = "admin")]
    fn missing(&self, address: &Address) -> Option<String> {
        self.tool(address).ok()?.missing().ok()?
    }

    #[cfg(feature = "admin")]
    fn admin(&self, address: &Address) -> Result<Box<dyn Admin>> {
        Ok(Box::new(self.tool(address)?))
    }
}

#[cfg(feature = "admin")]
impl MySql {
    fn tool(&self, address: &Address) -> Result<admin::Tool> {
        let clock: Arc<dyn Clock> = Arc::new(crate::clock::SystemClock);
        let title = address.title(MySql::SERVER);
        let wire = self.connect(address, &clock);
        let wire = wire.map_err(|error| error.at(&title))?;
        admin::Tool::introduce(wire, title, &self.settings, address.settings.io_timeout)
    }
}
