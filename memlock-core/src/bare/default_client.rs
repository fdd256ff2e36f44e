//! The default client: chosen once, or made at the first use.

use once_cell::race::OnceBox;

use crate::client::Client;
use crate::environment;
use crate::error::{Error, ErrorKind, Result};

/// The URL of the default client, unless another one is given.
pub const DEFAULT_URL: &str = "memcached://127.0.0.1:11211";

/// Made without any I/O, and used for the process's life. No thread waits while another one makes
/// it, so no fork can happen during such a wait.
static DEFAULT: OnceBox<Client> = OnceBox::new();

/// Chooses the default client. This is possible once, before its first use.
///
/// # Errors
/// [`ErrorKind::Config`] for a URL that cannot be parsed, or if there is a default client already.
pub fn init(url: &str) -> Result<()> {
    if install(Client::connect(url)?) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Config,
        "The default client is in use already: choose it once, before the first call of a bare \
         function.",
    ))
}

/// The default client, which is made if there is none.
///
/// # Errors
/// [`ErrorKind::Config`] for a URL in the environment that cannot be read or parsed.
pub fn default_client() -> Result<&'static Client> {
    loop {
        if let Some(client) = existing_client() {
            return Ok(client);
        }
        let client = match environment::url()? {
            Some((url, variable)) => {
                Client::connect(&url).map_err(|error| error.during(variable))?
            }
            None => Client::connect(DEFAULT_URL)?,
        };
        install(client);
    }
}

/// The default client, if it was chosen or used.
pub fn existing_client() -> Option<&'static Client> {
    DEFAULT.get()
}

fn install(client: Client) -> bool {
    DEFAULT.set(Box::new(client)).is_ok()
}
