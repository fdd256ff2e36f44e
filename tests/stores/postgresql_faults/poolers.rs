//! PgBouncer in between, which gives each transaction to any of its sessions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use memlock_core::{Client, ErrorKind, Insertion, Release, SetUp};
use memlock_tests::launch::{as_nobody, end, give, poll_until, spawn, until};
use memlock_tests::process::{Program, Server, ServerProcess};
use memlock_tests::{assert_safe, assert_safe_eq, url};

use crate::{
    LEASE, PATIENCE, Place, SOON, alone, connect, is_free, refused_for_a_locked_row, shared,
};

/// A PgBouncer with two sessions for all clients of a place.
pub(crate) struct Pgbouncer {
    process: ServerProcess,
    files: PathBuf,
    pub(crate) url: String,
}

#[derive(Debug)]
struct Settings {
    files: PathBuf,
    server: u16,
    user: String,
    more: &'static str,
}

impl Program for Settings {
    fn command(&self, port: u16) -> Command {
        let users = self.files.join("users");
        fs::write(&users, format!("\"{}\" \"\"\n", self.user)).unwrap();
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {}\n\
             pool_mode = transaction\ndefault_pool_size = 2\nmax_client_conn = 100\n\
             logfile = {}\nso_reuseport = 1\n{}\n",
            self.server,
            users.display(),
            self.files.join("log").display(),
            self.more,
        );
        fs::write(self.files.join("ini"), text).unwrap();
        let mut command = Command::new("/usr/sbin/pgbouncer");
        command.arg("-q").arg(self.files.join("ini"));
        as_nobody(&mut command);
        command
    }

    fn answers(&self, port: u16, _: u32) -> bool {
        let url = format!("postgresql://{0}@127.0.0.1:{port}/postgres?schema={0}", self.user);
        connect(&url).mutex("probe", LEASE).unwrap().try_lock().is_ok()
    }
}

impl Pgbouncer {
    pub(crate) fn before(place: &Place<'_>, more: &'static str) -> Pgbouncer {
        let files: &Path = place.server.files();
        let files = files.with_extension(format!("bouncer-{}", place.name));
        let _ = fs::remove_dir_all(&files);
        fs::create_dir(&files).unwrap();
        give(&files);
        let (user, server) = (place.name.clone(), place.server.process().port());
        let process = ServerProcess::start(Settings { files: files.clone(), server, user, more });
        let url = place.url().replace(&format!(":{server}/"), &format!(":{}/", process.port()));
        Pgbouncer { process, files, url }
    }

    pub(crate) fn client(&self, parameters: &str) -> Client {
        connect(&url::with(&self.url, parameters))
    }

    /// psql, logged in there as the user of the place.
    fn psql(&self, place: &Place<'_>) -> Command {
        let mut psql = place.psql();
        psql.args(["-p", &self.process.port().to_string()]);
        psql
    }
}

impl Drop for Pgbouncer {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.files);
    }
}

#[test]
fn many_clients_share_two_sessions() {
    const CLIENTS: usize = 8;
    let place = Place::on(shared());
    let bouncer = Pgbouncer::before(&place, "");
    let (inside, held, last) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (bouncer, inside, held, last) = (&bouncer, &inside, &held, &last);
            scope.spawn(move || {
                let client = bouncer.client("durable=no");
                let mutex = client.mutex("m", LEASE).unwrap();
                let own = client.mutex(format!("own {number}"), LEASE).unwrap();
                let mut list = client.distinct_list("l").unwrap();
                let _ = list.set_up(LEASE).unwrap();
                for round in 0..20 {
                    let mut lock = mutex.lock_for(PATIENCE).unwrap().unwrap();
                    assert_safe_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "held twice");
                    held.fetch_add(1, Ordering::SeqCst);
                    assert_safe!(
                        last.swap(lock.fence(), Ordering::SeqCst) < lock.fence(),
                        "the fence did not rise"
                    );
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert_eq!(lock.unlock().unwrap(), Release::Released);
                    let mut lock = own.try_lock().unwrap().unwrap();
                    assert_eq!(lock.unlock().unwrap(), Release::Released);
                    let keys: Vec<_> =
                        (0..20).map(|key| format!("{number} {round} {key}")).collect();
                    let inserted = list.insert_many(&keys).unwrap().unwrap();
                    assert!(inserted.iter().all(|one| matches!(one, Insertion::First(_))));
                }
            });
        }
    });
    assert_eq!(held.load(Ordering::SeqCst), 20 * CLIENTS as u64);
    // Nothing of ours is left in the sessions, which other programs use as well.
    let sessions = place.server.sql(&format!("SELECT count(*) {}", place.sessions()));
    assert!(sessions.parse::<u32>().unwrap() <= 2, "{sessions}");
    let mut psql = bouncer.psql(&place);
    psql.args([
        "-c",
        "SELECT current_setting('lock_timeout'), current_setting('synchronous_commit'), \
        (SELECT count(*) FROM pg_prepared_statements)",
    ]);
    let shown = psql.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&shown.stdout).trim(), "0|on|0");
    assert_eq!(place.logged(), Vec::<String>::new());
}

