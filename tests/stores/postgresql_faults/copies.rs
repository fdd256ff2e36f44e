//! A standby is promoted, or an older copy is restored: fences rise, and what was held in the copy is held.

use std::fs;
use std::thread;
use std::time::Duration;

use memlock_core::{Client, ErrorKind};
use memlock_tests::assert_safe;
use memlock_tests::launch::run;
use memlock_tests::postgresql::{Postgresql, program};
use memlock_tests::process::Server;

use crate::{LEASE, PATIENCE, Place, alone, connect, is_free};

/// By how many seconds the clock of another server is ahead.
const CLOCKS: [i64; 3] = [0, -29, -86_400];

const KINDS: [&str; 2] = ["durable=no", "durable=yes"];

fn fence(client: &Client) -> u64 {
    client.mutex("f", LEASE).unwrap().lock_for(PATIENCE).unwrap().unwrap().fence()
}

/// The greatest fence of several clients that connect one after the other.
fn last_fence(place: &Place<'_>, kind: &str) -> u64 {
    (0..5).map(|_| fence(&place.client(kind))).max().unwrap()
}

fn is_greater(next: u64, last: u64, after: &str) {
    assert_safe!(next > last, "{next} after {last}: {after}");
}

/// Without what the primary has committed last.
#[test]
fn a_promoted_standby_gives_greater_fences() {
    let primary = alone();
    for ahead in CLOCKS {
        let place = Place::on(&primary);
        fence(&place.client("durable=yes"));
        let files = primary.copy();
        let last = last_fence(&place, "durable=yes");
        let settings = ["primary_conninfo=", "max_connections=12"];
        let standby = Postgresql::with_clock(files, &settings, ahead);
        let other = Place { server: &standby, ..place }.client("durable=yes");
        let error = other.mutex("f", LEASE).unwrap().try_lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.to_string().contains("standby"), "{error}");
        standby.sql("SELECT pg_promote()");
        is_greater(fence(&other), last, &format!("promoted, {ahead} s"));
    }
}

/// Of the files of a server that is still there, as a snapshot of a disk is. It has no other timeline.
#[test]
fn a_restored_snapshot_gives_greater_fences() {
    let server = alone();
    for (kind, ahead) in KINDS.into_iter().flat_map(|kind| CLOCKS.map(|ahead| (kind, ahead))) {
        let place = Place::on(&server);
        let client = place.client(kind);
        let _held = client.mutex("held", LEASE).unwrap().lock().unwrap();
        let files = server.copy();
        fs::remove_file(files.join("data/standby.signal")).unwrap();
        let last = last_fence(&place, kind);
        let restored = Postgresql::with_clock(files, &["max_connections=12"], ahead);
        let life = format!("SELECT id FROM {}.life", place.name);
        let copied = Place { server: &restored, ..place };
        let other = copied.client(kind);
        is_greater(fence(&other), last, &format!("snapshot, {kind}, {ahead} s"));
        let is_same_life = server.sql(&life) == restored.sql(&life);
        assert_eq!(
            is_same_life,
            kind == "durable=yes",
            "versions stay valid while their items are there"
        );
        assert_eq!(
            is_free(&other, "held"),
            kind == "durable=no",
            "a crash empties what is not logged"
        );
    }
}

/// A dump that replaces everything closes no connection.
#[test]
fn a_restored_dump_gives_greater_fences() {
    let server = alone();
    for kind in KINDS {
        let place = Place::on(&server);
        let idle = place.client(kind);
        let held = idle.mutex("held", LEASE).unwrap().lock().unwrap();
        let file = server.files().join("dump");
        let mut dump = program("pg_dump");
        dump.args(["-h", "127.0.0.1", "-U", "memlock", "-d", "postgres", "-n", &place.name]);
        dump.args(["-p", &server.process().port().to_string(), "--clean", "--if-exists", "-f"]);
        dump.arg(&file);
        run(dump);
        let mut last = last_fence(&place, kind);
        let mut restore = server.psql();
        restore.arg("-f").arg(&file);
        run(restore);
        // A connection that has looked a moment ago does not look again.
        thread::sleep(Duration::from_secs(1));
        for client in [&idle, &place.client(kind)] {
            let next = fence(client);
            is_greater(next, last, &format!("dump, {kind}"));
            last = next;
        }
        assert_safe!(!is_free(&place.client(kind), "held"), "what was held is held");
        assert!(held.check().unwrap());
    }
}

/// As by a dump that is restored into tables that are there.
#[test]
fn a_sequence_that_was_set_back_gives_greater_fences() {
    let server = alone();
    for kind in KINDS {
        let place = Place::on(&server);
        let idle = place.client(kind);
        let held = idle.mutex("held", LEASE).unwrap().lock().unwrap();
        let set_to = |number: u64| {
            server.sql(&format!("SELECT setval('{}.numbers', {number})", place.name));
        };
        let mut last = last_fence(&place, kind);
        set_to(last - 3_600_000_000);
        thread::sleep(Duration::from_secs(1));
        for client in [&idle, &place.client(kind)] {
            let next = fence(client);
            is_greater(next, last, &format!("set back, {kind}"));
            last = next;
        }
        // An hour later, to a number of this life: new connections begin above it.
        let minute = 60_000_000;
        let long_ago = last - 60 * minute;
        server.sql(&format!(
            "UPDATE {}.life SET timeline = replace(timeline, split_part(timeline, ' ', 4), '{long_ago}')",
            place.name
        ));
        set_to(long_ago);
        let raised = last_fence(&place, kind);
        assert!((last - minute..last).contains(&raised), "{raised}, and it was {last}");
        set_to(raised - 10 * minute);
        is_greater(last_fence(&place, kind), raised, &format!("set back later, {kind}"));
        assert!(held.check().unwrap());
    }
}

#[test]
fn a_copied_database_gives_greater_fences() {
    let server = alone();
    let place = Place::on(&server);
    fence(&place.client("durable=yes"));
    place.end_sessions();
    place.until(&place.sessions(), "0");
    let mut copy = server.psql();
    copy.args(["-d", "template1", "-c", "CREATE DATABASE copy TEMPLATE postgres"]);
    run(copy);
    let last = last_fence(&place, "durable=yes");
    let url = place.url().replace("/postgres?", "/copy?");
    let other = connect(&memlock_tests::url::with(&url, "durable=yes"));
    is_greater(fence(&other), last, "copied");
    drop(other);
    server.sql("DROP DATABASE copy WITH (FORCE)");
}
