//! Rows that others lock, drop or fill with other things; and fences while many race.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::{ErrorKind, Extension, Release};
use memlock_tests::launch::poll_until;
use memlock_tests::postgresql::Postgresql;
use memlock_tests::process::Server;

use crate::{LEASE, PATIENCE, Stranger, connect, is_free, with};

/// A number that is drawn before the row is locked can be smaller than the one of the holder before.
#[test]
fn fences_rise_in_the_order_of_holding() {
    const THREADS: usize = 8;
    const HOLDS: u64 = 400;
    let server = Postgresql::start();
    let (last, held) = (AtomicU64::new(0), AtomicU64::new(0));
    let start = Barrier::new(THREADS);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let client = connect(&server.url());
                let mutex = client.mutex("m", LEASE).unwrap();
                start.wait();
                while held.load(Ordering::SeqCst) < HOLDS * THREADS as u64 {
                    // Without the queue: all of them try at the same moments.
                    let Some(mut lock) = mutex.try_lock().unwrap() else { continue };
                    held.fetch_add(1, Ordering::SeqCst);
                    let before = last.swap(lock.fence(), Ordering::SeqCst);
                    assert!(before < lock.fence(), "{} after {before}", lock.fence());
                    assert_eq!(lock.unlock().unwrap(), Release::Released);
                }
            });
        }
    });
}

/// Rows that come and go: a sweep deletes the row of the lock between two holders.
#[test]
fn fences_rise_while_rows_are_deleted() {
    let server = Postgresql::start();
    let (last, over) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let client = connect(&server.url());
                let mutex = client.mutex("m", LEASE).unwrap();
                for _ in 0..300 {
                    let mut lock = mutex.lock().unwrap();
                    let before = last.swap(lock.fence(), Ordering::SeqCst);
                    assert!(before < lock.fence(), "{} after {before}", lock.fence());
                    assert_eq!(lock.unlock().unwrap(), Release::Released);
                }
                over.fetch_add(1, Ordering::SeqCst);
            });
        }
        while over.load(Ordering::SeqCst) < 4 {
            let _ = server.try_sql("DELETE FROM memlock.items WHERE expires < clock_timestamp()");
        }
    });
}

/// Somebody has forgotten a transaction at psql.
#[test]
fn a_row_that_a_stranger_has_locked_holds_no_call_up() {
    let server = Postgresql::start();
    let client = connect(&with(&server, "io_timeout=1500ms&connect_timeout=20s"));
    let mut lock = client.mutex("m", LEASE).unwrap().lock().unwrap();
    drop(client.mutex("free", LEASE).unwrap().lock().unwrap());
    let mut stranger = Stranger::at(&server);
    stranger.run("BEGIN; SELECT key FROM memlock.items FOR UPDATE;");
    let other = client.mutex("other", LEASE).unwrap().lock().unwrap();
    let began = Instant::now();
    let error = client.mutex("free", LEASE).unwrap().try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("pg_locks"), "{error}");
    // Others are not concerned. A server that had not answered would not be asked for the release of a
    // lock that is dropped.
    drop(other);
    assert!(is_free(&client, "other"));
    let error = lock.unlock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    // Nothing waits at the server any more.
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    assert_eq!(server.sql(waiting), "0");
    stranger.run("ROLLBACK;");
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    assert!(is_free(&client, "free"));
}

/// Somebody changes the table, or makes a backup in the wrong way.
#[test]
fn a_table_that_a_stranger_has_locked_holds_up_two_drops_at_most() {
    let server = Postgresql::start();
    let client = connect(&with(&server, "io_timeout=1500ms&connect_timeout=20s"));
    let lock = |n: u32| client.mutex(format!("m{n}"), LEASE).unwrap().lock().unwrap();
    let locks: Vec<_> = (0..30).map(lock).collect();
    let mut stranger = Stranger::at(&server);
    stranger.run("BEGIN; LOCK TABLE memlock.items;");
    let began = Instant::now();
    drop(locks);
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    stranger.run("ROLLBACK;");
    // The rest is released with the next locks.
    let is_done = || {
        drop(client.mutex("next", LEASE).unwrap().lock().unwrap());
        (0..30).all(|n| is_free(&client, &format!("m{n}"))).then_some(())
    };
    poll_until(PATIENCE, is_done).unwrap();
}

fn until(server: &Postgresql, what: &str, count: &str) {
    let is_so = || (server.sql(&format!("SELECT count(*) {what}")) == count).then_some(());
    poll_until(PATIENCE, is_so).unwrap();
}

