//! Servers that refuse a connection or a statement, and connections of every kind.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use memlock_core::{Client, ErrorKind, Release};
use memlock_tests::mysql::{DATABASE, MariaDb};
use memlock_tests::process::Server;

use crate::stranger::Stranger;
use crate::{LEASE, client, refused, shared, try_lock};

#[test]
fn errors_say_what_to_do_and_show_no_password() {
    let server = MariaDb::start_fast();
    server.sql(
        "CREATE USER reader@'%' IDENTIFIED BY 'se-cret'; GRANT SELECT ON locks.* TO reader@'%';
         CREATE USER no_rights@'%' IDENTIFIED BY 'se-cret'",
    );
    let address = server.process().address();
    let at = |login: &str, database: &str| {
        Client::connect(&format!("mysql://{login}@{address}/{database}")).unwrap()
    };
    for (client, kind, says) in [
        (at("memlock:se-cret", DATABASE), ErrorKind::Config, "password"),
        (at("nobody:se-cret", DATABASE), ErrorKind::Config, "password"),
        (at("memlock:pass-word", "missing"), ErrorKind::Config, "missing"),
        (at("no_rights:se-cret", DATABASE), ErrorKind::Config, "database"),
        (at("reader:se-cret", DATABASE), ErrorKind::Config, "CREATE TABLE"),
    ] {
        let error = refused(&client, "m");
        assert_eq!(error.kind(), kind, "{error}");
        let said = error.to_string();
        assert!(said.contains(says), "{said}");
        assert!(said.contains(&address), "{said}");
        assert!(!said.contains("se-cret") && !said.contains("pass-word"), "{said}");
        let shown = format!("{client:?}");
        assert!(!shown.contains("se-cret") && !shown.contains("pass-word"), "{shown}");
    }
    // Rights that suffice once the table is there.
    let client = client(&server, "");
    drop(try_lock(&client, "m").unwrap());
    server.sql("GRANT INSERT, UPDATE, DELETE ON locks.memlock_items TO reader@'%'");
    assert!(try_lock(&at("reader:se-cret", DATABASE), "m").is_some());
    let error = refused(&at("reader:se-cret", "locks?engine=MEMORY"), "m");
    assert!(error.to_string().contains("engine=MEMORY"), "{error}");
}

#[test]
fn a_read_only_server_is_unreachable_and_loses_nothing() {
    let server = MariaDb::start_fast();
    let client = client(&server, "");
    let mut lock = try_lock(&client, "m").unwrap();
    server.sql("SET GLOBAL read_only = 1");
    let error = refused(&client, "n");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("read-only"), "{error}");
    assert!(lock.check().unwrap());
    assert!(lock.unlock().is_err());
    server.sql("SET GLOBAL read_only = 0");
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    assert!(try_lock(&client, "n").is_some());
}

#[test]
fn a_session_that_is_killed_is_replaced() {
    let server = MariaDb::start_fast();
    let client = client(&server, "io_timeout=5s");
    let mut lock = try_lock(&client, "m").unwrap();
    let kill_all = || {
        let ids = server.sql("SELECT id FROM information_schema.processlist WHERE user='memlock'");
        for id in ids.lines() {
            server.sql(&format!("KILL {id}"));
        }
    };
    kill_all();
    thread::sleep(Duration::from_millis(150));
    assert!(lock.check().unwrap(), "a lock is no session");
    // Killed while a statement waits for a row.
    let stranger = Stranger::locks(&server, "lock:m");
    thread::scope(|scope| {
        let released = scope.spawn(|| lock.unlock());
        thread::sleep(Duration::from_millis(300));
        kill_all();
        thread::sleep(Duration::from_millis(100));
        stranger.ends();
        assert_eq!(released.join().unwrap().unwrap(), Release::Released);
    });
    assert!(try_lock(&client, "m").is_some());
}

#[test]
fn too_many_connections_are_told() {
    let server = MariaDb::start(&["--max-connections=10", "--innodb-flush-log-at-trx-commit=0"]);
    let clients: Vec<_> = (0..12).map(|_| client(&server, "")).collect();
    let outcomes: Vec<_> = clients
        .iter()
        .map(|client| client.mutex("m", LEASE).unwrap().try_lock().map(drop))
        .collect();
    let error = outcomes.into_iter().find_map(Result::err).expect("one too many");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("max_connections"), "{error}");
}

#[test]
fn a_unix_socket_leads_to_the_same_locks() {
    let there = Client::connect(&shared().url_of_socket()).unwrap();
    let held = try_lock(&there, "by a socket").unwrap();
    assert!(try_lock(&client(shared(), ""), "by a socket").is_none());
    drop(held);
}

/// Makes a certificate for the name `localhost`. Returns the directory with it.
fn certify() -> PathBuf {
    let name = format!("memlock-mysql-tls-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir(&directory).unwrap();
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]);
    openssl.args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]);
    openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    openssl.arg("-keyout").arg(directory.join("key.pem"));
    openssl.arg("-out").arg(directory.join("cert.pem"));
    let made = openssl.output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    // The server is another user.
    let readable = fs::Permissions::from_mode(0o644);
    fs::set_permissions(directory.join("key.pem"), readable).unwrap();
    directory
}

#[test]
fn connections_are_encrypted_and_the_server_is_verified() {
    let plain = client(shared(), "tls=verify");
    let error = refused(&plain, "m");
    assert!(error.to_string().contains("does not encrypt"), "{error}");
    let directory = certify();
    let file = |name: &str| directory.join(name).display().to_string();
    let (certificate, key) = (file("cert.pem"), file("key.pem"));
    let (certificate_option, key_option) =
        (format!("--ssl-cert={certificate}"), format!("--ssl-key={key}"));
    let server = MariaDb::start(&[&certificate_option, &key_option]);
    server.sql("ALTER USER memlock@'%' REQUIRE SSL");
    let by_address = server.url();
    let by_name = by_address.replace("127.0.0.1", "localhost");
    let trusted = format!("{by_name}?tls=verify&tls_ca={certificate}");
    let trusting = Client::connect(&trusted).unwrap();
    let lock = try_lock(&trusting, "m").unwrap();
    let mut list = trusting.distinct_list("l").unwrap();
    let _ = list.set_up(LEASE).unwrap();
    // Several records of TLS.
    let keys: Vec<String> = (0..300).map(|number| format!("key {number}")).collect();
    assert_eq!(list.insert_many(&keys).unwrap().unwrap().len(), 300);
    assert!(lock.check().unwrap());
    for (url, kind, says) in [
        (by_address.clone(), ErrorKind::Config, "password"),
        (format!("{by_name}?tls=verify"), ErrorKind::Unreachable, "TLS"),
        (format!("{by_address}?tls=verify&tls_ca={certificate}"), ErrorKind::Unreachable, "TLS"),
    ] {
        let error = refused(&Client::connect(&url).unwrap(), "m");
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
    fs::remove_dir_all(directory).unwrap();
}
