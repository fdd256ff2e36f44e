//! Processes that are killed, stopped, or ended by hand.

use std::io;
use std::thread;
use std::time::Duration;

use memlock_core::name::Keyspace;
use memlock_core::store::{Expiry, Op, Reply, Returns, Route, Version};
use memlock_core::{ErrorKind, Release};
use memlock_tests::assert_safe;
use memlock_tests::client;
use memlock_tests::guarded;
use memlock_tests::launch::{START_LIMIT, poll_until, run, until};
use memlock_tests::postgresql::Postgresql;
use memlock_tests::process::Server;
use memlock_tests::url;

use crate::{LEASE, Place, alone, is_free, shared};

/// Only the last transaction of a batch waits for the disk; here the last one writes nothing.
#[test]
fn what_a_batch_has_replied_is_on_the_disk() {
    let server = alone();
    let url = url::with(&Place::on(&server).url(), "durable=yes");
    let store = client::store(&url);
    let keys = Keyspace::default();
    let (first, second, other) = (keys.lock(b"1"), keys.lock(b"2"), keys.lock(b"other"));
    let expiry = Expiry::After(LEASE);
    let add = |key| Op::add(key, b"v", expiry, Returns::Version);
    let run = |ops: &[Op<'_>]| store.run(Route::of(&first), ops).unwrap();
    let replies = run(&[add(&other), Op::get(&other)]);
    let Reply::Stored(stored) = replies[0] else { panic!("{replies:?}") };
    let version = Version::new(stored.version.epoch(), 7);
    let delete = Op::Delete { key: &other, version };
    let replies = run(&[add(&first), add(&second), delete, Op::get(&other)]);
    assert!(matches!(replies[..2], [Reply::Stored(_), Reply::Stored(_)]), "{replies:?}");
    assert_eq!(replies[2], Reply::VersionMismatch);
    server.restart();
    let store = client::store(&url);
    let there = store.run(Route::of(&first), &[Op::get(&first), Op::get(&second)]).unwrap();
    assert!(there.iter().all(|reply| matches!(reply, Reply::Value(_))), "{there:?}");
}

/// Kills a session, which empties the tables that are not logged.
fn crash(server: &Postgresql, place: &Place<'_>) {
    let began = server.sql("SELECT pg_postmaster_start_time()");
    let session = server.sql(&format!("SELECT pid {} LIMIT 1", place.sessions()));
    let session: i32 = session.parse().unwrap();
    // SAFETY: it is a session of the server that this test has started.
    assert_eq!(unsafe { libc::kill(session, libc::SIGKILL) }, 0);
    // It is a zombie until the postmaster has seen its end, which ends all other sessions.
    until("the postmaster has seen its end", || {
        // SAFETY: signal 0 only asks whether the process is there.
        let is_there = unsafe { libc::kill(session, 0) } == 0;
        !is_there && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
    });
    let answers = || server.try_sql("SELECT pg_postmaster_start_time()").ok();
    assert_eq!(poll_until(START_LIMIT, answers), Some(began));
}

#[test]
fn with_a_guard_a_young_server_grants_nothing_and_its_clients_agree() {
    guarded::is_agreed(&Place::on(shared()).url());
}

/// The server's clock was set back by an hour since the clients agreed, or the item does not tell.
#[test]
fn with_a_guard_an_item_that_cannot_tell_its_age_is_written_anew() {
    let place = Place::on(shared());
    let url = url::with(&place.url(), "guard=600s");
    let mutex = || memlock_core::Client::connect(&url).unwrap().mutex("m", LEASE).unwrap();
    assert!(mutex().owner().unwrap().is_none());
    let item = format!("{}.items WHERE key = 'memlock%config'", place.name);
    let value = || shared().sql(&format!("SELECT convert_from(value, 'UTF8') FROM {item}"));
    let written = value();
    let since = |value: &str| value.split_once(" since=").unwrap().1.parse::<u64>().unwrap();
    let later = since(&written) + 3_600_000_000;
    for bad in
        ["memlock-config/1 guard=600s", &*format!("memlock-config/1 guard=600s since={later}")]
    {
        let table = item.replacen(" WHERE", &format!(" SET value = '{bad}' WHERE"), 1);
        shared().sql(&format!("UPDATE {table}"));
        assert_eq!(value(), bad);
        assert!(mutex().owner().unwrap().is_none());
        let now = value();
        assert!((since(&written)..later).contains(&since(&now)), "{now} after {bad}");
    }
}

#[test]
#[ignore = "real time: make prove"]
fn with_a_guard_what_is_held_survives_a_crash() {
    let server = alone();
    let place = Place::on(&server);
    guarded::survives(&place.url(), || crash(&server, &place));
}

/// The server ends all sessions, empties the tables that are not logged, and goes on: it was not
/// started again, and nobody sees it from outside.
#[test]
fn a_killed_session_loses_what_is_not_logged_and_nothing_else() {
    let server = alone();
    for durable in [false, true] {
        let place = Place::on(&server);
        let kind = if durable { "durable=yes" } else { "durable=no" };
        let (client, other) = (place.client(kind), place.client(kind));
        let mut lock = client.mutex("m", LEASE).unwrap().lock().unwrap();
        let fence = lock.fence();
        crash(&server, &place);
        if durable {
            assert!(lock.check().unwrap());
            assert_safe!(
                other.mutex("m", LEASE).unwrap().try_lock().unwrap().is_none(),
                "held twice"
            );
            assert_eq!(lock.unlock().unwrap(), Release::Released);
        } else {
            assert!(!lock.check().unwrap(), "it is lost, and its holder can know");
        }
        let next = other.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
        assert_safe!(next.fence() > fence, "{} after {fence}", next.fence());
        if !durable {
            assert_ne!(lock.unlock().unwrap(), Release::Released);
            assert_safe!(!is_free(&other, "m"), "a release that came too late takes nobody's lock");
        }
    }
}

#[test]
fn a_clean_restart_keeps_all_locks() {
    let server = alone();
    let place = Place::on(&server);
    let (client, other) = (place.client("durable=no"), place.client("durable=no"));
    let mut lock = client.mutex("m", LEASE).unwrap().lock().unwrap();
    server.stop();
    // A connection that was just used is not checked before it is used again.
    thread::sleep(Duration::from_millis(150));
    let error = lock.check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    server.restart();
    assert!(lock.check().unwrap());
    assert_safe!(!is_free(&other, "m"), "lost by a clean restart");
    let fence = lock.fence();
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    let next = other.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    assert_safe!(next.fence() > fence, "the fence did not rise");
}

/// By an administrator, or by `idle_session_timeout`.
#[test]
fn sessions_that_the_server_ends_are_replaced_without_a_word() {
    let server = alone();
    let place = Place::on(&server);
    let client = place.client("durable=no");
    let mut lock = client.mutex("m", LEASE).unwrap().lock().unwrap();
    // A connection that was just used is not checked before it is used again.
    for pause in [0, 150] {
        let mut tool = client.admin(0).unwrap();
        place.end_sessions();
        thread::sleep(Duration::from_millis(pause));
        assert!(lock.check().unwrap());
        assert_eq!(tool.keys(&|key| key == "lock:m").unwrap().len(), 1);
    }
    let configure = |statement: &str| {
        let mut psql = server.psql();
        // Its own session may be idle for longer.
        psql.env("PGOPTIONS", "-c idle_session_timeout=0");
        psql.args(["-c", statement, "-c", "SELECT pg_reload_conf()"]);
        run(psql);
    };
    // It holds from the next request of a session on, and not for the login of the next session,
    // which a slow machine may interrupt for longer.
    configure("ALTER SYSTEM SET idle_session_timeout = '100ms'");
    let has_it = || server.try_sql("SHOW idle_session_timeout") == Ok("100ms".to_owned());
    until("the server has told its sessions", has_it);
    assert!(lock.check().unwrap());
    configure("ALTER SYSTEM RESET idle_session_timeout");
    place.until(&place.sessions(), "0");
    assert!(lock.check().unwrap());
    assert_eq!(lock.unlock().unwrap(), Release::Released);
}
