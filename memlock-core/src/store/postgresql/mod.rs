//! The PostgreSQL store: a table of one or several servers, over memlock's own sockets.
//!
//! Items are rows. A call of a function carries out one operation, in one statement in autocommit, so
//! that a pooler may pass it to any session, and no transaction is left open by a client that dies. A
//! batch is several calls in one packet. Numbers of versions and fences are drawn from a
//! sequence while the row is locked.
//!
//! | file | contents |
//! | --- | --- |
//! | `mod` | the URL |
//! | `settings` | user, password, database and parameters |
//! | `passwords` | the password file |
//! | `wire` | messages of the protocol |
//! | `ssl` | TLS, as `sslmode` says |
//! | `login` | the startup message, and the password |
//! | `about` | what a server tells about itself and the schema |
//! | `introduction` | what a server must be, and the settings of a session |
//! | `schema`, `tables.sql`, `functions.sql` | the tables and functions |
//! | `request` | operations to parameters of the functions, and their replies back |
//! | `connection` | one connection: a request to a call, and the reply to an answer |
//! | `connection/batch` | a batch: packets of requests, and what their answers mean |
//! | `errors` | errors that the server reports, and what to do |
//! | `admin`, `health` | the requests of tools |
//! | `standbys` | what is known of the clocks of a server's standbys |
//! | `promises` | what locks in a PostgreSQL promise |

mod about;
#[cfg(feature = "admin")]
mod admin;
mod connection;
mod errors;
#[cfg(feature = "admin")]
mod health;
mod introduction;
mod login;
mod passwords;
mod promises;
mod request;
mod schema;
mod settings;
mod ssl;
#[cfg(feature = "admin")]
mod standbys;
mod wire;

use std::sync::Arc;

#[cfg(feature = "admin")]
use super::admin::Admin;
use super::remote::{Address, Protocol, Remote};
use super::url::Url;
use super::{Guarantees, Store};
use crate::clock::Clock;
use crate::error::Result;
use crate::name::Key;
use connection::Connection;
use settings::Settings;

/// The protocol of `postgresql:` and `postgres:`.
#[derive(Debug)]
pub(crate) struct Postgresql {
    settings: Arc<Settings>,
}

impl Postgresql {
    /// Parses the URL. No connection is opened until the first operation.
    pub(crate) fn open(url: &mut Url, clock: &Arc<dyn Clock>) -> Result<Arc<dyn Store>> {
        let (settings, places) = Settings::take(url)?;
        let protocol = Postgresql { settings: Arc::new(settings) };
        Ok(Arc::new(Remote::new(protocol, places, url, clock)?))
    }

    /// The statements that create the schema that a URL names.
    pub(crate) fn schema(url: &mut Url) -> Result<String> {
        Ok(settings::schema(url)?.text())
    }
}

impl Protocol for Postgresql {
    type Connection = Connection;

    const SERVER: &'static str = promises::SERVER;
    const CONNECTIONS_ARE_FEW: bool = true;

    fn dial(&self, address: &Address, clock: &Arc<dyn Clock>) -> Result<Connection> {
        let socket = self.settings.connect(address, clock)?;
        Connection::open(socket, address, &self.settings)
    }

    fn guarantees(&self) -> Guarantees {
        promises::guarantees(self.settings.schema.is_durable)
    }

    fn config(&self) -> Option<&Key> {
        self.settings.config.as_ref()
    }

    fn removal_sql(&self, key: &Key, start: &[u8]) -> Option<String> {
        Some(self.settings.schema.removal(key, start))
    }

    #[cfg(feature = "admin")]
    fn missing(&self, address: &Address) -> Option<String> {
        let tool = admin::Tool::connect(address, &self.settings).ok()?;
        tool.missing()
    }

    #[cfg(feature = "admin")]
    fn admin(&self, address: &Address) -> Result<Box<dyn Admin>> {
        Ok(Box::new(admin::Tool::connect(address, &self.settings)?))
    }
}
