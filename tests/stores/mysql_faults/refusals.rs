//! Servers that refuse a connection or a statement, and connections of every kind.

use std::fs;
use std::thread;
use std::time::Duration;

use memlock_core::{Client, ErrorKind, Release};
use memlock_tests::certificate::certify;
use memlock_tests::client::a_wait_outlasts_a_crowd;
use memlock_tests::launch::{give, until};
use memlock_tests::mysql::{MariaDb, USER};
use memlock_tests::names::{Name, relays};
use memlock_tests::process::Server;
use memlock_tests::relay::Relay;
use memlock_tests::{daemon, sigpipe, url};

use crate::{Alone, LEASE, PATIENCE, Place, connect, refused, shared, try_lock};

#[test]
fn errors_say_what_to_do_and_show_no_password() {
    let place = Place::on(shared());
    place.sql(&format!(
        "CREATE USER reader@'%' IDENTIFIED BY 'se-cret'; GRANT SELECT ON {}.* TO reader@'%';
         CREATE USER no_rights@'%' IDENTIFIED BY 'se-cret'",
        place.database
    ));
    let address = place.server.process().address();
    let at =
        |login: &str, database: &str| connect(&format!("mysql://{login}@{address}/{database}"));
    let here = place.database.as_str();
    for (client, says) in [
        (at("memlock:se-cret", here), "password"),
        (at("nobody:se-cret", here), "password"),
        (at("memlock:pass-word", "missing"), "missing"),
        (at("no_rights:se-cret", here), "database"),
        (at("reader:se-cret", here), "CREATE TABLE"),
    ] {
        let error = refused(&client, "m");
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        let said = error.to_string();
        assert!(said.contains(says), "{said}");
        assert!(said.contains(&address), "{said}");
        assert!(!said.contains("se-cret") && !said.contains("pass-word"), "{said}");
        let shown = format!("{client:?}");
        assert!(!shown.contains("se-cret") && !shown.contains("pass-word"), "{shown}");
    }
    // Rights that suffice once the table is there.
    let client = place.client("");
    drop(try_lock(&client, "m").unwrap());
    place.sql("GRANT INSERT, UPDATE, DELETE ON memlock_items TO reader@'%'");
    assert!(try_lock(&at("reader:se-cret", here), "m").is_some());
    let error = refused(&at("reader:se-cret", &format!("{here}?engine=MEMORY")), "m");
    assert!(error.to_string().contains("engine=MEMORY"), "{error}");
}

/// What the server says has one number for several causes, or names another cause.
#[test]
fn limits_of_a_user_and_options_of_a_server_are_named() {
    let server = Alone::get();
    let place = Place::on(&server);
    place.sql(&format!(
        "CREATE USER encrypted@'%' IDENTIFIED BY 'se-cret' REQUIRE SSL;
         CREATE USER few@'%' IDENTIFIED BY 'se-cret' WITH MAX_QUERIES_PER_HOUR 1;
         GRANT ALL ON {}.* TO encrypted@'%', few@'%'",
        place.database
    ));
    let (address, here) = (server.process().address(), &place.database);
    let at = |user: &str| connect(&format!("mysql://{user}:se-cret@{address}/{here}"));
    for (user, kind, says) in [
        ("encrypted", ErrorKind::Config, "add tls=verify to the URL"),
        ("few", ErrorKind::Unreachable, "do no more in this hour"),
    ] {
        let error = refused(&at(user), "m");
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
    // For the connections that are opened from now on.
    server.set("max_session_mem_used", "8192");
    let error = refused(&place.client(""), "m");
    assert!(error.to_string().contains("An option of the server"), "{error}");
}

#[test]
fn a_read_only_server_is_unreachable_and_loses_nothing() {
    let server = Alone::get();
    let client = Place::on(&server).client("");
    let mut lock = try_lock(&client, "m").unwrap();
    server.set("read_only", "1");
    let error = refused(&client, "n");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("read-only"), "{error}");
    assert!(lock.check().unwrap());
    assert!(lock.unlock().is_err());
    server.set("read_only", "0");
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    assert!(try_lock(&client, "n").is_some());
}

/// A name that leads to the server of a place, and can lead to the shared one instead.
fn movable(place: &Place<'_>) -> ([Relay; 2], Name, String) {
    let (database, other) = (&place.database, shared());
    other.sql(&format!("CREATE DATABASE {database}; GRANT ALL ON {database}.* TO {USER}@'%'"));
    let (one, two) = (place.server.process().address(), other.process().address());
    let (relays, port) = relays([("127.0.0.2", one.clone()), ("127.0.0.3", two)]);
    let name = Name::of(&["127.0.0.2"]);
    let url = place.url().replace(&one, &name.with_port(port));
    (relays, name, url)
}

/// Which answers what it asks: that the lock is held. It is the second in the queue.
#[test]
fn a_waiter_follows_a_name_from_a_server_that_has_become_read_only() {
    let server = Alone::get();
    let place = Place::on(&server);
    let (_relays, name, url) = movable(&place);
    let (holder, first, waiter) = (place.client(""), place.client(""), connect(&url));
    let held = try_lock(&holder, "m").unwrap();
    thread::scope(|scope| {
        let wait = |client| {
            let mutex = Client::mutex(client, "m", LEASE).unwrap();
            scope.spawn(move || mutex.lock_for(PATIENCE))
        };
        let length = "SELECT LENGTH(value) FROM memlock_items WHERE name = 'lock:m%wait'";
        let is_first = wait(&first);
        until("one waits", || !place.sql(length).is_empty());
        let one = place.sql(length);
        let follows = wait(&waiter);
        until("two wait", || place.sql(length) != one);
        server.set("read_only", "1");
        name.lead_to(&["127.0.0.3"]);
        assert!(follows.join().unwrap().unwrap().is_some(), "it asks the old one");
        first.cancel_waits();
        drop(is_first.join());
    });
    held.abandon();
}

