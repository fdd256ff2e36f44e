//! What a connection needs.

use std::fmt;

use super::account::Account;
use super::schema::Engine;

/// What a connection needs.
pub(super) struct Settings {
    pub(super) account: Account,
    pub(super) database: String,
    pub(super) engine: Engine,
}

/// Without the login: a user may be a token.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").finish_non_exhaustive()
    }
}
