//! A standby is promoted, or an older copy is restored: fences rise, and the locks of the copy stay held.

use std::fs;
use std::thread;
use std::time::Duration;

use memlock_core::{ErrorKind, Release, RenewOptions};
use memlock_tests::assert_safe;
use memlock_tests::client::{fence, fences_rise, last_fence};
use memlock_tests::launch::{run, until};
use memlock_tests::names::{Name, relays};
use memlock_tests::postgresql::{Postgresql, program};
use memlock_tests::process::Server;

use crate::{LEASE, PATIENCE, Place, alone, connect, is_free};

/// By how many seconds the clock of another server is ahead.
const CLOCKS: [i64; 3] = [0, -29, -86_400];

const KINDS: [&str; 2] = ["durable=no", "durable=yes"];

/// Without what the primary has committed last.
#[test]
fn a_promoted_standby_gives_greater_fences() {
    let primary = alone();
    for ahead in CLOCKS {
        let place = Place::on(&primary);
        fence(&place.client("durable=yes"));
        let files = primary.copy();
        let last = last_fence(|| place.client("durable=yes"));
        let settings = ["primary_conninfo=", "max_connections=12"];
        let standby = Postgresql::with_clock(files, &settings, ahead);
        let other = Place { server: &standby, ..place }.client("durable=yes");
        let error = other.mutex("f", LEASE).unwrap().try_lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.to_string().contains("standby"), "{error}");
        standby.sql("SELECT pg_promote()");
        fences_rise(last, &[&other], &format!("promoted, {ahead} s"));
    }
}

/// The demoted server stays there, and answers: only its errors say that it takes no writes.
#[test]
fn a_name_is_followed_from_a_demoted_primary_to_its_promoted_standby() {
    let primary = Postgresql::with(&["max_connections=12"]);
    let address = |server: &Postgresql| server.process().address();
    let standby = Postgresql::on(primary.copy(), &["max_connections=12"]);
    let places = [("127.0.0.2", address(&primary)), ("127.0.0.3", address(&standby))];
    let ([_old, _new], port) = relays(places);
    let name = Name::of(&["127.0.0.2"]);
    let url = primary.url_at(&name.with_port(port));
    let client = connect(&memlock_tests::url::with(&url, "durable=yes"));
    // The failover is over before it ends.
    let lock = client.mutex("m", Duration::from_secs(20)).unwrap().lock().unwrap();
    let kept = lock.renew(RenewOptions::default()).unwrap();
    let has = |name: &str| {
        let count = format!("SELECT count(*) FROM memlock.items WHERE key = 'lock:{name}'");
        standby.try_sql(&count).is_ok_and(|count| count == "1")
    };
    until("the standby has the lock", || has("m"));
    standby.sql("SELECT pg_promote()");
    primary.sql("ALTER SYSTEM SET default_transaction_read_only = on");
    primary.sql("SELECT pg_reload_conf()");
    until("the primary takes no writes", || {
        primary.sql("SHOW default_transaction_read_only") == "on"
    });
    name.lead_to(&["127.0.0.3"]);
    let next = client.mutex("n", LEASE).unwrap().try_lock().unwrap().unwrap();
    assert!(has("n"));
    let expires = || standby.sql("SELECT expires FROM memlock.items WHERE key = 'lock:m'");
    let before = expires();
    until("the lock is renewed on the standby", || expires() != before);
    assert!(kept.is_held() && kept.lost().is_none());
    assert_eq!(kept.release().unwrap(), Release::Released);
    drop(next);
    assert!(is_free(&client, "m") && is_free(&client, "n"));
}

/// Which answers what they ask: that the lock is held.
#[test]
fn waiters_follow_a_name_from_a_server_that_has_become_read_only() {
    let [old, new] = [(); 2].map(|()| Postgresql::with(&["max_connections=12"]));
    let address = |server: &Postgresql| server.process().address();
    let ([_old, _new], port) = relays([("127.0.0.2", address(&old)), ("127.0.0.3", address(&new))]);
    let name = Name::of(&["127.0.0.2"]);
    let url = memlock_tests::url::with(&old.url_at(&name.with_port(port)), "notify=off");
    let (holder, waiter) = (connect(&old.url_at(&address(&old))), connect(&url));
    let held = holder.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.mutex("m", LEASE).unwrap().lock_for(PATIENCE));
        let queue = "SELECT count(*) FROM memlock.items WHERE key = 'lock:m%wait'";
        until("it waits", || old.sql(queue) == "1");
        old.sql("ALTER SYSTEM SET default_transaction_read_only = on");
        old.sql("SELECT pg_reload_conf()");
        until("it takes no writes", || old.sql("SHOW default_transaction_read_only") == "on");
        name.lead_to(&["127.0.0.3"]);
        assert!(waits.join().unwrap().unwrap().is_some(), "it asks the old one");
    });
    held.abandon();
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
        let last = last_fence(|| place.client(kind));
        let restored = Postgresql::with_clock(files, &["max_connections=12"], ahead);
        let life = format!("SELECT id FROM {}.life", place.name);
        let copied = Place { server: &restored, ..place };
        let other = copied.client(kind);
        fences_rise(last, &[&other], &format!("snapshot, {kind}, {ahead} s"));
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
        let last = last_fence(|| place.client(kind));
        let mut restore = server.psql();
        restore.arg("-f").arg(&file);
        run(restore);
        // A connection that has looked a moment ago does not look again.
        thread::sleep(Duration::from_secs(1));
        fences_rise(last, &[&idle, &place.client(kind)], &format!("dump, {kind}"));
        assert_safe!(!is_free(&place.client(kind), "held"), "the lock of the copy is free");
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
        let last = last_fence(|| place.client(kind));
        set_to(last - 3_600_000_000);
        thread::sleep(Duration::from_secs(1));
        let last = fences_rise(last, &[&idle, &place.client(kind)], &format!("set back, {kind}"));
        // An hour later, to a number of this life: new connections begin above it.
        let minute = 60_000_000;
        let long_ago = last - 60 * minute;
        server.sql(&format!(
            "UPDATE {}.life SET timeline = replace(timeline, split_part(timeline, ' ', 4), '{long_ago}')",
            place.name
        ));
        set_to(long_ago);
        let raised = last_fence(|| place.client(kind));
        assert!((last - minute..last).contains(&raised), "{raised}, and it was {last}");
        set_to(raised - 10 * minute);
        fences_rise(raised, &[&place.client(kind)], &format!("set back later, {kind}"));
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
    let last = last_fence(|| place.client("durable=yes"));
    let url = place.url().replace("/postgres?", "/copy?");
    let other = connect(&memlock_tests::url::with(&url, "durable=yes"));
    fences_rise(last, &[&other], "copied");
    drop(other);
    server.sql("DROP DATABASE copy WITH (FORCE)");
}