/// The release of a holder that has waited reads the queue behind it, in one request. The release is
/// carried out, and then somebody locks the table: the read fails, and the release has succeeded.
#[test]
fn a_release_that_was_carried_out_is_not_denied() {
    let server = Postgresql::start();
    let (client, other) = (connect(&server.url()), connect(&with(&server, "io_timeout=3s")));
    let mut first = client.mutex("m", LEASE).unwrap().lock().unwrap();
    let mut lock = thread::scope(|scope| {
        let waiter = scope.spawn(|| other.mutex("m", LEASE).unwrap().lock().unwrap());
        until(&server, "FROM memlock.items WHERE key = 'lock:m%wait' AND value <> ''", "1");
        assert_eq!(first.unlock().unwrap(), Release::Released);
        waiter.join().unwrap()
    });
    let (mut rows, mut table) = (Stranger::at(&server), Stranger::at(&server));
    let waiting =
        |count| until(&server, "FROM pg_stat_activity WHERE wait_event_type = 'Lock'", count);
    rows.run("BEGIN; SELECT key FROM memlock.items WHERE key = 'lock:m' FOR UPDATE;");
    let released = thread::scope(|scope| {
        let release = scope.spawn(|| lock.unlock());
        waiting("1");
        let locker = scope.spawn(|| table.run("BEGIN; LOCK TABLE memlock.items;"));
        waiting("2");
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
    let server = Postgresql::start();
    drop(connect(&server.url()).mutex("m", LEASE).unwrap().lock().unwrap());
    // An update waits for the stranger, whether it has found a row or not.
    server.sql(
        "CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$;
        CREATE TRIGGER pause AFTER UPDATE ON memlock.items EXECUTE FUNCTION pause()",
    );
    let apply = |op: u32, value: &str| {
        format!(
            "SELECT code FROM memlock.apply_1({op}, 'lock:m%wait', '{value}', NULL, '5 minutes', NULL, NULL, NULL, \
             NULL);"
        )
    };
    let (add, append) = (apply(1, ""), apply(5, "a waiter"));
    let (mut first, mut second) = (Stranger::at(&server), Stranger::at(&server));
    first.run("SELECT pg_advisory_lock(1);");
    let appended = thread::scope(|scope| {
        let append = scope.spawn(|| second.ask(&append));
        until(&server, "FROM pg_stat_activity WHERE wait_event = 'advisory'", "1");
        assert_eq!(first.ask(&add), "1", "stored");
        first.run("SELECT pg_advisory_unlock(1);");
        append.join().unwrap()
    });
    assert_eq!(appended, "4", "missing");
    assert_eq!(second.ask(&append), "1", "stored");
}

#[test]
fn a_request_that_the_server_cancels_has_changed_nothing() {
    let server = Postgresql::start();
    drop(connect(&server.url()).mutex("m", LEASE).unwrap().lock().unwrap());
    server.sql("ALTER ROLE memlock SET statement_timeout = '500ms'");
    let client = connect(&server.url());
    let mut stranger = Stranger::at(&server);
    stranger.run("SET statement_timeout = 0; BEGIN; SELECT key FROM memlock.items FOR UPDATE;");
    let error = client.mutex("m", LEASE).unwrap().try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("statement_timeout"), "{error}");
    stranger.run("ROLLBACK;");
    server.sql("ALTER ROLE memlock RESET statement_timeout");
    assert!(is_free(&connect(&server.url()), "m"));
}

/// The statement that `release_sql` gives, in a transaction of somebody else's.
#[test]
fn a_lock_is_released_with_a_transaction_or_not_at_all() {
    let server = Postgresql::start();
    let (client, other) = (connect(&server.url()), connect(&with(&server, "io_timeout=3s")));
    let lease = Duration::from_secs(4);
    let mutex = client.mutex("it's 100%\\", lease).unwrap();
    let others = other.mutex("it's 100%\\", LEASE).unwrap();
    let rows = "\\if :ROW_COUNT\n\\echo one\n\\else\n\\echo none\n\\endif";
    for settings in ["", "SET standard_conforming_strings = off;"] {
        let mut stranger = Stranger::at(&server);
        stranger.run(settings);
        // Rolled back: it is held on.
        let mut lock = mutex.lock().unwrap();
        let statement = lock.release_sql().unwrap();
        stranger.run("BEGIN;");
        assert_eq!(stranger.ask(&format!("{statement};\n{rows}")), "one");
        stranger.run("ROLLBACK;");
        assert!(others.try_lock().unwrap().is_none());
        assert_eq!(lock.extend(lease).unwrap(), Extension::Extended);
        // Committed, after the lease has ended: meanwhile nobody else gets it.
        let statement = lock.release_sql().unwrap();
        stranger.run("BEGIN;");
        assert_eq!(stranger.ask(&format!("{statement};\n{rows}")), "one");
        thread::sleep(lease + Duration::from_millis(500));
        assert!(others.try_lock().is_err(), "the row is locked");
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

/// The same by the functions of the C library.
#[test]
fn a_statement_of_the_c_library_releases_a_lock() {
    use std::ffi::{CStr, CString};
    use std::ptr::null_mut;
    let server = Postgresql::start();
    let url = CString::new(with(&server, "io_timeout=20s&connect_timeout=20s")).unwrap();
    let other = connect(&server.url());
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
        server.sql(&format!("BEGIN; {statement}; COMMIT"));
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
    let server = Postgresql::start();
    for round in 0..10 {
        let url = with(&server, &format!("schema=locks{round}&io_timeout=10s"));
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
        assert_eq!(granted.load(Ordering::SeqCst), 1, "round {round}");
    }
    let logged = server.logged();
    assert!(!logged.contains("ERROR"), "{logged}");
}

#[test]
fn what_was_dropped_is_created_again_and_its_locks_are_lost() {
    let server = Postgresql::start();
    let client = connect(&server.url());
    for statement in [
        "DROP SCHEMA memlock CASCADE",
        "DROP FUNCTION memlock.live_1",
        "DROP FUNCTION memlock.apply_1",
        "DROP TABLE memlock.items",
        "DROP TABLE memlock.life",
        "TRUNCATE memlock.items",
    ] {
        let mut lock = client.mutex("m", LEASE).unwrap().lock().unwrap();
        let fence = lock.fence();
        server.sql(statement);
        let is_held = lock.check().unwrap();
        assert_eq!(is_held, !statement.contains("items") && !statement.contains("SCHEMA"));
        if is_held {
            assert_eq!(lock.unlock().unwrap(), Release::Released, "{statement}");
        } else {
            assert_ne!(lock.unlock().unwrap(), Release::Released, "{statement}");
        }
        let next = client.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
        assert!(next.fence() > fence, "{statement}: {} after {fence}", next.fence());
    }
}

#[test]
fn what_others_put_into_the_table_breaks_nothing() {
    let server = Postgresql::start();
    let client = connect(&server.url());
    let names = ["huge", "bytes", "empty"];
    for name in names {
        drop(client.mutex(name, LEASE).unwrap().lock().unwrap());
    }
    let put = |name: &str, value: &str| {
        server.sql(&format!(
            "UPDATE memlock.items SET value = {value}, expires = 'infinity' WHERE key = 'lock:{name}'"
        ));
    };
    put("huge", "convert_to(repeat('x', 3000000), 'UTF8')");
    put("bytes", "'\\xff00fe'");
    put("empty", "''");
    server.sql("INSERT INTO memlock.items VALUES ('ключ''\"; DROP', '1', 7, 'infinity')");
    for name in names {
        assert!(client.mutex(name, LEASE).unwrap().try_lock().is_ok_and(|lock| lock.is_none()));
    }
    let error = client.mutex("huge", LEASE).unwrap().owner().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol);
    assert!(error.to_string().contains("1 MiB"), "{error}");
    drop(client.mutex("other", LEASE).unwrap().lock().unwrap());
}

/// A log that fills with every lock would fill the server's disk.
#[test]
fn the_server_logs_nothing_of_ordinary_use() {
    let server = Postgresql::start();
    let before = server.logged();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let client = connect(&server.url());
                let mutex = client.mutex("m", LEASE).unwrap();
                for _ in 0..50 {
                    drop(mutex.lock_for(PATIENCE).unwrap().unwrap());
                    let _ = mutex.try_lock().unwrap();
                }
                let semaphore = client.semaphore("s", 2, LEASE).unwrap();
                for _ in 0..20 {
                    drop(semaphore.acquire().unwrap());
                }
            });
        }
    });
    let logged = server.logged();
    assert_eq!(logged.strip_prefix(&before), Some(""), "{logged}");
}

/// A role may have another isolation level than what locks need: under it, transactions fall victim
/// to each other.
#[test]
fn any_default_isolation_will_do() {
    let server = Postgresql::start();
    server.sql("ALTER ROLE memlock SET default_transaction_isolation = 'serializable'");
    let counted = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let client = connect(&server.url());
                let mutex = client.mutex("m", LEASE).unwrap();
                for _ in 0..50 {
                    let mut lock = mutex.lock_for(PATIENCE).unwrap().unwrap();
                    counted.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(lock.unlock().unwrap(), Release::Released);
                }
            });
        }
    });
    assert_eq!(counted.load(Ordering::SeqCst), 200);
    assert!(!server.logged().contains("ERROR"));
}