/// The clients' connections outlive the server's: only a number in each reply tells of the crash.
#[test]
fn a_crash_behind_the_pooler_is_noticed() {
    let server = alone();
    let place = Place::on(&server);
    let bouncer = Pgbouncer::before(&place, "");
    let (client, other) = (bouncer.client("durable=no"), bouncer.client("durable=no"));
    let mut lock = client.mutex("m", LEASE).unwrap().lock().unwrap();
    let mut list = client.distinct_list("l").unwrap();
    assert_eq!(list.set_up(LEASE).unwrap(), SetUp::Created);
    drop(other.mutex("n", LEASE).unwrap().lock().unwrap());
    server.restart();
    let is_held = poll_until(PATIENCE, || lock.check().ok());
    assert_eq!(is_held, Some(false));
    let next = other.mutex("m", LEASE).unwrap().lock_for(PATIENCE).unwrap().unwrap();
    assert_safe!(next.fence() > lock.fence(), "the fence did not rise");
    assert_ne!(lock.unlock().unwrap(), Release::Released);
    assert_safe!(!is_free(&other, "m"), "another holder's lock was released");
}

/// The server cancels the request, although there are no settings of the session.
#[test]
fn a_stranger_holds_no_call_up_behind_a_pooler() {
    let place = Place::on(shared());
    let bouncer = Pgbouncer::before(&place, "");
    let client = bouncer.client(SOON);
    let mut lock = bouncer.client("durable=no").mutex("m", LEASE).unwrap().lock().unwrap();
    let mut stranger = place.server.stranger();
    stranger.run(&format!("BEGIN; SELECT key FROM {}.items FOR UPDATE;", place.name));
    let mutex = client.mutex("m", LEASE).unwrap();
    refused_for_a_locked_row(|| mutex.force_unlock(&lock.token().to_string()));
    place.until(&place.waiting(), "0");
    stranger.run("ROLLBACK;");
    assert_eq!(lock.unlock().unwrap(), Release::Released);
}

/// All sessions are taken by others: the request waits in the pooler, which then refuses it.
#[test]
fn a_pooler_without_a_free_session_has_changed_nothing() {
    let place = Place::on(shared());
    let bouncer = Pgbouncer::before(&place, "query_wait_timeout = 5\n");
    let client = bouncer.client("durable=no");
    drop(client.mutex("m", LEASE).unwrap().lock().unwrap());
    let occupy = || {
        let mut psql = bouncer.psql(&place);
        psql.args(["-c", "BEGIN", "-c", "SELECT pg_sleep(600)"]);
        spawn(psql).unwrap()
    };
    let mut others = [occupy(), occupy()];
    let asleep = format!(
        "FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND usename = '{}'",
        place.name
    );
    place.until(&asleep, "2");
    let error = client.mutex("m", LEASE).unwrap().try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    others.iter_mut().for_each(end);
    place.server.sql(&format!("SELECT pg_terminate_backend(pid) {asleep}"));
    // The pooler has a session again.
    until("there is a session", || client.mutex("m", LEASE).unwrap().owner().is_ok());
    assert!(is_free(&client, "m"));
}

#[test]
fn another_isolation_is_refused_behind_a_pooler() {
    let place = Place::on(shared());
    let bouncer = Pgbouncer::before(&place, "");
    place.server.sql(&format!(
        "ALTER ROLE {} SET default_transaction_isolation = 'serializable'",
        place.name
    ));
    // Sessions of before are not of this kind, and go on for a moment.
    place.end_sessions();
    place.until(&place.sessions(), "0");
    let refused = poll_until(PATIENCE, || {
        let error = bouncer.client("").mutex("m", LEASE).unwrap().try_lock().unwrap_err();
        (error.kind() == ErrorKind::Config).then_some(error)
    });
    let error = refused.expect("it is another error");
    assert!(error.to_string().contains("read committed"), "{error}");
}
