//! What only locks in a PostgreSQL suffer.
//!
//! | file | what happens |
//! | --- | --- |
//! | `crashes` | a process of the server is killed, the server is stopped, sessions are ended |
//! | `rows` | rows that others lock, drop or fill with other things; fences while many race |
//! | `refusals` | servers, users and rights that are not fit |
//! | `poolers` | PgBouncer in between |
//! | `disks` | a full disk |
//! | `encryption` | TLS |
#![allow(clippy::unwrap_used, clippy::panic)]

mod crashes;
mod disks;
mod encryption;
mod poolers;
mod refusals;
mod rows;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use memlock_core::Client;
use memlock_tests::launch::{end, spawn};
use memlock_tests::postgresql::Postgresql;
use memlock_tests::process::Server;

/// A lease that no test outlasts.
const LEASE: Duration = Duration::from_secs(60);
/// For what must happen, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A client that waits for a slow machine, unless the URL says otherwise.
fn connect(url: &str) -> Client {
    let separator = if url.contains('?') { '&' } else { '?' };
    let mut url = url.to_owned();
    if !url.contains("io_timeout=") {
        url = format!("{url}{separator}io_timeout=20s&connect_timeout=20s");
    }
    Client::connect(&url).unwrap()
}

/// The URL with further parameters.
fn with(server: &Postgresql, parameters: &str) -> String {
    let url = server.url();
    format!("{url}{}{parameters}", if url.contains('?') { '&' } else { '?' })
}

/// Whether a lock is free, as another client sees it.
fn is_free(client: &Client, name: &str) -> bool {
    client.mutex(name, LEASE).unwrap().owner().unwrap().is_none()
}

/// Somebody at psql, in the middle of a transaction.
struct Stranger {
    child: Child,
    words: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Stranger {
    fn at(server: &Postgresql) -> Stranger {
        let mut psql = server.psql();
        psql.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = spawn(psql).unwrap();
        let words = child.stdin.take().unwrap();
        let replies = BufReader::new(child.stdout.take().unwrap());
        Stranger { child, words, replies }
    }

    /// Returns when the statements were carried out.
    fn run(&mut self, statements: &str) {
        let _ = self.ask(statements);
    }

    /// The last line that psql prints.
    fn ask(&mut self, statements: &str) -> String {
        writeln!(self.words, "{statements}\n\\echo done").unwrap();
        let (mut line, mut last) = (String::new(), String::new());
        loop {
            line.clear();
            assert!(self.replies.read_line(&mut line).unwrap() > 0, "psql ended: {statements}");
            match line.trim() {
                "done" => return last,
                other => last = other.to_owned(),
            }
        }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}
