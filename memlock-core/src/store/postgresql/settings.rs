//! User, password, database and parameters; and the places of the servers.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::passwords;
use super::schema::Schema;
use super::ssl::Ssl;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::name::{Key, Keyspace, percent_decode};
use crate::store::remote::{self, Address, Place, Socket};
use crate::store::url::{self, Secret, Url};

const DEFAULT_PORT: u16 = 5432;
/// Where servers have their sockets if the URL names no host: as Debian has it, and as PostgreSQL's
/// own default is.
const SOCKET_DIRECTORIES: [&str; 2] = ["/var/run/postgresql", "/tmp"];

/// What a connection needs.
pub(super) struct Settings {
    pub(super) user: String,
    /// Whether the user is of the URL.
    user_is_of_url: bool,
    /// Of the URL or of the environment.
    pub(super) password: Option<Secret>,
    pub(super) database: String,
    pub(super) schema: Schema,
    ssl: Ssl,
    /// The item in which all clients of a server agree on the guard; `None`: the tables are logged,
    /// so that nothing is forgotten.
    pub(super) config: Option<Key>,
    /// Whether it was logged that functions of an earlier memlock cannot be replaced.
    pub(super) has_warned: AtomicBool,
}

/// Without the login: a user may be a token.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").finish_non_exhaustive()
    }
}

impl Settings {
    /// Reads the URL: `postgresql://[user[:password]@][host[:port]][,…][/database][?…]`.
    pub(super) fn take(url: &mut Url) -> Result<(Settings, Vec<Place>)> {
        let bad = |url: &Url, why: &str| {
            Error::config(format!(
                "{} {why}: write postgresql://user:password@host:port/database, or \
                 postgresql:///database?host=/directory/of/the/socket.",
                url.shown()
            ))
        };
        let (given_host, given_port) = (url.take("host"), url.take("port"));
        let (given_user, given_password) = (url.take("user"), url.take_secret("password"));
        let given_database = url.take("dbname");
        let account = url.account()?;
        let authority = account.hosts.to_owned();
        let user = account.user.or(given_user);
        let password = account.password.or(given_password);
        let database = account.path.or(given_database);
        let port = match given_port.filter(|text| !text.is_empty()) {
            None => DEFAULT_PORT,
            Some(text) => url::port(&text).ok_or_else(|| {
                url.bad_parameter("port", &text, "is not a port from 1 to 65535.")
            })?,
        };
        let hosts = match (authority.is_empty(), given_host) {
            (true, host) => host.unwrap_or_default(),
            (false, None) => authority,
            (false, Some(_)) => return Err(bad(url, "has two hosts")),
        };
        let places =
            hosts.split(',').map(|host| place(url, host, port)).collect::<Result<Vec<_>>>()?;
        let user_is_of_url = user.is_some();
        let user = match user.or_else(|| variable("PGUSER")).or_else(passwords::own_user) {
            Some(user) => user,
            None => return Err(bad(url, "has no user, and this process's user has no name")),
        };
        let database = database.or_else(|| variable("PGDATABASE")).unwrap_or_else(|| user.clone());
        let schema = schema(url)?;
        let keys = Keyspace::new(url.get("prefix").unwrap_or_default())?;
        let settings = Settings {
            password: password.or_else(|| variable("PGPASSWORD").map(Secret)),
            config: (!schema.is_durable).then(|| keys.config()),
            schema,
            ssl: Ssl::take(url)?,
            user,
            user_is_of_url,
            database,
            has_warned: AtomicBool::new(false),
        };
        if [&settings.user, &settings.database].iter().any(|text| text.contains('\0')) {
            return Err(bad(url, "has a %00"));
        }
        Ok((settings, places))
    }

    /// Whether the user may be a token: it is of the URL, without a password.
    pub(super) fn may_be_token(&self) -> bool {
        self.password.is_none() && self.user_is_of_url
    }

    /// What messages must not show, as far as it is known before the login.
    pub(super) fn secret(&self) -> Option<Secret> {
        let user = || self.may_be_token().then(|| Secret(self.user.clone()));
        self.password.clone().or_else(user)
    }

    /// Connects, and encrypts the connection as the URL says.
    pub(super) fn connect(&self, address: &Address, clock: &Arc<dyn Clock>) -> Result<Socket> {
        self.ssl.connect(address, clock, self.secret())
    }
}

/// Takes the schema's name and `durable` from the URL.
pub(super) fn schema(url: &mut Url) -> Result<Schema> {
    let is_durable = match url.take("durable").as_deref() {
        None | Some("no") => false,
        Some("yes") => true,
        Some(other) => {
            return Err(url.bad_parameter("durable", other, "is neither yes nor no."));
        }
    };
    let name = url.take("schema").unwrap_or_else(|| "memlock".to_owned());
    Schema::new(&name, is_durable).ok_or_else(|| {
        url.bad_parameter(
            "schema",
            &name,
            "is not a schema's name: take 1 to 63 letters, digits and '_'.",
        )
    })
}

/// Parses a server. The directory of its socket may be named in place of a host: in the parameter `host`
/// with `/`, and in front of a database with `%2F`, where a port may be behind it. An empty port is the
/// default one.
fn place(url: &Url, text: &str, default_port: u16) -> Result<Place> {
    let bad = |why| remote::bad_server(url, text, why);
    let text = match text.strip_suffix(':') {
        Some(host) if !text.starts_with('/') => host,
        _ => text,
    };
    let is_encoded = text.get(..3).is_some_and(|start| start.eq_ignore_ascii_case("%2f"));
    let (path, port) = match text.split_once(':') {
        _ if text.starts_with('/') => (Some(text.to_owned()), None),
        Some((path, port)) if path.is_empty() || is_encoded => (decoded_path(path), Some(port)),
        None if text.is_empty() || is_encoded => (decoded_path(text), None),
        _ => return remote::split(url, text, default_port),
    };
    let directory = match path.ok_or_else(|| bad("has a broken %XX code, or a %00"))? {
        none if none.is_empty() => default_directory(),
        path => PathBuf::from(path),
    };
    let port =
        port.map_or(Ok(default_port), |port| url::port(port).ok_or_else(|| bad(url::NO_PORT)))?;
    Ok(Place::Unix(directory.join(format!(".s.PGSQL.{port}"))))
}

