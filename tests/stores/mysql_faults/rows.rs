//! The rows of locks, when others lock them, too.

use std::thread;
use std::time::{Duration, Instant};

use memlock_core::{ErrorKind, Extension, Release};
use memlock_tests::launch::{poll_until, until};
use memlock_tests::process::Server;
use memlock_tests::{assert_safe, assert_safe_eq};

use crate::{Alone, LEASE, PATIENCE, Place, SOON, refused_with, shared, try_lock};

/// `NOW(6)` is the time at which a statement began, before it waited for the row.
#[test]
fn a_lock_that_ends_while_its_row_is_waited_for_is_granted() {
    let place = Place::on(shared());
    let (holder, other) = (place.client(""), place.client(""));
    let lease = Duration::from_secs(10);
    let mutex = holder.mutex("m", lease).unwrap();
    let mut held = mutex.try_lock().unwrap().unwrap();
    let began = Instant::now();
    let mut stranger = place.locked("lock:m");
    thread::scope(|scope| {
        // Both wait for the row, and neither may decide by the time at which it began.
        let extension = scope.spawn(|| held.extend(Duration::from_secs(20)));
        let grant = scope.spawn(|| other.mutex("m", LEASE).unwrap().try_lock());
        thread::sleep((lease + Duration::from_millis(500)).saturating_sub(began.elapsed()));
        assert!(!extension.is_finished() && !grant.is_finished(), "they do not wait for the row");
        stranger.run("COMMIT;");
        let (extension, grant) = (extension.join().unwrap(), grant.join().unwrap());
        assert!(!matches!(extension, Ok(Extension::Extended)), "it was over: {extension:?}");
        assert!(grant.unwrap().is_some(), "it was free");
    });
}

/// The refused call returns while the row is locked.
#[test]
fn a_row_that_a_stranger_keeps_locked_holds_no_call_up() {
    let place = Place::on(shared());
    let (patient, client) = (place.client(""), place.client(SOON));
    drop(try_lock(&patient, "m").unwrap());
    let mut other = try_lock(&patient, "other").unwrap();
    let dropped = client.mutex("dropped", LEASE).unwrap().lock_for(PATIENCE).unwrap().unwrap();
    let mut stranger = place.locked("lock:m");
    let error = refused_with("kept the row locked", &client, "m");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    // A server that had not answered would not be asked for it.
    drop(dropped);
    until("it is released", || try_lock(&patient, "dropped").is_some());
    assert_eq!(other.unlock().unwrap(), Release::Released, "other rows are free");
    stranger.run("COMMIT;");
    let is_granted = client.mutex("m", LEASE).unwrap().lock_for(PATIENCE).unwrap().is_some();
    assert!(is_granted, "nothing was left behind");
}

/// As a deadlock, or another node of a Galera cluster, would answer.
#[test]
fn a_deadlock_is_tried_again() {
    let place = Place::on(shared());
    let patient = place.client("");
    drop(try_lock(&patient, "first").unwrap());
    // The counter is not part of the transaction that the signal rolls back.
    let until = |tries: u32| {
        format!(
            "CREATE OR REPLACE TABLE tries (n INT) ENGINE=MyISAM;
             DELIMITER //
             CREATE OR REPLACE TRIGGER refuse BEFORE INSERT ON memlock_items FOR EACH ROW BEGIN
               INSERT INTO tries VALUES (1);
               IF (SELECT COUNT(*) FROM tries) < {tries} THEN
                 SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213;
               END IF;
             END//"
        )
    };
    place.sql(&until(4));
    assert!(try_lock(&patient, "m").is_some());
    // And once more, because a trigger hides the fence.
    assert_eq!(place.sql("SELECT COUNT(*) FROM tries"), "5\n");
    // It does not go on for ever.
    place.sql(&until(1_000_000));
    let error = refused_with("each time that it was tried", &place.client(SOON), "n");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    place.sql("DROP TRIGGER refuse");
    assert!(try_lock(&patient, "n").is_some(), "nothing was left behind");
}

#[test]
fn eight_clients_create_the_table_at_once() {
    let place = Place::on(shared());
    for _ in 0..3 {
        let holders: Vec<_> = thread::scope(|scope| {
            let clients: Vec<_> = (0..8).map(|_| place.client("")).collect();
            let tries = clients.into_iter().map(|client| {
                scope.spawn(move || client.mutex("m", LEASE).unwrap().try_lock().unwrap())
            });
            let tries: Vec<_> = tries.collect();
            tries.into_iter().filter_map(|attempt| attempt.join().unwrap()).collect()
        });
        assert_safe_eq!(holders.len(), 1, "holders at once");
        drop(holders);
        place.sql("DROP TABLE memlock_items");
    }
}

#[test]
fn a_lock_is_released_with_the_callers_transaction_or_not_at_all() {
    let place = Place::on(shared());
    let (one, two, waiting) = (place.client(""), place.client(""), place.client(SOON));
    let mut lock = try_lock(&one, "m").unwrap();
    let statement = lock.release_sql().unwrap();
    // In sessions of the administrator's, whose settings are unusual and whose default database is
    // another one.
    let begin =
        "USE mysql; SET sql_mode='ANSI_QUOTES,NO_BACKSLASH_ESCAPES', time_zone='-07:00'; BEGIN";
    let run = |end: &str| place.sql(&format!("{begin}; {statement}; SELECT ROW_COUNT(); {end}"));
    assert_eq!(run("ROLLBACK"), "1\n");
    assert_safe!(try_lock(&two, "m").is_none(), "it was rolled back");
    let mut session = place.server.stranger(&place.database);
    assert_eq!(session.ask(&format!("{begin}; {statement}; SELECT ROW_COUNT();")), "1");
    assert_safe!(try_lock(&two, "m").is_none(), "nobody gets it meanwhile");
    let mut next = thread::scope(|scope| {
        let waiter = scope.spawn(|| waiting.mutex("m", LEASE).unwrap().lock_for(PATIENCE));
        // Longer than a statement may wait for the row.
        thread::sleep(Duration::from_millis(1500));
        assert!(!waiter.is_finished(), "{:?}", waiter.join());
        session.run("COMMIT;");
        waiter.join().unwrap().unwrap().expect("it was committed")
    });
    assert_eq!(run("COMMIT"), "0\n", "the next holder's lock is not released");
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    assert!(try_lock(&two, "m").is_none());
    until("it is released", || next.unlock().is_ok());
}

