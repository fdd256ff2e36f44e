//! Which servers the command works on: the URL of the command line, of the environment, or the
//! default.

use std::ffi::OsString;
use std::time::Duration;

use memlock_core::Client;
use memlock_core::environment;
use memlock_core::name::Key;
use memlock_core::store::recovery::Guard;
use memlock_core::store::{Node, Route, Scope, without_password};

use crate::exit::{CliError, Status};
use crate::text::quoted;

/// Where the locks are unless the user says otherwise.
const DEFAULT_URL: &str = "memcached://127.0.0.1:11211";

/// The lease where the user names none.
pub(crate) const USUAL_LEASE: Duration = Duration::from_secs(60);

/// The same, or the guard of the URL, if that is shorter.
pub(crate) fn usual_lease(client: &Client) -> Duration {
    let guard = client.guarantees().guard.map(Guard::longest_lease);
    guard.map_or(USUAL_LEASE, |longest| longest.min(USUAL_LEASE))
}

/// The URL that the command uses.
#[derive(Clone, Debug)]
pub(crate) struct Url {
    pub(crate) text: String,
    /// Neither the command line nor the environment names one.
    pub(crate) is_default: bool,
}

impl Url {
    /// The URL as it was given.
    pub(crate) fn new(given: Option<OsString>) -> Result<Url, CliError> {
        let unusable = |why: String| {
            CliError::new(Status::CONFIG, format!("The URL (--url or MEMLOCK_URL) {why}"))
        };
        let Some(given) = given else {
            return Ok(match environment::url_of_file()? {
                Some(text) => Url { text, is_default: false },
                None => Url { text: DEFAULT_URL.to_owned(), is_default: true },
            });
        };
        if given.is_empty() {
            return Err(unusable(format!(
                "is empty: write memcached://host:port, or unset MEMLOCK_URL to use {DEFAULT_URL}."
            )));
        }
        match given.into_string() {
            Ok(text) => Ok(Url { text, is_default: false }),
            Err(given) => {
                let text = given.to_string_lossy();
                let shown = without_password(&text);
                // The bytes themselves tell more, unless they are those of a password.
                let shown = if shown == text { given.as_encoded_bytes() } else { shown.as_bytes() };
                Err(unusable(format!(
                    "is not UTF-8: {}. Write other bytes than those of UTF-8 as %XX.",
                    quoted(shown)
                )))
            }
        }
    }
}

/// A client of the servers that the URL names. Nothing is sent yet.
pub(crate) fn connect(url: &Url) -> Result<Client, CliError> {
    let client = Client::connect(&url.text)?;
    if client.guarantees().scope == Scope::Process {
        return Err(CliError::new(
            Status::CONFIG,
            format!(
                "The URL {} names no server: its locks live in the memory of one process, and another command \
                 would not see them. Use memcached://host:port, with the same server on every host.",
                quoted(without_password(&url.text).as_bytes())
            ),
        ));
    }
    Ok(client)
}

/// What is missing where nothing has been stored yet, as a sentence: commands that look at what is
/// there create nothing.
pub(crate) fn missing(client: &Client) -> Option<String> {
    let missing: Option<Vec<String>> =
        (0..client.nodes().len()).map(|node| client.missing(node)).collect();
    missing?.into_iter().next()
}

/// The server on which the item of this key is.
pub(crate) fn server_of(client: &Client, key: &Key) -> Option<Node> {
    let place = client.server_of(Route::of(key));
    client.nodes().into_iter().nth(place)
}
