//! Servers with unusual settings.

use std::sync::Arc;
use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::name::Keyspace;
use memlock_core::store::{Expiry, Op, Reply, Returns, Route, schemes};
use memlock_core::{ErrorKind, Extension, Insertion, Release};
use memlock_tests::launch::poll_until;
use memlock_tests::mysql::MariaDb;
use memlock_tests::process::Server;
use memlock_tests::{assert_safe, assert_safe_eq, url};

use crate::{Alone, LEASE, PATIENCE, Place, connect, shared, try_lock};

/// What is not committed is gone with the connection, and then another client gets the lock.
#[test]
fn a_transaction_that_the_server_has_begun_is_ended() {
    let server = Alone::get();
    server.set("init_connect", "'START TRANSACTION'");
    server.set("completion_type", "'RELEASE'");
    let place = Place::on(&server);
    let (one, two) = (place.client(""), place.client(""));
    let mut lock = try_lock(&one, "m").unwrap();
    assert_safe!(try_lock(&two, "m").is_none(), "held twice");
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    assert!(try_lock(&two, "m").is_some());
}

/// The server then does not tell the fence, which is read from the row.
#[test]
fn a_trigger_of_the_table_hides_no_fence() {
    let place = Place::on(shared());
    let one = place.client("");
    let mut last = try_lock(&one, "m").unwrap().fence();
    place.sql(
        "CREATE TRIGGER t BEFORE UPDATE ON memlock_items FOR EACH ROW \
         SET @seen = LAST_INSERT_ID(7)",
    );
    for _ in 0..4 {
        let mut lock = try_lock(&one, "m").unwrap();
        assert_safe!(lock.fence() > last, "{} after {last}", lock.fence());
        last = lock.fence();
        assert_eq!(lock.unlock().unwrap(), Release::Released);
    }
}

/// A server whose settings are all different from the defaults.
#[test]
fn settings_of_the_server_do_not_matter() {
    let server = MariaDb::start(&[
        "--sql-mode=ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,PIPES_AS_CONCAT,\
         SIMULTANEOUS_ASSIGNMENT,NO_UNSIGNED_SUBTRACTION,IGNORE_SPACE",
        "--default-time-zone=+05:30",
        "--init-connect=SET time_zone='-11:00', innodb_lock_wait_timeout=50, sql_select_limit=0",
        "--transaction-isolation=SERIALIZABLE",
        "--autocommit=0",
        "--character-set-server=utf16",
        "--collation-server=utf16_general_ci",
        "--skip-character-set-client-handshake",
        "--lower-case-table-names=1",
        "--log-bin=binlog",
        "--binlog-format=STATEMENT",
        "--innodb-rollback-on-timeout",
        "--default-storage-engine=MyISAM",
        "--innodb-snapshot-isolation=ON",
        "--innodb-flush-log-at-trx-commit=0",
        "--max-allowed-packet=1M",
    ]);
    let (one, two) = (connect(&server.url()), connect(&server.url()));
    let mut last = 0;
    for _ in 0..5 {
        let mut lock = try_lock(&one, "m").unwrap();
        assert_safe!(lock.fence() > last, "the fence did not rise");
        last = lock.fence();
        assert_safe!(try_lock(&two, "m").is_none(), "held twice");
        assert_eq!(lock.extend(LEASE).unwrap(), Extension::Extended);
        assert!(lock.check().unwrap());
        assert_safe!(try_lock(&two, "m").is_none(), "the time zone does not matter");
        assert_eq!(lock.unlock().unwrap(), Release::Released);
    }
    let short = one.mutex("short", Duration::from_secs(1)).unwrap().try_lock().unwrap().unwrap();
    assert!(two.mutex("short", LEASE).unwrap().lock_for(PATIENCE).unwrap().is_some());
    drop(short);
    let mut list = one.distinct_list("l").unwrap();
    let _ = list.set_up(LEASE).unwrap();
    assert!(matches!(list.insert("key").unwrap(), Some(Insertion::First(_))));
    assert_safe!(
        matches!(list.insert("key").unwrap(), Some(Insertion::Duplicate(_))),
        "accepted twice"
    );
    let error = list.insert("x".repeat(600_000)).map(drop).unwrap_err();
    assert!(error.to_string().contains("64 KiB") || error.to_string().contains("bytes"), "{error}");
}

#[test]
fn a_small_packet_is_told() {
    let server = Alone::get();
    server.set("max_allowed_packet", "16384");
    let client = Place::on(&server).client("");
    let mut list = client.distinct_list("l").unwrap();
    let _ = list.set_up(LEASE).unwrap();
    let error = list.insert("x".repeat(60_000)).map(drop).unwrap_err();
    assert!(error.to_string().contains("max_allowed_packet"), "{error}");
    assert!(matches!(list.insert("short").unwrap(), Some(Insertion::First(_))));
    assert!(try_lock(&client, "m").is_some());
}

