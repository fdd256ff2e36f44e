//! The rows of locks, when others lock them, too.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::{ErrorKind, Extension, Release};
use memlock_tests::mysql::{DATABASE, MariaDb};
use memlock_tests::process::Server;

use crate::stranger::Stranger;
use crate::{LEASE, PATIENCE, client, refused, shared, try_lock};

/// A fence that is drawn before the row is locked is none.
#[test]
fn fences_rise_in_the_order_of_holding() {
    let last = AtomicU64::new(0);
    let grants = AtomicU64::new(0);
    let end = Instant::now() + Duration::from_secs(5);
    thread::scope(|scope| {
        for _ in 0..8 {
            let client = client(shared(), "prefix=order:");
            let (last, grants) = (&last, &grants);
            scope.spawn(move || {
                while Instant::now() < end {
                    let Some(mut lock) = try_lock(&client, "m") else { continue };
                    let before = last.swap(lock.fence(), Ordering::SeqCst);
                    assert!(before < lock.fence(), "{} after {before}", lock.fence());
                    grants.fetch_add(1, Ordering::Relaxed);
                    assert_eq!(lock.unlock().unwrap(), Release::Released);
                }
            });
        }
    });
    let grants = grants.into_inner();
    assert!(grants > 200, "{grants} grants prove little");
}

/// `NOW(6)` is the time at which a statement began, before it waited for the row.
#[test]
fn a_lock_that_ends_while_its_row_is_waited_for_is_granted() {
    let holder = client(shared(), "prefix=ends:&io_timeout=10s");
    let other = client(shared(), "prefix=ends:&io_timeout=10s");
    let mutex = holder.mutex("m", Duration::from_secs(3)).unwrap();
    let mut held = mutex.try_lock().unwrap().unwrap();
    let began = Instant::now();
    let stranger = Stranger::locks(shared(), "ends:lock:m");
    thread::scope(|scope| {
        // Both wait for the row, and neither may decide by the time at which it began.
        let extension = scope.spawn(|| held.extend(Duration::from_secs(20)));
        let grant = scope.spawn(|| other.mutex("m", LEASE).unwrap().try_lock());
        thread::sleep(Duration::from_millis(3500).saturating_sub(began.elapsed()));
        assert!(!extension.is_finished() && !grant.is_finished(), "they do not wait for the row");
        stranger.ends();
        let (extension, grant) = (extension.join().unwrap(), grant.join().unwrap());
        assert!(!matches!(extension, Ok(Extension::Extended)), "it was over: {extension:?}");
        assert!(grant.unwrap().is_some(), "it was free");
    });
}

#[test]
fn a_row_that_a_stranger_keeps_locked_holds_no_call_up() {
    let client = client(shared(), "prefix=stuck:&io_timeout=1s&connect_timeout=20s");
    drop(try_lock(&client, "m").unwrap());
    let mut other = try_lock(&client, "other").unwrap();
    let dropped = try_lock(&client, "dropped").unwrap();
    let stranger = Stranger::locks(shared(), "stuck:lock:m");
    let began = Instant::now();
    let error = refused(&client, "m");
    let taken = began.elapsed();
    assert!(taken < Duration::from_secs(5), "{taken:?}");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("kept the row locked"), "{error}");
    // A server that had not answered would not be asked for it.
    drop(dropped);
    assert!(try_lock(&client, "dropped").is_some(), "other rows are free");
    assert_eq!(other.unlock().unwrap(), Release::Released, "other rows are free");
    stranger.ends();
    assert!(try_lock(&client, "m").is_some(), "nothing was left behind");
}

/// As a deadlock, or another node of a Galera cluster, would answer.
#[test]
fn a_deadlock_is_tried_again() {
    let server = MariaDb::start_fast();
    let client = client(&server, "io_timeout=1s");
    drop(try_lock(&client, "first").unwrap());
    // The counter is not part of the transaction that the signal rolls back.
    let until = |tries: u32| {
        format!(
            "USE {DATABASE}; CREATE OR REPLACE TABLE tries (n INT) ENGINE=MyISAM;
             DELIMITER //
             CREATE OR REPLACE TRIGGER refuse BEFORE INSERT ON memlock_items FOR EACH ROW BEGIN
               INSERT INTO tries VALUES (1);
               IF (SELECT COUNT(*) FROM tries) < {tries} THEN
                 SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213;
               END IF;
             END//"
        )
    };
    server.sql(&until(4));
    assert!(try_lock(&client, "m").is_some());
    // And once more, because a trigger hides the fence.
    assert_eq!(server.sql("SELECT COUNT(*) FROM locks.tries"), "5\n");
    server.sql(&until(1_000_000));
    let began = Instant::now();
    let error = refused(&client, "n");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    server.sql("DROP TRIGGER locks.refuse");
    assert!(try_lock(&client, "n").is_some(), "nothing was left behind");
}

#[test]
fn names_are_compared_byte_by_byte() {
    let (one, two) = (client(shared(), "prefix=n:"), client(shared(), "prefix=n:"));
    let long = "n".repeat(3000);
    let names = ["name", "Name", "NAME", "name ", "n\u{e4}me", "na_me", "na%me", &long];
    let held: Vec<_> = names.iter().map(|name| try_lock(&one, name).unwrap()).collect();
    assert!(names.iter().all(|name| try_lock(&two, name).is_none()));
    drop(held);
    assert!(names.iter().all(|name| try_lock(&two, name).is_some()));
}

