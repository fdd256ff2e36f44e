//! What a connection needs.

use super::account::Account;
use super::schema::Engine;

/// What a connection needs.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) account: Account,
    pub(super) database: String,
    pub(super) engine: Engine,
}

#[cfg(test)]
impl Settings {
    pub(super) fn for_tests() -> Settings {
        let account = Account { user: "u".to_owned(), password: None };
        Settings { account, database: "d".to_owned(), engine: Engine::InnoDb }
    }
}
