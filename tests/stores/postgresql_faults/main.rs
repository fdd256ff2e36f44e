//! What only locks in a PostgreSQL suffer.
//!
//! | file | what happens |
//! | --- | --- |
//! | `crashes` | a process of the server is killed, the server is stopped, sessions are ended |
//! | `copies` | a standby is promoted, an older copy is restored |
//! | `rows` | rows that others lock, drop or fill with other things; fences while many race |
//! | `refusals` | servers, users and rights that are not fit |
//! | `sessions` | more waiters than the server has sessions |
//! | `poolers` | PgBouncer in between |
//! | `shadows` | others create functions and operators with the names of built-in ones |
//! | `batches` | a part of a batch is refused |
//! | `sweeps` | rows of items that ended are deleted |
//! | `disks` | a full disk |
//! | `encryption` | TLS |
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod batches;
mod copies;
mod crashes;
mod disks;
mod encryption;
mod poolers;
mod refusals;
mod rows;
mod sessions;
mod shadows;
mod sweeps;

use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use memlock_core::{Client, Error, ErrorKind};
use memlock_tests::client::{LEASE, PATIENCE, connect, is_free};
use memlock_tests::launch::{number, poll_until};
use memlock_tests::one_by_one::{Lent, OneByOne};
use memlock_tests::postgresql::Postgresql;
use memlock_tests::process::Server;
use memlock_tests::url;

/// Of clients that meet a locked row or table.
const SOON: &str = "io_timeout=2s&connect_timeout=20s";

/// The server of all tests that leave it as it is. Its log has the user of each line.
fn shared() -> &'static Postgresql {
    static SERVER: OnceLock<Postgresql> = OnceLock::new();
    SERVER.get_or_init(|| Postgresql::with(&["log_line_prefix=%u "]))
}

/// The server of tests that kill or configure it. It runs at the beginning of each.
fn alone() -> Lent<Postgresql> {
    static SERVER: OneByOne<Postgresql> = OneByOne::new();
    // Nothing but commits writes the log to the disk, and few connections are enough.
    SERVER.lend(|| Postgresql::with(&["wal_writer_delay=10s", "max_connections=12"]))
}

/// A role of a test's own, which owns the schema of the same name.
struct Place<'a> {
    server: &'a Postgresql,
    name: String,
}

impl<'a> Place<'a> {
    fn on(server: &'a Postgresql) -> Place<'a> {
        static ONE_BY_ONE: Mutex<()> = Mutex::new(());
        let name = format!("place{}x", number());
        // Two that change the rights of one database at the same time are refused.
        let _turn = ONE_BY_ONE.lock().unwrap_or_else(PoisonError::into_inner);
        server
            .sql(&format!("CREATE ROLE {name} LOGIN; GRANT CREATE ON DATABASE postgres TO {name}"));
        Place { server, name }
    }

    /// Another user, who may not create anything.
    fn visitor(&self) -> String {
        let name = format!("visitor_of_{}", self.name);
        self.server.sql(&format!("CREATE ROLE {name} LOGIN"));
        name
    }

    /// The URL of the schema for this user.
    fn url_of(&self, login: &str) -> String {
        let url = self.server.url().replace("memlock@", &format!("{login}@"));
        url::with(&url, &format!("schema={}", self.name))
    }

    fn url(&self) -> String {
        self.url_of(&self.name)
    }

    fn client(&self, parameters: &str) -> Client {
        connect(&url::with(&self.url(), parameters))
    }

    /// The condition of statements that wait for somebody else.
    fn waiting(&self) -> String {
        format!(
            "FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{}%'",
            self.name
        )
    }

    /// Waits until there are so many.
    fn until(&self, what: &str, count: &str) {
        let is_so = || (self.server.sql(&format!("SELECT count(*) {what}")) == count).then_some(());
        poll_until(PATIENCE, is_so).unwrap_or_else(|| panic!("never {count} {what}"));
    }

    /// What the server has logged of this role.
    fn logged(&self) -> Vec<String> {
        self.logged_of(&self.name)
    }

    fn logged_of(&self, user: &str) -> Vec<String> {
        let logged = self.server.logged();
        let lines = logged.lines().filter(|line| line.starts_with(&format!("{user} ")));
        lines.map(str::to_owned).collect()
    }

    /// psql, logged in as the role.
    fn psql(&self) -> Command {
        let mut psql = self.server.psql();
        psql.args(["-U", &self.name]);
        psql
    }

    fn sessions(&self) -> String {
        format!(
            "FROM pg_stat_activity WHERE application_name = 'memlock' AND usename = '{}'",
            self.name
        )
    }

    /// Ends all sessions of the role.
    fn end_sessions(&self) {
        self.server.sql(&format!("SELECT pg_terminate_backend(pid) {}", self.sessions()));
    }
}

/// The error of a call that meets what a stranger has locked. The server cancels it; where that was
/// slow, the client did not hear of it, and calls again.
fn refused_for_a_locked_row<T>(mut call: impl FnMut() -> Result<T, Error>) -> Error {
    let cancelled = || {
        let error = call().map(drop).expect_err("it is locked");
        error.to_string().contains("pg_locks").then_some(error)
    };
    let error = poll_until(PATIENCE, cancelled).expect("the server cancels it");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    error
}