#[test]
fn eight_clients_create_the_table_at_once() {
    let server = MariaDb::start_fast();
    for _ in 0..5 {
        let holders: Vec<_> = thread::scope(|scope| {
            let clients: Vec<_> = (0..8).map(|_| client(&server, "io_timeout=5s")).collect();
            let tries = clients.into_iter().map(|client| {
                scope.spawn(move || client.mutex("m", LEASE).unwrap().try_lock().unwrap())
            });
            let tries: Vec<_> = tries.collect();
            tries.into_iter().filter_map(|attempt| attempt.join().unwrap()).collect()
        });
        assert_eq!(holders.len(), 1);
        drop(holders);
        server.sql("DROP TABLE locks.memlock_items");
    }
}

#[test]
fn a_lock_is_released_with_the_callers_transaction_or_not_at_all() {
    let server = MariaDb::start(&[
        "--sql-mode=ANSI_QUOTES,NO_BACKSLASH_ESCAPES",
        "--default-time-zone=-07:00",
        "--innodb-flush-log-at-trx-commit=0",
    ]);
    let (one, two) = (client(&server, ""), client(&server, "io_timeout=1s&connect_timeout=20s"));
    let mut lock = try_lock(&one, "m").unwrap();
    let statement = lock.release_sql().unwrap();
    // In one process of the administrator's, whose default database is another one.
    let run = |end: &str| {
        server.sql(&format!("USE mysql; BEGIN; {statement}; SELECT ROW_COUNT(); {end}"))
    };
    assert_eq!(run("ROLLBACK"), "1\n");
    assert!(try_lock(&two, "m").is_none(), "it was rolled back");
    let mut command = server.session();
    let mut session = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = session.stdin.take().unwrap();
    let mut output = BufReader::new(session.stdout.take().unwrap());
    writeln!(input, "BEGIN; {statement}; SELECT ROW_COUNT();").unwrap();
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "1\n");
    assert!(try_lock(&two, "m").is_none(), "nobody gets it meanwhile");
    let mut next = thread::scope(|scope| {
        let waiter = scope.spawn(|| two.mutex("m", LEASE).unwrap().lock_for(PATIENCE));
        // Longer than a statement may wait for the row.
        thread::sleep(Duration::from_millis(1500));
        assert!(!waiter.is_finished(), "{:?}", waiter.join());
        writeln!(input, "COMMIT; SELECT 'done';").unwrap();
        output.read_line(&mut line).unwrap();
        waiter.join().unwrap().unwrap().expect("it was committed")
    });
    assert_eq!(run("COMMIT"), "0\n", "the next holder's lock is not released");
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    assert!(next.check().unwrap());
    assert_eq!(next.unlock().unwrap(), Release::Released);
    session.kill().unwrap();
    session.wait().unwrap();
}

#[test]
fn rows_of_the_past_are_swept() {
    let server = MariaDb::start_fast();
    let client = client(&server, "");
    let held = try_lock(&client, "held").unwrap();
    server.sql(
        "USE locks; INSERT INTO memlock_items SELECT CONCAT('lock:past ', seq), 'x', 1,
         (UNIX_TIMESTAMP() - 7200) * 1000000 FROM seq_1_to_3000;
         INSERT INTO memlock_items SELECT CONCAT('lock:recent ', seq), 'x', 1,
         (UNIX_TIMESTAMP() - 60) * 1000000 FROM seq_1_to_10",
    );
    for number in 0..2000 {
        drop(try_lock(&client, &format!("busy {}", number % 7)).unwrap());
    }
    let count = |what: &str| {
        let name =
            format!("SELECT COUNT(*) FROM locks.memlock_items WHERE name LIKE 'lock:{what}%'");
        server.sql(&name).trim().parse::<u32>().unwrap()
    };
    assert_eq!((count("past"), count("recent")), (0, 10));
    assert!(held.check().unwrap());
}

/// A value that another program wrote is neither read whole nor taken for a lock's.
#[test]
fn foreign_rows_break_nothing() {
    let server = MariaDb::start_fast();
    let client = client(&server, "");
    drop(try_lock(&client, "first").unwrap());
    server.sql(
        "USE locks;
         INSERT INTO memlock_items VALUES ('lock:huge', REPEAT('x', 3000000), 1, ~0);
         INSERT INTO memlock_items VALUES ('lock:strange', '', 0, ~0);
         INSERT INTO memlock_items VALUES (x'ff00', x'ff', 1, ~0)",
    );
    assert!(try_lock(&client, "huge").is_none() && try_lock(&client, "strange").is_none());
    let error = client.mutex("huge", LEASE).unwrap().owner().unwrap_err();
    assert!(error.to_string().contains("3000000 bytes"), "{error}");
    assert!(try_lock(&client, "m").is_some());
}

/// Without waiting for the disk, a crash may lose what was stored last.
#[test]
fn fences_rise_across_a_crash_that_loses_locks() {
    let server = MariaDb::start_fast();
    let mut last = 0;
    for _ in 0..3 {
        let client = client(&server, "");
        for _ in 0..50 {
            let lock = client.mutex("m", LEASE).unwrap().lock_for(PATIENCE).unwrap().unwrap();
            assert!(lock.fence() > last, "{} after {last}", lock.fence());
            last = lock.fence();
        }
        server.restart();
    }
}
