//! The default client: chosen once, or made at the first use.

use once_cell::race::OnceBox;

use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};

/// The URL of the locks unless another one is given.
pub const DEFAULT_URL: &str = "memcached://127.0.0.1:11211";

/// It is made without any I/O and used for the process's life. No thread waits for it, so a fork
/// never inherits one that waits.
static DEFAULT: OnceBox<Client> = OnceBox::new();

/// Chooses the default client. It can be chosen once, before its first use.
///
/// # Errors
/// [`ErrorKind::Config`] for an URL that cannot be read, or when there is a default client already.
pub fn init(url: &str) -> Result<()> {
    if install(Client::connect(url)?) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Config,
        "The default client is in use already: choose it once, before the first call of a bare function.",
    ))
}

/// The default client, made if there is none.
///
/// # Errors
/// [`ErrorKind::Config`] for a `MEMLOCK_URL` that cannot be read.
pub fn default_client() -> Result<&'static Client> {
    loop {
        if let Some(client) = existing_client() {
            return Ok(client);
        }
        let url = match std::env::var("MEMLOCK_URL") {
            Ok(url) => url,
            Err(std::env::VarError::NotPresent) => DEFAULT_URL.to_owned(),
            Err(std::env::VarError::NotUnicode(_)) => {
                return Err(Error::new(
                    ErrorKind::Config,
                    "The environment's MEMLOCK_URL is not UTF-8.",
                ));
            }
        };
        install(Client::connect(&url).map_err(|error| error.during("MEMLOCK_URL"))?);
    }
}

/// The default client, if it was chosen or used.
pub(super) fn existing_client() -> Option<&'static Client> {
    DEFAULT.get()
}

fn install(client: Client) -> bool {
    DEFAULT.set(Box::new(client)).is_ok()
}
