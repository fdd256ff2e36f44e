//! Rows that others lock, drop or fill with other things; and fences while many race.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use memlock_core::{ErrorKind, Extension, Release};
use memlock_tests::launch::{poll_until, until};
use memlock_tests::{assert_safe, assert_safe_eq};

use crate::{LEASE, PATIENCE, Place, SOON, connect, is_free, refused_for_a_locked_row, shared};

/// Rows that come and go: a sweep deletes the row of the lock between two holders.
#[test]
fn fences_rise_while_rows_are_deleted() {
    let place = Place::on(shared());
    let last = AtomicU64::new(0);
    thread::scope(|scope| {
        let holders = [(); 4].map(|()| {
            scope.spawn(|| {
                let client = place.client("durable=no");
                let mutex = client.mutex("m", LEASE).unwrap();
                for _ in 0..100 {
                    let mut lock = mutex.lock().unwrap();
                    let before = last.swap(lock.fence(), Ordering::SeqCst);
                    assert_safe!(before < lock.fence(), "{} after {before}", lock.fence());
                    assert_eq!(lock.unlock().unwrap(), Release::Released);
                }
            })
        });
        // In one session, which does it as often as it can.
        let mut sweeper = place.server.stranger();
        let sweep = format!("DELETE FROM {}.items WHERE expires < clock_timestamp();", place.name);
        place.until(
            &format!(
                "FROM pg_class WHERE relnamespace::regnamespace::text = '{}' \
            AND relname = 'items'",
                place.name
            ),
            "1",
        );
        while !holders.iter().all(ScopedJoinHandle::is_finished) {
            sweeper.run(&sweep);
        }
    });
}

/// Somebody has forgotten a transaction at psql. Each call here returns while that goes on.
#[test]
fn a_row_that_a_stranger_has_locked_holds_no_call_up() {
    let place = Place::on(shared());
    let (patient, client) = (place.client("durable=no"), place.client(SOON));
    let mut lock = patient.mutex("m", LEASE).unwrap().lock().unwrap();
    drop(patient.mutex("free", LEASE).unwrap().lock().unwrap());
    let mut stranger = place.server.stranger();
    stranger.run(&format!("BEGIN; SELECT key FROM {}.items FOR UPDATE;", place.name));
    let free = client.mutex("free", LEASE).unwrap();
    refused_for_a_locked_row(|| free.try_lock());
    // Others are not concerned. A server that had not answered would not be asked for the release of
    // a lock that is dropped.
    let other = client.mutex("other", LEASE).unwrap();
    let lock_other = || other.lock_for(PATIENCE).ok().flatten();
    drop(poll_until(PATIENCE, lock_other).expect("it is not concerned"));
    until("it is released", || is_free(&patient, "other"));
    let held = client.mutex("m", LEASE).unwrap();
    refused_for_a_locked_row(|| held.force_unlock(&lock.token().to_string()));
    // Nothing waits at the server any more.
    place.until(&place.waiting(), "0");
    stranger.run("ROLLBACK;");
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    assert!(is_free(&patient, "free"));
}

/// Somebody changes the table, or makes a backup in the wrong way.
#[test]
fn a_table_that_a_stranger_has_locked_holds_up_two_drops_at_most() {
    const LOCKS: u32 = 30;
    let place = Place::on(shared());
    // The first lock creates the table.
    let (patient, client) = (place.client("durable=no"), place.client(SOON));
    drop(patient.mutex("first", LEASE).unwrap().lock().unwrap());
    let lock = |n: u32| {
        let mutex = client.mutex(format!("m{n}"), LEASE).unwrap();
        poll_until(PATIENCE, || mutex.lock().ok()).expect("it is free")
    };
    let locks: Vec<_> = (0..LOCKS).map(lock).collect();
    let mut stranger = place.server.stranger();
    stranger.run(&format!("BEGIN; LOCK TABLE {}.items;", place.name));
    drop(locks);
    // The server logs each statement that it had to cancel.
    let cancelled = || place.logged().iter().filter(|line| line.contains("ERROR")).count();
    until("one is cancelled", || cancelled() > 0);
    place.until(&place.waiting(), "0");
    assert!(cancelled() <= 2, "{:?}", place.logged());
    stranger.run("ROLLBACK;");
    // The rest is released with the next locks.
    let is_done = || {
        drop(client.mutex("next", LEASE).unwrap().lock());
        (0..LOCKS).all(|n| is_free(&patient, &format!("m{n}"))).then_some(())
    };
    poll_until(PATIENCE, is_done).unwrap();
}

