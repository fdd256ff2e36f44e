//! The known schemes, and the store that a URL names.

use std::sync::Arc;

use super::Store;
#[cfg(feature = "memcached")]
use super::memcached::Memcached;
use super::memory::Memory;
#[cfg(feature = "mysql")]
use super::mysql::MySql;
#[cfg(feature = "postgresql")]
use super::postgresql::Postgresql;
#[cfg(feature = "redis")]
use super::redis::Redis;
#[cfg(feature = "sqlite")]
use super::sqlite::Sqlite;
use super::url::{self, Url};
use crate::clock::Clock;
use crate::error::{Error, Result};

/// Creates a store. Takes the parameters that it knows from the URL.
type Open = fn(&mut Url, &Arc<dyn Clock>) -> Result<Arc<dyn Store>>;

/// The scheme, the form of its URL, and the function that opens it.
type Scheme = (&'static str, &'static str, Open);

/// The schemes of the stores that were built.
const SCHEMES: &[Scheme] = &[
    #[cfg(feature = "memcached")]
    ("memcached", "memcached://host[:port][,host2…]", Memcached::open),
    #[cfg(feature = "memcached")]
    ("memcached+unix", "memcached+unix:///path/of/socket", Memcached::open_unix),
    ("memory", "memory://name", Memory::open),
    #[cfg(feature = "mysql")]
    ("mysql", "mysql://user:password@host[:port][,host2…]/database", MySql::open),
    #[cfg(feature = "mysql")]
    ("mariadb", "mariadb://user:password@host[:port][,host2…]/database", MySql::open),
    #[cfg(feature = "postgresql")]
    ("postgresql", "postgresql://[user[:password]@]host[:port][/database]", Postgresql::open),
    #[cfg(feature = "postgresql")]
    ("postgres", "postgres://…, the same", Postgresql::open),
    #[cfg(feature = "redis")]
    ("redis", "redis://[[user]:password@]host[:port][,host2…][/database]", Redis::open),
    #[cfg(all(feature = "redis", feature = "tls"))]
    ("rediss", "rediss://… (the same, encrypted)", Redis::open_tls),
    #[cfg(feature = "redis")]
    ("redis+unix", "redis+unix:///path/of/socket[?db=number]", Redis::open_unix),
    #[cfg(feature = "sqlite")]
    ("sqlite", "sqlite:///path or sqlite:path", Sqlite::open),
];

/// The statements that create what a store needs, as far as its URL names it.
type Schema = fn(&mut Url) -> Result<String>;

/// The schemes of databases.
const SCHEMAS: &[(&str, Schema)] = &[
    #[cfg(feature = "mysql")]
    ("mysql", MySql::schema),
    #[cfg(feature = "mysql")]
    ("mariadb", MySql::schema),
    #[cfg(feature = "postgresql")]
    ("postgresql", Postgresql::schema),
    #[cfg(feature = "postgresql")]
    ("postgres", Postgresql::schema),
];

/// The statements that create what the store of a URL needs in its database, for somebody who may
/// run them. A scheme alone, such as `postgresql`, stands for a URL with its defaults.
///
/// # Errors
/// [`ErrorKind::Config`](crate::ErrorKind::Config) for a URL that cannot be parsed, or is not one of
/// a database.
pub fn schema(url: &str) -> Result<String> {
    let is_scheme = !url.contains(':');
    let mut url = if is_scheme { Url::parse(&format!("{url}://"))? } else { Url::parse(url)? };
    let found = SCHEMAS.iter().find(|(scheme, _)| *scheme == url.scheme);
    let (_, schema) = found.ok_or_else(|| {
        let known: Vec<&str> = SCHEMAS.iter().map(|(scheme, _)| *scheme).collect();
        Error::config(format!(
            "The URL has no scheme of a database that memlock knows. These are: {}.",
            known.join(", ")
        ))
    })?;
    schema(&mut url)
}

/// The store that a URL names, for programs that wrap it before they pass it to a
/// [`Client`](crate::Client). The client's own parameters are not known here.
///
/// # Errors
/// [`ErrorKind::Config`](crate::ErrorKind::Config) for a URL that cannot be parsed.
pub fn connect(url: &str, clock: &Arc<dyn Clock>) -> Result<Arc<dyn Store>> {
    let mut url = Url::parse(url)?;
    let store = open(&mut url, clock)?;
    url.finish()?;
    Ok(store)
}

/// Creates the store that a URL names. The parameters that it knows are removed from `url`.
pub(crate) fn open(url: &mut Url, clock: &Arc<dyn Clock>) -> Result<Arc<dyn Store>> {
    open_one_of(SCHEMES, url, clock)
}

fn open_one_of(
    schemes: &[Scheme],
    url: &mut Url,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<dyn Store>> {
    let known = schemes.iter().find(|(scheme, ..)| *scheme == url.scheme);
    let (.., open) = known.ok_or_else(|| {
        let forms: Vec<&str> = schemes.iter().map(|(_, form, _)| *form).collect();
        let why = match url::SCHEMES.iter().find(|(scheme, ..)| *scheme == url.scheme) {
            Some((_, features, _)) => {
                &format!("names a store that this memlock was built without (features: {features})")
            }
            None => "has no scheme that memlock knows",
        };
        Error::config(format!("{} {why}. The known ones are {}.", url.shown(), forms.join(", ")))
    })?;
    open(url, clock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_was_not_built_is_told_from_an_unknown_scheme() {
        let clock: Arc<dyn Clock> = Arc::new(crate::clock::SystemClock);
        let memory: Vec<Scheme> =
            SCHEMES.iter().filter(|(scheme, ..)| *scheme == "memory").copied().collect();
        for (text, why) in [
            ("redis://h", "this memlock was built without (features: redis). The known"),
            ("mariadb://h", "built without (features: mysql)."),
            ("rediss://h", "built without (features: redis, tls)."),
            ("etcd://h", "has no scheme that memlock knows. The known ones are memory://name."),
        ] {
            let error = open_one_of(&memory, &mut Url::parse(text).unwrap(), &clock).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    /// Otherwise messages do not even name the scheme.
    #[test]
    fn messages_may_show_the_schemes() {
        for (known, ..) in SCHEMES {
            assert!(url::SCHEMES.iter().any(|(scheme, ..)| scheme == known), "{known}");
        }
    }
}