/// The local time occurs twice: the server reads it as one of the two, which is an hour off.
#[test]
fn a_lock_is_released_with_a_transaction_in_the_hour_that_daylight_saving_time_repeats() {
    let place = Place::on(shared());
    let client = place.client("");
    for (end, pass) in [("+ 1800", "first"), ("- 1800", "second")] {
        place.sql(&format!(
            "USE mysql; INSERT INTO time_zone VALUES (NULL, 'N'); SET @zone = LAST_INSERT_ID();
             INSERT INTO time_zone_name VALUES ('{pass}', @zone);
             INSERT INTO time_zone_transition_type VALUES
             (@zone, 0, 7200, 1, 'SUMMER'), (@zone, 1, 3600, 0, 'WINTER');
             INSERT INTO time_zone_transition VALUES
             (@zone, UNIX_TIMESTAMP() - 86400, 0), (@zone, UNIX_TIMESTAMP() {end}, 1)"
        ));
        let release = |statement: &str| {
            place.sql(&format!("SET time_zone='{pass}'; {statement}; SELECT ROW_COUNT()"))
        };
        let mut held = try_lock(&client, pass).unwrap();
        assert_eq!(release(&held.release_sql().unwrap()), "1\n", "{pass}: it was held");
        let short = client.mutex(pass, Duration::from_secs(1)).unwrap();
        let mut over = short.try_lock().unwrap().expect("it was released");
        let statement = over.release_sql().unwrap();
        let is_over = format!(
            "SET time_zone='+00:00'; SELECT expires < UNIX_TIMESTAMP(NOW(6))*1000000 \
             FROM memlock_items WHERE name='lock:{pass}'"
        );
        until("its lease is over", || place.sql(&is_over) == "1\n");
        assert_eq!(release(&statement), "0\n", "{pass}: it was over");
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
        let mut session = place.server.stranger(&place.database);
        session.run(&format!("BEGIN; {statement};"));
        let refused = || {
            let error = lock.extend(LEASE).expect_err("the row is locked");
            error.to_string().contains("kept the row locked").then_some(error)
        };
        let error = poll_until(PATIENCE, refused).expect("the server refuses it");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("end the transaction first"), "{error}");
        assert!(lock.remaining().is_zero(), "it may be released");
        session.run(end);
        assert_eq!(poll_until(PATIENCE, || lock.extend(LEASE).ok()), Some(extended));
    }
}

#[test]
fn rows_of_the_past_are_swept() {
    let place = Place::on(shared());
    let client = place.client("");
    let held = try_lock(&client, "held").unwrap();
    place.sql(
        "INSERT INTO memlock_items SELECT CONCAT('lock:past ', seq), 'x', 1,
         (UNIX_TIMESTAMP() - 7200) * 1000000 FROM seq_1_to_3000;
         INSERT INTO memlock_items SELECT CONCAT('lock:recent ', seq), 'x', 1,
         (UNIX_TIMESTAMP() - 60) * 1000000 FROM seq_1_to_10;
         INSERT INTO memlock_items SELECT CONCAT('lock:released ', seq), 'x',
         (UNIX_TIMESTAMP() - 60) * 1000000, 0 FROM seq_1_to_10;
         INSERT INTO memlock_items SELECT CONCAT('lock:past released ', seq), 'x',
         (UNIX_TIMESTAMP() - 7200) * 1000000, 0 FROM seq_1_to_10",
    );
    for number in 0..2000 {
        drop(try_lock(&client, &format!("busy {}", number % 7)).unwrap());
    }
    let count = |what: &str| {
        place.sql(&format!("SELECT COUNT(*) FROM memlock_items WHERE name LIKE 'lock:{what}%'"))
    };
    assert_eq!((count("past"), count("recent")), ("0\n".into(), "10\n".into()));
    assert_eq!(count("released"), "10\n", "the next fences need their numbers");
    assert!(held.check().unwrap());
}

/// A value that another program wrote is neither read whole nor taken for a lock's.
#[test]
fn foreign_rows_break_nothing() {
    let place = Place::on(shared());
    let client = place.client("");
    drop(try_lock(&client, "first").unwrap());
    place.sql(
        "INSERT INTO memlock_items VALUES ('lock:huge', REPEAT('x', 3000000), 1, ~0);
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
    let server = Alone::get();
    let place = Place::on(&server);
    let mut last = 0;
    for _ in 0..2 {
        let client = place.client("");
        for _ in 0..50 {
            // Of the server before, a lock may still be held.
            let lock = client.mutex("m", Duration::from_secs(2)).unwrap();
            let lock = lock.lock_for(PATIENCE).unwrap().unwrap();
            assert_safe!(lock.fence() > last, "{} after {last}", lock.fence());
            last = lock.fence();
        }
        server.restart();
    }
    let lock = place.client("").mutex("m", LEASE).unwrap().lock_for(PATIENCE).unwrap().unwrap();
    assert_safe!(lock.fence() > last, "{} after {last}", lock.fence());
}