/// Also where the role has a time limit of its own, and before the session has memlock's.
#[test]
fn a_locked_table_is_told_from_a_locked_row() {
    let place = Place::on(shared());
    let name = &place.name;
    drop(place.client("durable=no").mutex("m", LEASE).unwrap().lock().unwrap());
    let mut stranger = place.server.stranger();
    for (limit, locked, says) in [
        ("100ms", "SELECT key FROM NAME.items FOR UPDATE", "the lock's row"),
        ("100ms", "LOCK TABLE NAME.items", "a table of the schema"),
        ("100ms", "LOCK TABLE NAME.life", "a table of the schema"),
        ("0", "LOCK TABLE NAME.life", "a table of the schema"),
    ] {
        place.server.sql(&format!("ALTER ROLE {name} SET lock_timeout = '{limit}'"));
        stranger.run(&format!("BEGIN; {};", locked.replace("NAME", name)));
        let error =
            refused_for_a_locked_row(|| place.client(SOON).mutex("m", LEASE).unwrap().try_lock());
        assert!(error.to_string().contains(says), "{locked}: {error}");
        stranger.run("ROLLBACK;");
    }
}

/// The release of a holder that has waited reads the queue behind it, in one request. The release is
/// carried out, and then somebody locks the table: the read fails, and the release has succeeded.
#[test]
fn a_release_that_was_carried_out_is_not_denied() {
    let place = Place::on(shared());
    // It waits for the table for most of that.
    let (client, other) =
        (place.client("durable=no"), place.client("io_timeout=12s&connect_timeout=20s"));
    let items = format!("{}.items", place.name);
    let mut first = client.mutex("m", LEASE).unwrap().lock().unwrap();
    let mut lock = thread::scope(|scope| {
        let waiter = scope.spawn(|| other.mutex("m", LEASE).unwrap().lock().unwrap());
        place.until(&format!("FROM {items} WHERE key = 'lock:m%wait' AND value <> ''"), "1");
        assert_eq!(first.unlock().unwrap(), Release::Released);
        waiter.join().unwrap()
    });
    let (mut rows, mut table) = (place.server.stranger(), place.server.stranger());
    rows.run(&format!("BEGIN; SELECT key FROM {items} WHERE key = 'lock:m' FOR UPDATE;"));
    let released = thread::scope(|scope| {
        let release = scope.spawn(|| lock.unlock());
        place.until(&place.waiting(), "1");
        let locker = scope.spawn(|| table.run(&format!("BEGIN; LOCK TABLE {items};")));
        place.until(&place.waiting(), "2");
        rows.run("COMMIT;");
        locker.join().unwrap();
        release.join().unwrap()
    });
    table.run("COMMIT;");
    assert!(is_free(&client, "m"));
    assert_eq!(released.unwrap_err().kind(), ErrorKind::Unknown);
    assert_eq!(lock.remaining(), Duration::ZERO);
}

