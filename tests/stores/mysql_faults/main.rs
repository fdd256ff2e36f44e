//! What only locks in a table suffer: strangers that lock their rows, settings of the server, users
//! without rights, full tables.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod connections;
mod refusals;
mod rows;
mod settings;
mod shadows;
mod sweeps;

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::OnceLock;

use memlock_core::{Client, Error, Lock};
use memlock_tests::client::{LEASE, PATIENCE, connect};
use memlock_tests::launch::{number, poll_until};
use memlock_tests::mysql::{DATABASE, MariaDb, USER};
use memlock_tests::one_by_one::{Lent, OneByOne};
use memlock_tests::process::Server;
use memlock_tests::stranger::Stranger;
use memlock_tests::url;

/// Of clients that meet a locked row, or a statement that always fails.
const SOON: &str = "io_timeout=1s&connect_timeout=20s&outage=60s";

/// The server of all tests that leave its settings alone, each in a database of its own.
fn shared() -> &'static MariaDb {
    static SERVER: OnceLock<MariaDb> = OnceLock::new();
    SERVER.get_or_init(MariaDb::start_fast)
}

/// The server of tests that change its settings, one after the other.
struct Alone {
    server: Lent<MariaDb>,
    changed: RefCell<Vec<&'static str>>,
}

impl Alone {
    fn get() -> Alone {
        static SERVER: OneByOne<MariaDb> = OneByOne::new();
        Alone { server: SERVER.lend(MariaDb::start_fast), changed: RefCell::default() }
    }

    /// Changes a setting until the end of the test.
    fn set(&self, setting: &'static str, value: &str) {
        self.sql(&format!("SET GLOBAL {setting} = {value}"));
        self.changed.borrow_mut().push(setting);
    }
}

impl Deref for Alone {
    type Target = MariaDb;

    fn deref(&self) -> &MariaDb {
        &self.server
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            for setting in self.changed.take() {
                self.sql(&format!("SET GLOBAL {setting} = DEFAULT"));
            }
        }
    }
}

/// A database of a test's own.
struct Place<'a> {
    server: &'a MariaDb,
    database: String,
}

impl<'a> Place<'a> {
    fn on(server: &'a MariaDb) -> Place<'a> {
        let database = format!("place{}", number());
        server.sql(&format!("CREATE DATABASE {database}; GRANT ALL ON {database}.* TO {USER}@'%'"));
        Place { server, database }
    }

    fn url(&self) -> String {
        self.server.url().replace(&format!("/{DATABASE}"), &format!("/{}", self.database))
    }

    /// A client that waits for a slow machine, unless the parameters say otherwise.
    fn client(&self, parameters: &str) -> Client {
        connect(&url::with(&self.url(), parameters))
    }

    /// Runs statements as the administrator in this database. Returns their output.
    fn sql(&self, statements: &str) -> String {
        self.server.sql(&format!("USE {}; {statements}", self.database))
    }

    /// Another program that has locked the row of an item.
    fn locked(&self, key: &str) -> Stranger {
        let mut stranger = self.server.stranger(&self.database);
        let lock =
            format!("BEGIN; SELECT number>0 FROM memlock_items WHERE name='{key}' FOR UPDATE;");
        assert_eq!(stranger.ask(&lock), "1", "the row is there, and locked");
        stranger
    }
}

/// The error of an attempt that the server refuses with these words. Where it was slow, the client
/// did not hear of it, and tries again.
fn refused_with(words: &str, client: &Client, name: &str) -> Error {
    let refusal = || {
        let error = refused(client, name);
        error.to_string().contains(words).then_some(error)
    };
    poll_until(PATIENCE, refusal).expect("the server says so")
}

fn try_lock(client: &Client, name: &str) -> Option<Lock> {
    client.mutex(name, LEASE).unwrap().try_lock().unwrap()
}

fn refused(client: &Client, name: &str) -> Error {
    client.mutex(name, LEASE).unwrap().try_lock().map(drop).unwrap_err()
}