fn decoded_path(text: &str) -> Option<String> {
    let path = String::from_utf8(percent_decode(text)?).ok()?;
    (!path.contains('\0')).then_some(path)
}

fn default_directory() -> PathBuf {
    let found = SOCKET_DIRECTORIES.iter().map(PathBuf::from).find(|path| path.is_dir());
    found.unwrap_or_else(|| PathBuf::from("/tmp"))
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(Settings, Vec<Place>)> {
        let mut url = Url::parse(text)?;
        let read = Settings::take(&mut url)?;
        url.finish()?;
        Ok(read)
    }

    #[test]
    fn urls_are_read_as_libpq_reads_them() {
        let tcp = |host: &str, port| Place::Tcp(host.to_owned(), port);
        let unix = |path: &str| Place::Unix(PathBuf::from(path));
        for (text, user, database, place) in [
            ("postgresql://u@h", "u", "u", tcp("h", 5432)),
            ("postgres://u:pw@H:1/d", "u", "d", tcp("h", 1)),
            ("postgresql://u@[::1]:7/d", "u", "d", tcp("::1", 7)),
            ("postgresql://u@h/d?port=9", "u", "d", tcp("h", 9)),
            ("postgresql://u@h:/d", "u", "d", tcp("h", 5432)),
            ("postgresql://u@[::1]:/d?port=9", "u", "d", tcp("::1", 9)),
            ("postgresql://u@h/d?port=", "u", "d", tcp("h", 5432)),
            ("postgresql://u@%2Frun%2Fpg:/d", "u", "d", unix("/run/pg/.s.PGSQL.5432")),
            ("postgresql://u@/d?host=/run:", "u", "d", unix("/run:/.s.PGSQL.5432")),
            ("postgresql://u@h/var/run/d", "u", "var/run/d", tcp("h", 5432)),
            ("postgresql:///d?host=/run/pg&user=u", "u", "d", unix("/run/pg/.s.PGSQL.5432")),
            ("postgresql://u@%2Frun%2Fpg/d?port=7", "u", "d", unix("/run/pg/.s.PGSQL.7")),
            ("postgresql://u@%2frun%2Fpg:26102/d?port=7", "u", "d", unix("/run/pg/.s.PGSQL.26102")),
            ("postgresql://u@%2Fa%3A1%25:2/d", "u", "d", unix("/a:1%/.s.PGSQL.2")),
            ("postgresql://u@/d?host=/a:1%2525", "u", "d", unix("/a:1%25/.s.PGSQL.5432")),
            ("postgresql://?host=h&user=u&dbname=d", "u", "d", tcp("h", 5432)),
        ] {
            let (settings, places) = read(text).unwrap();
            assert_eq!((settings.user.as_str(), settings.database.as_str()), (user, database));
            assert_eq!(places, [place], "{text}");
        }
        let defaults = read("postgresql://u@:7/d?port=8").unwrap().1;
        assert_eq!(defaults, [Place::Unix(default_directory().join(".s.PGSQL.7"))]);
        // No path of a socket.
        for text in ["postgresql://u@/run/pg/d", "postgresql://u@:/run/pg/d"] {
            let (settings, places) = read(text).unwrap();
            assert_eq!(settings.database, "run/pg/d");
            assert_eq!(places, [Place::Unix(default_directory().join(".s.PGSQL.5432"))]);
        }
        for list in ["a,b:1", "a:,b:1"] {
            let places = read(&format!("postgresql://u@{list}/d")).unwrap().1;
            assert_eq!(places, [tcp("a", 5432), tcp("b", 1)]);
        }
        for bad in [
            "postgresql:x",
            "postgresql://u@h:0",
            "postgresql://u@h:x/d",
            "postgresql://u@h::/d",
            "postgresql://u@::/d",
            "postgresql://u@2001:db8::/d",
            "postgresql://u@%2Frun::/d",
            "postgresql://u@h?port=0",
            "postgresql://u@h?host=i",
            "postgresql://%4@h",
            "postgresql://u@%2Frun:0/d",
            "postgresql://u@%2Frun%00/d",
            "postgresql://u@%2Frun:5432x/d",
            "postgresql://u@%2Frun%2/d",
            "postgresql://%00@h",
            "postgresql://u@h?durable=maybe",
            "postgresql://u@h?schema=a.b",
            "postgresql://u@h?target_session_attrs=any",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        for text in [
            "postgresql://u:se%20cret@h/d",
            "postgresql://u:se/cr@et@h/d",
            "postgresql://h/d?user=u&password=secret",
        ] {
            let (settings, _) = read(text).unwrap();
            assert!(settings.password.is_some());
            let shown = format!("{settings:?}");
            assert!(!shown.contains("cr"), "{shown}");
            assert!(settings.secret().unwrap().0.contains("cr"));
        }
        let secret = |text| read(text).unwrap().0.secret().map(|secret| secret.0);
        for text in ["postgresql://token@h", "postgresql://token:@h", "postgresql://h?user=token"] {
            assert_eq!(secret(text).as_deref(), Some("token"), "{text}");
        }
        assert_eq!(secret("postgresql://h"), None);
    }
}