/// A waiter that finds no queue creates it, even if another waiter does so while the server looks
/// whether the queue was missing or too long.
#[test]
fn a_queue_that_is_just_being_created_is_not_too_long() {
    let place = Place::on(shared());
    let name = &place.name;
    drop(place.client("durable=no").mutex("m", LEASE).unwrap().lock().unwrap());
    // An update waits for the stranger, whether it has found a row or not.
    place.server.sql(&format!(
        "CREATE FUNCTION {name}.pause() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$;
        CREATE TRIGGER pause AFTER UPDATE ON {name}.items EXECUTE FUNCTION {name}.pause()"
    ));
    let apply = |op: u32, value: &str| {
        format!(
            "SELECT code FROM {name}.apply_1({op}, 'lock:m%wait', '{value}', NULL, '5 minutes', NULL, NULL, NULL, \
             NULL);"
        )
    };
    let (add, append) = (apply(1, ""), apply(5, "a waiter"));
    let (mut first, mut second) = (place.server.stranger(), place.server.stranger());
    first.run("SELECT pg_advisory_lock(1);");
    let appended = thread::scope(|scope| {
        let append = scope.spawn(|| second.ask(&append));
        place.until(&place.waiting(), "1");
        assert_eq!(first.ask(&add), "1", "stored");
        first.run("SELECT pg_advisory_unlock(1);");
        append.join().unwrap()
    });
    assert_eq!(appended, "4", "missing");
    assert_eq!(second.ask(&append), "1", "stored");
}

#[test]
fn a_request_that_the_server_cancels_has_changed_nothing() {
    let place = Place::on(shared());
    let name = &place.name;
    drop(place.client("durable=no").mutex("m", LEASE).unwrap().lock().unwrap());
    place.server.sql(&format!("ALTER ROLE {name} SET statement_timeout = '500ms'"));
    let mut stranger = place.server.stranger();
    stranger.run(&format!("BEGIN; SELECT key FROM {name}.items FOR UPDATE;"));
    let error = place.client("durable=no").mutex("m", LEASE).unwrap().try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("statement_timeout"), "{error}");
    stranger.run("ROLLBACK;");
    place.server.sql(&format!("ALTER ROLE {name} RESET statement_timeout"));
    assert!(is_free(&place.client("durable=no"), "m"));
}

/// The statement that `release_sql` gives, in a transaction of somebody else's.
#[test]
fn a_lock_is_released_with_a_transaction_or_not_at_all() {
    let place = Place::on(shared());
    let (client, other) = (place.client("durable=no"), place.client("durable=no"));
    let locked_out = place.client(SOON);
    let name = "it's 100%\\";
    let others = other.mutex(name, LEASE).unwrap();
    let rows = "\\if :ROW_COUNT\n\\echo one\n\\else\n\\echo none\n\\endif";
    for settings in ["", "SET standard_conforming_strings = off;"] {
        let mut stranger = place.server.stranger();
        stranger.run(settings);
        // Rolled back: it is held on.
        let mut lock = client.mutex(name, LEASE).unwrap().lock().unwrap();
        let statement = lock.release_sql().unwrap();
        stranger.run("BEGIN;");
        assert_eq!(stranger.ask(&format!("{statement};\n{rows}")), "one");
        stranger.run("ROLLBACK;");
        assert!(others.try_lock().unwrap().is_none());
        assert_eq!(lock.extend(LEASE).unwrap(), Extension::Extended);
        assert_eq!(lock.unlock().unwrap(), Release::Released);
        // Committed, after the lease has ended: meanwhile nobody else gets it.
        let lease = Duration::from_secs(6);
        let mut lock = client.mutex(name, lease).unwrap().lock().unwrap();
        let statement = lock.release_sql().unwrap();
        stranger.run("BEGIN;");
        assert_eq!(stranger.ask(&format!("{statement};\n{rows}")), "one");
        thread::sleep(lease + Duration::from_millis(500));
        let others_too = locked_out.mutex(name, LEASE).unwrap();
        refused_for_a_locked_row(|| others_too.try_lock());
        place.until(&place.waiting(), "0");
        stranger.run("COMMIT;");
        let _ = lock.unlock();
        let next = others.try_lock().unwrap().unwrap();
        // Of a holder that has lost it, nothing is released.
        stranger.run("BEGIN;");
        assert_eq!(stranger.ask(&format!("{statement};\n{rows}")), "none");
        stranger.run("COMMIT;");
        assert!(next.check().unwrap());
    }
}

