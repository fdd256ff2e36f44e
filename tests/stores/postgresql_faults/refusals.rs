//! Servers, users and rights that are not fit.

use std::fs;

use memlock_core::{Error, ErrorKind, Release};
use memlock_tests::launch::poll_until;
use memlock_tests::postgresql::Postgresql;
use memlock_tests::process::Server;

use crate::{LEASE, PATIENCE, connect, with};

/// The error of a first lock.
fn refused(url: &str) -> Error {
    match connect(url).mutex("m", LEASE).unwrap().try_lock() {
        Ok(_) => panic!("{url} can be used"),
        Err(error) => error,
    }
}

fn says(url: &str, kind: ErrorKind, words: &[&str]) {
    let error = refused(url);
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
}

/// The URL of another user.
fn of_user(server: &Postgresql, login: &str) -> String {
    server.url().replace("memlock@", &format!("{login}@"))
}

#[test]
fn passwords_are_proven_in_every_way_and_shown_in_none() {
    let server = Postgresql::start();
    for (user, method) in [("scram", "scram-sha-256"), ("old", "md5"), ("clear", "password")] {
        let encryption = if method == "md5" { "md5" } else { "scram-sha-256" };
        server.sql(&format!(
            "SET password_encryption = '{encryption}'; CREATE ROLE {user} LOGIN PASSWORD 'p@ss:w/ört'; \
             GRANT CREATE ON DATABASE postgres TO {user}"
        ));
        let hba = server.files().join("data/pg_hba.conf");
        let text = fs::read_to_string(&hba).unwrap();
        fs::write(&hba, format!("host all {user} all {method}\n{text}")).unwrap();
    }
    server.sql("SELECT pg_reload_conf()");
    // The reload is done a moment later.
    let is_asked = || {
        let asked = connect(&of_user(&server, "scram")).mutex("m", LEASE).unwrap().try_lock();
        asked.is_err().then_some(())
    };
    assert!(poll_until(PATIENCE, is_asked).is_some());
    for user in ["scram", "old", "clear"] {
        let right = of_user(&server, &format!("{user}:p%40ss%3Aw%2F%C3%B6rt"));
        let url = format!("{right}?schema={user}");
        let mut lock = connect(&url).mutex("m", LEASE).unwrap().lock().unwrap();
        assert_eq!(lock.unlock().unwrap(), Release::Released);
        let error = refused(&of_user(&server, &format!("{user}:secret")));
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(
            error.to_string().contains(user) && !error.to_string().contains("secret"),
            "{error}"
        );
        assert!(!format!("{:?}", connect(&url)).contains("ss:w"));
        says(&of_user(&server, user), ErrorKind::Config, &["password", "PGPASSWORD"]);
    }
}

#[test]
fn what_is_not_there_or_not_allowed_is_named() {
    let server = Postgresql::start();
    let url = server.url();
    says(&url.replace("/postgres", "/nothing"), ErrorKind::Config, &["nothing"]);
    says(&of_user(&server, "nobody"), ErrorKind::Config, &["nobody"]);
    server.sql("CREATE ROLE plain LOGIN");
    let plain = of_user(&server, "plain");
    says(
        &plain,
        ErrorKind::Config,
        &["plain", "--print-schema", "GRANT USAGE ON SCHEMA \"memlock\""],
    );
    // Somebody else has created the schema, and given no right to it.
    drop(connect(&url).mutex("m", LEASE).unwrap().lock().unwrap());
    says(&plain, ErrorKind::Config, &["plain", "GRANT SELECT, INSERT, UPDATE, DELETE"]);
    // What the error says is enough.
    let error = refused(&plain).to_string();
    let (_, grants) = error.split_once("and then: ").unwrap();
    server.sql(grants);
    let mut lock = connect(&plain).mutex("m", LEASE).unwrap().lock().unwrap();
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    // It may not create anything all the same.
    says(&format!("{plain}?schema=other"), ErrorKind::Config, &["--print-schema"]);
}

#[test]
fn a_user_who_may_not_write_is_told_so() {
    let server = Postgresql::start();
    drop(connect(&server.url()).mutex("m", LEASE).unwrap().lock().unwrap());
    server.sql("CREATE ROLE reader LOGIN");
    server.sql("GRANT USAGE ON SCHEMA memlock TO reader");
    server.sql("GRANT SELECT ON ALL TABLES IN SCHEMA memlock TO reader");
    says(&of_user(&server, "reader"), ErrorKind::Config, &["reader", "GRANT"]);
    server.sql("ALTER ROLE memlock SET default_transaction_read_only = on");
    let words = ["default_transaction_read_only", "primary"];
    says(&server.url(), ErrorKind::Unreachable, &words);
}

#[test]
fn a_server_without_room_for_more_connections_is_unreachable() {
    let server = Postgresql::with(&["max_connections=6", "superuser_reserved_connections=3"]);
    server.sql("CREATE ROLE plain LOGIN; GRANT CREATE ON DATABASE postgres TO plain");
    let url = of_user(&server, "plain");
    let clients: Vec<_> = (0..3)
        .map(|number| {
            let client = connect(&url);
            drop(client.mutex(format!("{number}"), LEASE).unwrap().lock().unwrap());
            client
        })
        .collect();
    says(&url, ErrorKind::Unreachable, &["max_connections"]);
    drop(clients);
}

/// One lock in two tables would be held twice.
#[test]
fn clients_that_differ_in_durable_do_not_share_a_schema() {
    let server = Postgresql::start();
    let (no, yes) = (server.url(), with(&server, "durable=yes"));
    drop(connect(&no).mutex("m", LEASE).unwrap().lock().unwrap());
    says(&yes, ErrorKind::Config, &["UNLOGGED", "SET LOGGED"]);
    server.sql("ALTER TABLE memlock.items SET LOGGED; ALTER TABLE memlock.life SET LOGGED");
    drop(connect(&yes).mutex("m", LEASE).unwrap().lock().unwrap());
    says(&no, ErrorKind::Config, &["durable=yes", "SET UNLOGGED"]);
}

#[test]
fn a_server_of_another_kind_is_told_apart() {
    let memcached = memlock_tests::server::Memcached::start();
    let url = format!("postgresql://u@{}/d?io_timeout=300ms", memcached.address());
    let error = refused(&url);
    assert!(
        matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Unreachable),
        "{:?}: {error}",
        error.kind()
    );
}
