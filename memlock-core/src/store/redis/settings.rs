//! User, password, database and parameters.

use std::fmt;

use crate::error::{Error, Result};
use crate::name::{Key, Keyspace};
use crate::store::remote::Evictions;
use crate::store::url::{Secret, Url};

/// The environment variable from which `redis-cli` takes the password.
const PASSWORD_VARIABLE: &str = "REDISCLI_AUTH";

/// Servers read it as a 32-bit number.
const LARGEST_DATABASE: u32 = i32::MAX as u32;

/// What a connection needs.
pub(super) struct Settings {
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) database: u32,
    /// What is said of servers that may evict locks.
    pub(super) evictions: Evictions,
    /// Whether connections are encrypted.
    pub(super) is_encrypted: bool,
    /// The counter of fences.
    pub(super) fence: Key,
    /// The item in which all clients of a server agree on the guard.
    pub(super) config: Key,
}

/// Without the login: a user may be a token.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").finish_non_exhaustive()
    }
}

impl Settings {
    /// Takes the parameters from the URL.
    pub(super) fn take(
        url: &mut Url,
        user: Option<String>,
        password: Option<Secret>,
        database: Option<&str>,
    ) -> Result<Settings> {
        let number = database.unwrap_or("0").parse().ok();
        let database = number.filter(|&number| number <= LARGEST_DATABASE).ok_or_else(|| {
            let url = url.shown();
            Error::config(format!(
                "{url} has a database that is not a number from 0 to {LARGEST_DATABASE}."
            ))
        })?;
        let evictions = Evictions::take(url)?;
        let of_environment = || {
            let password = std::env::var(PASSWORD_VARIABLE).ok();
            password.filter(|password| !password.is_empty()).map(Secret)
        };
        let password = password.or_else(of_environment);
        if user.is_some() && password.is_none() {
            return Err(Error::config(format!(
                "{} has a user without a password: write user:password@host, or set {PASSWORD_VARIABLE}.",
                url.shown()
            )));
        }
        let keys = Keyspace::new(url.get("prefix").unwrap_or_default())?;
        let (fence, config) = (keys.internal("fence"), keys.config());
        let is_encrypted = url.scheme == "rediss";
        Ok(Settings { user, password, database, evictions, is_encrypted, fence, config })
    }
}