/// The server refuses it while the transaction keeps the row locked.
#[test]
fn an_extension_before_the_end_of_the_releasing_transaction_changes_nothing() {
    let place = Place::on(shared());
    for (end, extended) in [("ROLLBACK;", Extension::Extended), ("COMMIT;", Extension::Lost)] {
        let client = place.client(SOON);
        let mut lock = client.mutex("m", LEASE).unwrap().lock_for(PATIENCE).unwrap().unwrap();
        let statement = lock.release_sql().unwrap();
        let mut stranger = place.server.stranger();
        stranger.run("BEGIN;");
        stranger.run(&format!("{statement};"));
        let error = refused_for_a_locked_row(|| lock.extend(LEASE));
        assert!(error.to_string().contains("end the transaction first"), "{error}");
        assert!(lock.remaining().is_zero(), "it may be released");
        stranger.run(end);
        assert_eq!(poll_until(PATIENCE, || lock.extend(LEASE).ok()), Some(extended));
    }
}

/// The same by the functions of the C library.
#[test]
fn a_statement_of_the_c_library_releases_a_lock() {
    use std::ffi::{CStr, CString};
    use std::ptr::null_mut;
    let place = Place::on(shared());
    let url = CString::new(memlock_tests::url::patient(&place.url())).unwrap();
    let other = place.client("durable=no");
    let (mut client, mut lock) = (null_mut(), null_mut());
    let mut sql = [1; memlock::MEMLOCK_SQL_SIZE];
    // SAFETY: strings, local variables for what is returned, open handles, and a buffer with its
    // size. A freed handle is not used again.
    unsafe {
        assert_eq!(memlock::memlock_client_open(url.as_ptr(), &raw mut client), 0);
        let name = c"m".as_ptr();
        assert_eq!(memlock::memlock_mutex_lock(client, name, 60_000, 0, &raw mut lock), 0);
        let written = memlock::memlock_lock_release_sql(lock, sql.as_mut_ptr(), sql.len());
        assert_eq!(written, 0);
        let statement = CStr::from_ptr(sql.as_ptr()).to_str().unwrap();
        assert!(!is_free(&other, "m"));
        place.server.sql(&format!("BEGIN; {statement}; COMMIT"));
        assert!(is_free(&other, "m"));
        let next = other.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
        assert_eq!(memlock::memlock_unlock(lock), 0, "it was released, and not lost");
        assert!(next.check().unwrap());
        memlock::memlock_client_close(client);
    }
}

/// Two transactions that create the same thing fail, even with `IF NOT EXISTS`.
#[test]
fn the_first_clients_may_all_come_at_once() {
    const CLIENTS: usize = 8;
    let place = Place::on(shared());
    for round in 0..4 {
        let schema = format!("schema={}_{round}", place.name);
        let url = place.url().replace(&format!("schema={}", place.name), &schema);
        let start = Barrier::new(CLIENTS);
        let granted = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    let client = connect(&url);
                    let mutex = client.mutex("m", LEASE).unwrap();
                    start.wait();
                    let lock = mutex.try_lock().unwrap();
                    granted.fetch_add(u64::from(lock.is_some()), Ordering::SeqCst);
                    start.wait();
                });
            }
        });
        assert_safe_eq!(granted.load(Ordering::SeqCst), 1, "round {round}");
    }
    assert_eq!(place.logged(), Vec::<String>::new());
}

#[test]
fn what_was_dropped_is_created_again_and_its_locks_are_lost() {
    let place = Place::on(shared());
    let client = place.client("durable=no");
    for (statement, is_lost) in [
        ("DROP SCHEMA memlock CASCADE", true),
        ("DROP FUNCTION memlock.live_1", false),
        ("DROP FUNCTION memlock.apply_1", false),
        ("DROP TABLE memlock.items", true),
        ("DROP TABLE memlock.life", false),
        ("TRUNCATE memlock.items", true),
    ] {
        let mut lock = client.mutex("m", LEASE).unwrap().lock().unwrap();
        let fence = lock.fence();
        place.server.sql(&statement.replace("memlock", &place.name));
        assert_eq!(lock.check().unwrap(), !is_lost, "{statement}");
        assert_eq!(lock.unlock().unwrap() == Release::Released, !is_lost, "{statement}");
        let next = client.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
        assert_safe!(next.fence() > fence, "{statement}: {} after {fence}", next.fence());
    }
}