/// The function counts its calls on from the second in which the server was started.
#[test]
fn many_calls_of_uuid_short_begin_no_new_life_of_the_server() {
    let place = Place::on(shared());
    let keys = Keyspace::default();
    let key = &keys.lock(b"m");
    let epoch = || {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let store = schemes::connect(&url::patient(&place.url()), &clock).unwrap();
        let run = |op: Op<'_>| store.run(Route::of(key), &[op]).unwrap().remove(0);
        let _ = run(Op::add(key, b"v", Expiry::After(LEASE), Returns::Fence));
        let Reply::Value(item) = run(Op::get(key)) else { panic!("it is there") };
        item.version.epoch()
    };
    let before = epoch();
    place.sql("SELECT BENCHMARK(17000000, UUID_SHORT())");
    // A connection in which the server's next second begins may take it for another life.
    let same = poll_until(PATIENCE, || (epoch() == before).then_some(()));
    assert!(same.is_some(), "{before:?} became {:?}", epoch());
}

/// From the third one of a kind on a connection, a statement is prepared.
#[test]
fn prepared_statements_are_answered_as_others() {
    let server = Alone::get();
    let place = Place::on(&server);
    let url = place.url();
    for prepares in [true, false] {
        server.set("max_prepared_stmt_count", if prepares { "100" } else { "0" });
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let store = schemes::connect(&url, &clock).unwrap();
        let keys = Keyspace::default();
        for number in 0..6 {
            let key = &keys.lock(format!("{prepares} {number}").as_bytes());
            let run = |op: Op<'_>| store.run(Route::of(key), &[op]).unwrap().remove(0);
            let (expiry, returns) = (Expiry::After(LEASE), Returns::Fence);
            let value = &b"'\"\\\0\xff?;"[..];
            let Reply::Stored(first) = run(Op::add(key, value, expiry, returns)) else {
                panic!("it was free");
            };
            assert_eq!(run(Op::add(key, value, expiry, returns)), Reply::Exists);
            let set = |version| Op::CompareAndSet { key, version, value, expiry, returns };
            let delete = |version| Op::Delete { key, version };
            let Reply::Stored(second) = run(set(first.version)) else { panic!("it was there") };
            assert_safe!(second.fence > first.fence, "the fence did not rise");
            assert_safe_eq!(
                run(set(first.version)),
                Reply::VersionMismatch,
                "another client's value"
            );
            assert_safe_eq!(
                run(delete(first.version)),
                Reply::VersionMismatch,
                "another client's value"
            );
            let Reply::Value(item) = run(Op::get(key)) else { panic!("it is there") };
            assert_eq!((item.value.as_slice(), item.version), (value, second.version));
            assert_eq!(run(delete(second.version)), Reply::Deleted);
            assert_eq!(run(delete(second.version)), Reply::Missing);
            assert_eq!(run(set(second.version)), Reply::Missing);
            let expected = format!("Prepared_stmt_count\t{}\n", u32::from(prepares) * 3);
            // The sessions of the store before may end later.
            let is_as_expected = poll_until(PATIENCE, || {
                let count = server.sql("SHOW GLOBAL STATUS LIKE 'Prepared_stmt_count'");
                (count == expected).then_some(())
            });
            assert!(is_as_expected.is_some(), "{expected}");
            if number == 4 {
                server.sql(&format!("DROP TABLE {}.memlock_items", place.database));
            }
        }
    }
}

#[test]
fn a_full_table_in_memory_grants_nothing_and_loses_nothing() {
    let server = Alone::get();
    server.set("max_heap_table_size", "262144");
    let client = Place::on(&server).client("engine=MEMORY");
    let mut held = Vec::new();
    let error = loop {
        match client.mutex(format!("{}", held.len()), LEASE).unwrap().try_lock() {
            Ok(lock) => held.push(lock.unwrap()),
            Err(error) => break error,
        }
        assert!(held.len() < 1000, "it is never full");
    };
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    assert!(error.to_string().contains("max_heap_table_size"), "{error}");
    assert!(held.len() > 20, "{}", held.len());
    assert!(held.iter().all(|lock| lock.check().unwrap()));
    assert_eq!(held.remove(0).unlock().unwrap(), Release::Released);
    let room =
        poll_until(PATIENCE, || client.mutex("another", LEASE).unwrap().try_lock().ok().flatten());
    assert!(room.is_some(), "what is over makes room");
    assert!(held.iter().all(|lock| lock.check().unwrap()));
}
