//! Servers, users and rights that are not fit.

use std::fs;

use memlock_core::{Error, ErrorKind, Release};
use memlock_tests::client::a_wait_outlasts_a_crowd;
use memlock_tests::launch::poll_until;
use memlock_tests::process::Server;
use memlock_tests::url;

use crate::{LEASE, PATIENCE, Place, alone, connect, shared};

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

fn works(url: &str) {
    let mut lock = connect(url).mutex("m", LEASE).unwrap().lock().unwrap();
    assert_eq!(lock.unlock().unwrap(), Release::Released);
}

#[test]
fn passwords_are_proven_in_every_way_and_shown_in_none() {
    let server = shared();
    let places = ["scram-sha-256", "md5", "password"].map(|method| {
        let place = Place::on(server);
        let encryption = if method == "md5" { "md5" } else { "scram-sha-256" };
        server.sql(&format!(
            "SET password_encryption = '{encryption}'; ALTER ROLE {} PASSWORD 'p@ss:w/ört'",
            place.name
        ));
        let hba = server.files().join("data/pg_hba.conf");
        let text = fs::read_to_string(&hba).unwrap();
        fs::write(&hba, format!("host all {} all {method}\n{text}", place.name)).unwrap();
        place
    });
    server.sql("SELECT pg_reload_conf()");
    // The reload is done a moment later.
    let is_asked = || {
        let asked = connect(&places[0].url()).mutex("m", LEASE).unwrap().try_lock();
        asked.is_err().then_some(())
    };
    assert!(poll_until(PATIENCE, is_asked).is_some());
    for place in places {
        let user = &place.name;
        let right = place.url_of(&format!("{user}:p%40ss%3Aw%2F%C3%B6rt"));
        works(&right);
        let error = refused(&place.url_of(&format!("{user}:secret")));
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        let said = error.to_string();
        assert!(said.contains(user.as_str()) && !said.contains("secret"), "{error}");
        assert!(!format!("{:?}", connect(&right)).contains("ss:w"));
        says(&place.url(), ErrorKind::Config, &["password", "PGPASSWORD"]);
    }
}

#[test]
fn a_socket_is_found_by_its_directory_and_port() {
    let server = shared();
    let place = Place::on(server);
    let directory = server.files().display().to_string();
    let port = server.process().port();
    let (user, encoded) = (&place.name, directory.replace('/', "%2F"));
    for socket in [
        format!("postgresql://{user}@{encoded}:{port}/postgres"),
        format!("postgresql://{user}@{encoded}/postgres?port={port}"),
        format!("postgresql://{user}@/postgres?host={directory}&port={port}"),
    ] {
        works(&url::with(&socket, &format!("schema={user}")));
    }
}

#[test]
fn what_is_not_there_or_not_allowed_is_named() {
    let place = Place::on(shared());
    says(&place.url().replace("/postgres", "/nothing"), ErrorKind::Config, &["nothing"]);
    says(&place.url_of("nobody"), ErrorKind::Config, &["nobody"]);
    let visitor = place.visitor();
    let url = place.url_of(&visitor);
    let usage = format!("GRANT USAGE ON SCHEMA \"{}\"", place.name);
    says(&url, ErrorKind::Config, &[&visitor, "--print-schema", &usage]);
    // Somebody else has created the schema, and given no right to it, or too few.
    works(&place.url());
    says(&url, ErrorKind::Config, &[&visitor, "GRANT SELECT, INSERT, UPDATE, DELETE"]);
    let name = &place.name;
    place.server.sql(&format!(
        "GRANT USAGE ON SCHEMA {name} TO {visitor}; \
         GRANT SELECT ON ALL TABLES IN SCHEMA {name} TO {visitor}"
    ));
    says(&url, ErrorKind::Config, &[&visitor, "GRANT"]);
    // What the error says is enough.
    let error = refused(&url).to_string();
    let (_, grants) = error.split_once("and then: ").unwrap();
    place.server.sql(grants);
    works(&url);
    // It may not create anything all the same.
    let other = url.replace("schema=", "schema=other_");
    says(&other, ErrorKind::Config, &["--print-schema"]);
    place.server.sql(&format!("ALTER ROLE {name} SET default_transaction_read_only = on"));
    let words = ["default_transaction_read_only", "primary"];
    says(&place.url(), ErrorKind::Unreachable, &words);
}

#[test]
fn a_server_without_room_for_more_connections_is_unreachable() {
    let server = alone();
    let place = Place::on(&server);
    let mut clients = Vec::new();
    let error = loop {
        let client = place.client("durable=no");
        match client.mutex(format!("{}", clients.len()), LEASE).unwrap().try_lock() {
            Ok(lock) => drop(lock),
            Err(error) => break error,
        }
        clients.push(client);
        assert!(clients.len() <= 12, "there is room for all");
    };
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("max_connections"), "{error}");
    assert!(!clients.is_empty());
    a_wait_outlasts_a_crowd(&place.client(""), "max_connections", || drop(clients));
}

/// One lock in two tables would be held twice.
#[test]
fn clients_that_differ_in_durable_do_not_share_a_schema() {
    let place = Place::on(shared());
    let (no, yes) = (place.url(), url::with(&place.url(), "durable=yes"));
    works(&no);
    says(&yes, ErrorKind::Config, &["UNLOGGED", "SET LOGGED"]);
    for table in ["items", "life"] {
        place.server.sql(&format!("ALTER TABLE {}.{table} SET LOGGED", place.name));
    }
    works(&yes);
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