/// Also by a client that comes later. The first attempt of one that is connected may find out.
#[test]
fn a_part_that_was_dropped_is_created_again_and_fences_rise() {
    for part in ["TABLE memlock.life", "SEQUENCE memlock.numbers", "FUNCTION memlock.timeline_1"] {
        let place = Place::on(shared());
        let client = place.client("durable=no");
        let mut lock = client.mutex("m", LEASE).unwrap().lock().unwrap();
        let fence = lock.fence();
        // The numbers of a life begin a second ahead of the clock.
        let micros = "SELECT extract(epoch FROM clock_timestamp()) * 1000000 > ";
        let is_past = || (place.server.sql(&format!("{micros}{fence}")) == "t").then_some(());
        assert!(poll_until(PATIENCE, is_past).is_some());
        place.server.sql(&format!("DROP {}", part.replace("memlock", &place.name)));
        for client in [place.client("durable=no"), client] {
            assert!(client.mutex("m", LEASE).unwrap().try_lock().unwrap().is_none(), "{part}");
            let other = client.mutex("n", LEASE).unwrap().try_lock().unwrap().unwrap();
            assert_safe!(other.fence() > fence, "{part}");
        }
        assert_eq!(lock.unlock().unwrap(), Release::Released, "{part}");
        let next = place.client("durable=no").mutex("m", LEASE).unwrap().try_lock().unwrap();
        assert_safe!(next.unwrap().fence() > fence, "{part}");
    }
}

#[test]
fn what_others_put_into_the_table_breaks_nothing() {
    let place = Place::on(shared());
    let client = place.client("durable=no");
    let foreign = [
        ("huge", "convert_to(repeat('x', 3000000), 'UTF8')"),
        ("bytes", "'\\xff00fe'"),
        ("empty", "''"),
    ];
    let items = format!("{}.items", place.name);
    for (name, value) in foreign {
        drop(client.mutex(name, LEASE).unwrap().lock().unwrap());
        place.server.sql(&format!(
            "UPDATE {items} SET value = {value}, expires = 'infinity' WHERE key = 'lock:{name}'"
        ));
    }
    place.server.sql(&format!("INSERT INTO {items} VALUES ('ключ''\"; DROP', '1', 7, 'infinity')"));
    for (name, _) in foreign {
        assert!(client.mutex(name, LEASE).unwrap().try_lock().is_ok_and(|lock| lock.is_none()));
    }
    let error = client.mutex("huge", LEASE).unwrap().owner().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol);
    assert!(error.to_string().contains("1 MiB"), "{error}");
    drop(client.mutex("other", LEASE).unwrap().lock().unwrap());
}

/// A log that fills with every lock would fill the server's disk. A role may have another isolation
/// level than what locks need: under it, transactions would fall victim to each other.
#[test]
fn the_server_logs_nothing_of_ordinary_use_under_any_default_isolation() {
    for isolation in ["read committed", "serializable"] {
        let place = Place::on(shared());
        place.server.sql(&format!(
            "ALTER ROLE {} SET default_transaction_isolation = '{isolation}'",
            place.name
        ));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let client = place.client("durable=no");
                    let mutex = client.mutex("m", LEASE).unwrap();
                    for _ in 0..50 {
                        let mut lock = mutex.lock_for(PATIENCE).unwrap().unwrap();
                        assert_eq!(lock.unlock().unwrap(), Release::Released);
                        let _ = mutex.try_lock().unwrap();
                    }
                    let semaphore = client.semaphore("s", 2, LEASE).unwrap();
                    for _ in 0..20 {
                        drop(semaphore.acquire().unwrap());
                    }
                });
            }
        });
        assert_eq!(place.logged(), Vec::<String>::new(), "{isolation}");
    }
}