/// The server that was demoted stays there, and answers: only its errors say that it takes no writes.
#[test]
fn a_name_is_followed_from_a_server_that_has_become_read_only() {
    let server = Alone::get();
    let place = Place::on(&server);
    let (_relays, name, url) = movable(&place);
    let client = connect(&url);
    drop(try_lock(&client, "m").unwrap());
    server.set("read_only", "1");
    let error = refused(&client, "n");
    assert!(error.to_string().contains("read-only"), "{error}");
    name.lead_to(&["127.0.0.3"]);
    let _lock = try_lock(&client, "n").unwrap();
    let rows = "SELECT COUNT(*) FROM memlock_items WHERE name = 'lock:n'";
    assert!(shared().sql(&format!("USE {}; {rows}", place.database)).contains('1'));
}

#[test]
fn a_session_that_is_killed_is_replaced() {
    let place = Place::on(shared());
    let client = place.client("");
    let mut lock = try_lock(&client, "m").unwrap();
    let sessions = |condition: &str| {
        place.sql(&format!(
            "SELECT id FROM information_schema.processlist \
             WHERE user='{USER}' AND db='{}' AND {condition}",
            place.database
        ))
    };
    let kill_all = || {
        for id in sessions("1").lines() {
            place.sql(&format!("KILL {id}"));
        }
        until("they are gone", || sessions("1").is_empty());
    };
    let mut tool = client.admin(0).unwrap();
    kill_all();
    // A connection that was just used is not checked before it is used again.
    thread::sleep(Duration::from_millis(150));
    assert!(lock.check().unwrap(), "a lock is no session");
    assert_eq!(tool.keys(&|key| key == "lock:m").unwrap().len(), 1);
    drop(tool);
    // Killed while a statement waits for a row.
    let mut stranger = place.locked("lock:m");
    thread::scope(|scope| {
        let released = scope.spawn(|| lock.unlock());
        let first = "command IN ('Query', 'Execute')";
        until("it waits for the row", || !sessions(first).is_empty());
        for id in sessions(first).lines() {
            place.sql(&format!("KILL {id}"));
            let this = format!("id={id}");
            until("it is gone", || sessions(&this).is_empty());
        }
        stranger.run("COMMIT;");
        assert_eq!(released.join().unwrap().unwrap(), Release::Released);
    });
    assert!(try_lock(&client, "m").is_some());
}

#[test]
fn too_many_connections_are_told() {
    let server = Alone::get();
    let place = Place::on(&server);
    let clients: Vec<_> = (0..12).map(|_| place.client("")).collect();
    server.set("max_connections", "10");
    let outcomes = clients.iter().map(|client| client.mutex("m", LEASE).unwrap().try_lock());
    let error = outcomes.map(|outcome| outcome.map(drop)).find_map(Result::err);
    let error = error.expect("one too many");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("max_connections"), "{error}");
    a_wait_outlasts_a_crowd(&place.client(""), "max_connections", || drop(clients));
}

#[test]
fn a_unix_socket_leads_to_the_same_locks() {
    let there = connect(&url::with(&shared().url_of_socket(), "io_timeout=20s"));
    let held = try_lock(&there, "by a socket").unwrap();
    assert!(try_lock(&connect(&shared().url()), "by a socket").is_none());
    drop(held);
}

#[test]
fn connections_are_encrypted_and_the_server_is_verified() {
    let error = refused(&Place::on(shared()).client("tls=verify"), "m");
    assert!(error.to_string().contains("does not encrypt"), "{error}");
    let directory = std::env::temp_dir().join(format!("memlock-mysql-tls-{}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir(&directory).unwrap();
    give(&directory);
    certify(&directory);
    let file = |name: &str| directory.join(name).display().to_string();
    let certificate = file("server.crt");
    let server = MariaDb::start(&[
        &format!("--ssl-cert={certificate}"),
        &format!("--ssl-key={}", file("server.key")),
        "--innodb-flush-log-at-trx-commit=0",
    ]);
    server.sql("ALTER USER memlock@'%' REQUIRE SSL");
    let by_address = server.url();
    let by_name = by_address.replace("127.0.0.1", "localhost");
    let verified = format!("tls=verify&tls_ca={certificate}");
    let trusting = connect(&url::with(&by_name, &verified));
    let lock = try_lock(&trusting, "m").unwrap();
    let mut list = trusting.distinct_list("l").unwrap();
    let _ = list.set_up(LEASE).unwrap();
    // Several records of TLS.
    let keys: Vec<String> = (0..300).map(|number| format!("key {number}")).collect();
    assert_eq!(list.insert_many(&keys).unwrap().unwrap().len(), 300);
    assert!(lock.check().unwrap());
    let port = server.process().port().to_string();
    sigpipe::is_not_raised_by_resets(&server.process().address(), |other| {
        let (_, other) = other.split_once(':').unwrap();
        url::with(&by_name.replace(&port, other), &verified)
    });
    daemon::keeps_its_files_at_once(&url::with(&by_name, &verified));
    daemon::keeps_its_files_after_a_pause(&url::with(&by_name, &verified));
    for (url, kind, says) in [
        (by_address.clone(), ErrorKind::Config, "password"),
        (url::with(&by_name, "tls=verify"), ErrorKind::Unreachable, "TLS"),
        (url::with(&by_address, &verified), ErrorKind::Unreachable, "TLS"),
    ] {
        let error = refused(&connect(&url), "m");
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
    fs::remove_dir_all(directory).unwrap();
}
