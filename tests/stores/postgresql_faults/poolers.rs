//! PgBouncer in between, which gives each transaction to any of its sessions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::{Client, ErrorKind, Insertion, Release, SetUp};
use memlock_tests::postgresql::{Postgresql, as_nobody, give};
use memlock_tests::process::{Program, Server, ServerProcess};

use crate::{LEASE, PATIENCE, Stranger, connect, is_free};

/// A PgBouncer with two sessions for all of its clients.
struct Pgbouncer {
    process: ServerProcess,
    files: PathBuf,
}

#[derive(Debug)]
struct Settings {
    files: PathBuf,
    server: u16,
    more: &'static str,
}

impl Program for Settings {
    fn command(&self, port: u16) -> Command {
        let users = self.files.join("users");
        fs::write(&users, "\"memlock\" \"\"\n").unwrap();
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
        let url = format!("postgresql://memlock@127.0.0.1:{port}/postgres");
        connect(&url).mutex("probe", LEASE).unwrap().try_lock().is_ok()
    }
}

impl Pgbouncer {
    fn before(server: &Postgresql, more: &'static str) -> Pgbouncer {
        let files: &Path = server.files();
        let files = files.with_extension("bouncer");
        let _ = fs::remove_dir_all(&files);
        fs::create_dir(&files).unwrap();
        give(&files);
        let settings = Settings { files: files.clone(), server: server.process().port(), more };
        Pgbouncer { process: ServerProcess::start(settings), files }
    }

    fn url(&self) -> String {
        format!("postgresql://memlock@{}/postgres", self.process.address())
    }

    fn client(&self, parameters: &str) -> Client {
        connect(&format!("{}?{parameters}", self.url()))
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
    let server = Postgresql::start();
    let bouncer = Pgbouncer::before(&server, "");
    let before = server.logged();
    let (inside, held, last) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (bouncer, inside, held, last) = (&bouncer, &inside, &held, &last);
            scope.spawn(move || {
                let client = bouncer.client("io_timeout=5s");
                let mutex = client.mutex("m", LEASE).unwrap();
                let own = client.mutex(format!("own {number}"), LEASE).unwrap();
                let mut list = client.distinct_list("l").unwrap();
                let _ = list.set_up(LEASE).unwrap();
                for round in 0..40 {
                    let mut lock = mutex.lock_for(PATIENCE).unwrap().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "held twice");
                    held.fetch_add(1, Ordering::SeqCst);
                    assert!(last.swap(lock.fence(), Ordering::SeqCst) < lock.fence());
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert_eq!(lock.unlock().unwrap(), Release::Released);
                    let mut lock = own.try_lock().unwrap().unwrap();
                    assert_eq!(lock.unlock().unwrap(), Release::Released);
                    let key = format!("{number} {round}");
                    assert!(matches!(list.insert(key).unwrap(), Some(Insertion::First(_))));
                }
            });
        }
    });
    assert_eq!(held.load(Ordering::SeqCst), 40 * CLIENTS as u64);
    // Nothing of ours is left in the sessions, which other programs use as well.
    let sessions =
        server.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'memlock'");
    assert!(sessions.parse::<u32>().unwrap() <= 2, "{sessions}");
    let mut psql = server.psql();
    psql.args(["-p", &bouncer.process.port().to_string()]);
    psql.args([
        "-c",
        "SELECT current_setting('lock_timeout'), current_setting('synchronous_commit'), \
        (SELECT count(*) FROM pg_prepared_statements)",
    ]);
    let shown = psql.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&shown.stdout).trim(), "0|on|0");
    let logged = server.logged();
    assert_eq!(logged.strip_prefix(&before), Some(""), "{logged}");
}

/// The clients' connections outlive the server's: only a number in each reply tells of the crash.
#[test]
fn a_crash_behind_the_pooler_is_noticed() {
    let server = Postgresql::start();
    let bouncer = Pgbouncer::before(&server, "");
    let (client, other) = (bouncer.client("io_timeout=10s"), bouncer.client("io_timeout=10s"));
    let mut lock = client.mutex("m", LEASE).unwrap().lock().unwrap();
    let mut list = client.distinct_list("l").unwrap();
    assert_eq!(list.set_up(LEASE).unwrap(), SetUp::Created);
    drop(other.mutex("n", LEASE).unwrap().lock().unwrap());
    server.restart();
    let began = Instant::now();
    let is_held = loop {
        match lock.check() {
            Ok(is_held) => break is_held,
            Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
        }
    };
    assert!(!is_held);
    let next = other.mutex("m", LEASE).unwrap().lock_for(PATIENCE).unwrap().unwrap();
    assert!(next.fence() > lock.fence());
    assert_ne!(lock.unlock().unwrap(), Release::Released);
    assert!(!is_free(&other, "m"));
}

#[test]
fn a_stranger_holds_no_call_up_behind_a_pooler() {
    let server = Postgresql::start();
    let bouncer = Pgbouncer::before(&server, "");
    let client = bouncer.client("io_timeout=1500ms&connect_timeout=20s");
    let mut lock = client.mutex("m", LEASE).unwrap().lock().unwrap();
    let mut stranger = Stranger::at(&server);
    stranger.run("BEGIN; SELECT key FROM memlock.items FOR UPDATE;");
    let began = Instant::now();
    let error = lock.unlock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("pg_locks"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    stranger.run("ROLLBACK;");
    assert_eq!(lock.unlock().unwrap(), Release::Released);
}

/// All sessions are taken by others: the request waits in the pooler, which then refuses it.
#[test]
fn a_pooler_without_a_free_session_has_changed_nothing() {
    let server = Postgresql::start();
    let bouncer = Pgbouncer::before(&server, "query_wait_timeout = 1\n");
    let client = bouncer.client("io_timeout=5s&connect_timeout=5s");
    drop(client.mutex("m", LEASE).unwrap().lock().unwrap());
    let occupy = || {
        let mut psql = server.psql();
        psql.args(["-p", &bouncer.process.port().to_string()]);
        psql.args(["-c", "BEGIN", "-c", "SELECT pg_sleep(4)"]);
        memlock_tests::launch::spawn(psql).unwrap()
    };
    let mut others = [occupy(), occupy()];
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'";
    let began = Instant::now();
    while server.sql(asleep) != "2" {
        assert!(began.elapsed() < PATIENCE, "nobody sleeps");
    }
    let error = client.mutex("m", LEASE).unwrap().try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    for other in &mut others {
        other.wait().unwrap();
    }
    assert!(is_free(&client, "m"));
}

#[test]
fn another_isolation_is_refused_behind_a_pooler() {
    let server = Postgresql::start();
    let bouncer = Pgbouncer::before(&server, "");
    server.sql("ALTER ROLE memlock SET default_transaction_isolation = 'serializable'");
    server.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()",
    );
    let began = Instant::now();
    loop {
        let error = bouncer.client("").mutex("m", LEASE).unwrap().try_lock().unwrap_err();
        if error.kind() == ErrorKind::Config {
            assert!(error.to_string().contains("read committed"), "{error}");
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{error}");
    }
}
