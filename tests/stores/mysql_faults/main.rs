//! What only locks in a table suffer: strangers that lock their rows, settings of the server, users
//! without rights, full tables.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod refusals;
mod rows;
mod settings;
mod stranger;

use std::sync::OnceLock;
use std::time::Duration;

use memlock_core::{Client, Error, Lock};
use memlock_tests::mysql::MariaDb;
use memlock_tests::process::Server;

const LEASE: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(20);

/// The server of all tests that leave its settings alone, under prefixes of their own.
fn shared() -> &'static MariaDb {
    static SERVER: OnceLock<MariaDb> = OnceLock::new();
    SERVER.get_or_init(MariaDb::start_fast)
}

/// A client that waits for a slow machine, unless the parameters say otherwise.
fn client(server: &MariaDb, parameters: &str) -> Client {
    let patient =
        if parameters.contains("timeout=") { "" } else { "&io_timeout=20s&connect_timeout=20s" };
    Client::connect(&format!("{}?{parameters}{patient}", server.url())).unwrap()
}

fn try_lock(client: &Client, name: &str) -> Option<Lock> {
    client.mutex(name, LEASE).unwrap().try_lock().unwrap()
}

fn refused(client: &Client, name: &str) -> Error {
    client.mutex(name, LEASE).unwrap().try_lock().map(drop).unwrap_err()
}
