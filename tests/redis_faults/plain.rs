//! What other programs store under the same keys; what is left behind.

use std::thread;
use std::time::Duration;

use log::LevelFilter;
use memlock_core::{ErrorKind, Release, Wait, Waited};
use memlock_tests::launch::until;
use memlock_tests::listener::Listener;
use memlock_tests::{assert_safe, assert_safe_eq};

use crate::stores::redis::{Redis, reply};
use crate::{LEASE, PATIENCE, client, works};

#[test]
fn a_plain_lock_of_another_program_excludes_and_is_excluded() {
    let server = Redis::start(&[]);
    let client = client(&server);
    let mutex = client.mutex("x", LEASE).unwrap();
    let () = server.reply(&["SET", "lock:x", "theirs", "NX", "PX", "30000"]);
    assert_safe!(mutex.try_lock().unwrap().is_none(), "held twice");
    let owner = mutex.owner().unwrap().unwrap();
    assert_eq!(owner.value, b"theirs");
    let report = mutex.report_held_by(&owner).to_string();
    assert!(report.contains("does not use memlock"), "{report}");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| mutex.lock_for(PATIENCE).unwrap().expect("it was released"));
        let mut admin = server.connection();
        until("it waits", || reply::<usize>(&mut admin, &["EXISTS", "{lock:x}%wait"]) > 0);
        let value: String = server.reply(&["GET", "lock:x"]);
        assert_eq!(value, "theirs", "a waiter leaves it as it is");
        assert_eq!(server.reply::<usize>(&["DEL", "lock:x"]), 1);
        let mut lock = waiter.join().unwrap();
        let theirs: Option<String> = server.reply(&["SET", "lock:x", "theirs", "NX", "PX", "9"]);
        assert_safe_eq!(theirs, None, "it is excluded");
        assert_eq!(lock.unlock().unwrap(), Release::Released);
    });
    let theirs: Option<String> = server.reply(&["SET", "lock:x", "theirs", "NX", "PX", "300"]);
    assert!(theirs.is_some());
    let mut lock = mutex.lock_for(PATIENCE).unwrap().expect("it expired");
    assert_eq!(lock.unlock().unwrap(), Release::Released);
}

#[test]
fn a_plain_lock_can_be_released_by_its_value() {
    let server = Redis::start(&[]);
    let mutex = client(&server).mutex("x", LEASE).unwrap();
    let () = server.reply(&["SET", "lock:x", "theirs", "PX", "30000"]);
    let token = || mutex.owner().unwrap().unwrap().token();
    let theirs = token();
    let () = server.reply(&["SET", "lock:x", "another", "PX", "30000"]);
    assert_safe!(!mutex.force_unlock(&theirs).unwrap(), "a later holder is not affected");
    assert!(mutex.force_unlock(&token()).unwrap());
    assert_eq!(server.reply::<usize>(&["EXISTS", "lock:x"]), 0);
    // A value that looks as if memlock had stored it.
    let () = server.reply(&["SET", "lock:x", "0123456789abcdef theirs", "PX", "30000"]);
    assert_safe!(mutex.try_lock().unwrap().is_none(), "held twice");
    assert!(mutex.force_unlock(&token()).unwrap());
    drop(mutex.try_lock().unwrap().unwrap());
}

/// A queue that cannot be read does not make a permit that was given back look as if it was not.
#[test]
fn a_release_beside_another_programs_item_in_place_of_the_queue_may_have_succeeded() {
    let server = Redis::start(&[]);
    let client = client(&server);
    let mut admin = server.connection();
    let counter = client.counter("c").unwrap();
    assert!(counter.set_up(1).unwrap());
    assert!(counter.try_acquire().unwrap());
    let _: redis::Value = reply(&mut admin, &["RPUSH", "{c}%wait", "theirs"]);
    let error = counter.release().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    assert!(error.to_string().contains("not a string"), "{error}");
    assert!(error.to_string().contains("item {c}%wait is"), "{error}");
    assert_eq!(counter.available().unwrap(), Some(1));
}

/// Waiters poll instead, and the log says why. `late`: when they are in the queue already.
/// A waiter looks at its queue from time to time, also one that was refused.
#[test]
fn a_list_in_place_of_a_queue_ends_no_wait() {
    let server = Redis::start(&[]);
    let client = client(&server);
    let mutex = client.mutex("m", LEASE).unwrap();
    let mut lock = mutex.try_lock().unwrap().unwrap();
    let _: usize = server.reply(&["RPUSH", "{lock:m}%wait", "theirs"]);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| mutex.lock_for(PATIENCE).unwrap().is_some());
        let has_looked = || {
            let stats: String = server.reply(&["INFO", "commandstats"]);
            let get = stats.lines().find_map(|line| line.strip_prefix("cmdstat_get:"));
            let failed =
                get.and_then(|get| get.split_once("failed_calls=")).map(|(_, count)| count);
            // The first times are those of joining it.
            waiter.is_finished() || failed.is_some_and(|count| count.parse::<u32>().unwrap() > 3)
        };
        until("it has looked at the queue", has_looked);
        assert_eq!(lock.unlock().unwrap(), Release::Released);
        assert!(waiter.join().unwrap());
    });
    assert_eq!(server.reply::<usize>(&["LLEN", "{lock:m}%wait"]), 1);
}

#[test]
fn what_another_program_stores_in_place_of_a_queue_is_left_alone() {
    const QUEUES: [&str; 3] = ["{c}%wait", "{semaphore:s}%wait", "{lock:m}%wait"];
    let listener = Listener::at(LevelFilter::Trace);
    let server = Redis::start(&[]);
    let (client, mut admin) = (client(&server), server.connection());
    let counter = client.counter("c").unwrap();
    assert!(counter.set_up(1).unwrap());
    let semaphore = client.semaphore("s", 1, LEASE).unwrap();
    let _ = semaphore.set_up(LEASE).unwrap();
    let mutex = client.mutex("m", LEASE).unwrap();
    let patience = || Wait::at_most(PATIENCE);
    for (theirs, late) in
        [("theirs", false), ("two\nlines\n", false), ("", false), ("theirs", true), ("17", true)]
    {
        let mut store = || {
            for queue in QUEUES {
                let () = reply(&mut admin, &["SET", queue, theirs]);
            }
        };
        let mut lock = mutex.try_lock().unwrap().unwrap();
        let mut permit = semaphore.try_acquire().unwrap().unwrap();
        assert!(counter.try_acquire().unwrap());
        let before = listener.heard().len();
        if !late {
            store();
        }
        thread::scope(|scope| {
            let waiters = [
                scope.spawn(|| mutex.lock_for(PATIENCE).unwrap().is_some()),
                scope.spawn(|| semaphore.acquire_for(PATIENCE).unwrap().is_some()),
                scope.spawn(|| {
                    matches!(counter.acquire_parked(0, &patience()), Ok(Waited::Done(())))
                }),
            ];
            if late {
                let joined = [&["EXISTS"], &QUEUES[..]].concat();
                until("they wait", || server.reply::<usize>(&joined) == QUEUES.len());
                store();
            } else {
                let is_refused = |queue: &str| {
                    let says = format!("The item {queue} is not memlock's");
                    listener.heard()[before..].iter().any(|record| record.contains(&says))
                };
                until("they are refused", || QUEUES.into_iter().all(is_refused));
            }
            assert_eq!(lock.unlock().unwrap(), Release::Released);
            assert_eq!(permit.release().unwrap(), Release::Released);
            assert_eq!(counter.release().unwrap(), 1);
            for waiter in waiters {
                assert!(waiter.join().unwrap(), "{theirs:?}");
            }
        });
        assert_eq!(counter.release().unwrap(), 1);
        for queue in QUEUES {
            let left: String = server.reply(&["GETDEL", queue]);
            assert_eq!(left, theirs, "{queue}");
        }
    }
}

#[test]
fn an_item_that_is_no_lock_is_named_and_harms_nothing_else() {
    let server = Redis::start(&[]);
    let client = client(&server);
    let mut admin = server.connection();
    let huge = "h".repeat(2 * 1024 * 1024);
    works(&client, "before");
    for (words, says) in [
        (vec!["RPUSH", "lock:x", "1", "2"], "not a string"),
        (vec!["HSET", "lock:x", "a", "b"], "not a string"),
        (vec!["XADD", "lock:x", "*", "a", "b"], "not a string"),
        (vec!["SET", "lock:x", &huge], "more than 1 MiB"),
    ] {
        let _: redis::Value = reply(&mut admin, &words);
        let mutex = client.mutex("x", LEASE).unwrap();
        for _ in 0..3 {
            assert_safe!(
                mutex.try_lock().unwrap().is_none(),
                "{}: another program has it",
                words[0]
            );
            let error = mutex.owner().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
            let text = error.to_string();
            assert!(text.contains("lock:x") && text.contains(says), "{}: {error}", words[0]);
            // A waiter is refused as soon as it looks.
            let error = mutex.lock_for(PATIENCE).unwrap_err();
            assert!(error.to_string().contains("lock:x"), "{error}");
        }
        works(&client, "between");
        assert_eq!(reply::<usize>(&mut admin, &["DEL", "lock:x"]), 1, "it is left alone");
        for (kind, key) in [("semaphore", "semaphore:x"), ("list", "list:x")] {
            let _: redis::Value = reply(&mut admin, &[&[words[0], key], &words[2..]].concat());
            let error = match kind {
                "semaphore" => client.semaphore("x", 2, LEASE).unwrap().set_up(LEASE).unwrap_err(),
                _ => client.distinct_list("x").unwrap().set_up(LEASE).unwrap_err(),
            };
            assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
            assert!(error.to_string().contains(key), "{} {kind}: {error}", words[0]);
            assert_eq!(reply::<usize>(&mut admin, &["DEL", key]), 1, "it is left alone");
        }
    }
    // The counter of fences, its note, and what is read to check the user's rights.
    for stored in [
        &["RPUSH", "%fence", "1"][..],
        &["SET", "%fence", "theirs"],
        &["SET", "%fence", "1.5"],
        &["RPUSH", "%fence%life", "1"],
        &["SET", "%fence%life", "theirs"],
        &["SET", "%fence%life", ""],
        &["SET", "%fence%life", "theirs 17"],
        &["SET", "%fence%rights", "theirs"],
        &["RPUSH", "%fence%rights", "1"],
        &["SET", "{%fence}%wait", "theirs"],
        &["RPUSH", "{%fence}%wait", "1"],
    ] {
        let key = stored[1];
        let () = reply(&mut admin, &["DEL", key]);
        let _: redis::Value = reply(&mut admin, stored);
        let theirs: Vec<u8> = reply(&mut admin, &["DUMP", key]);
        let error = crate::client(&server).mutex("x", LEASE).unwrap().try_lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol, "{stored:?}: {error}");
        assert!(error.to_string().contains(&format!("item {key} is not")), "{stored:?}: {error}");
        assert_eq!(reply::<usize>(&mut admin, &["EXISTS", "lock:x"]), 0, "nothing is granted");
        assert_eq!(reply::<Vec<u8>>(&mut admin, &["DUMP", key]), theirs, "it is left alone");
        assert_eq!(reply::<usize>(&mut admin, &["DEL", key]), 1);
    }
    works(&client, "after");
}

#[test]
fn nothing_is_left_behind_but_the_counter_of_fences() {
    let server = Redis::start(&[]);
    let client = client(&server);
    for number in 0..1000 {
        drop(client.mutex(format!("m{number}"), LEASE).unwrap().try_lock().unwrap().unwrap());
    }
    for number in 0..100 {
        let semaphore = client.semaphore(format!("s{number}"), 3, LEASE).unwrap();
        let _ = semaphore.set_up(LEASE).unwrap();
        drop(semaphore.acquire().unwrap());
        assert!(semaphore.tear_down().unwrap());
        let mut list = client.distinct_list(format!("l{number}")).unwrap();
        let _ = list.set_up(Duration::from_secs(20)).unwrap();
        assert!(list.insert_many(&["a", "b"]).unwrap().is_some());
        assert!(list.tear_down().unwrap());
    }
    let keys: Vec<String> = server.reply(&["KEYS", "*"]);
    let mut admin = server.connection();
    for key in keys {
        let left: i64 = reply(&mut admin, &["PTTL", &key]);
        // -2: it is gone by now.
        assert!(key.starts_with("%fence") || left > 0 || left == -2, "{key} lives forever");
    }
    // The entries of a list that was torn down expire with its time.
    let is_alone = || (server.reply::<usize>(&["DBSIZE"]) == 2).then_some(());
    let alone = memlock_tests::launch::poll_until(PATIENCE, is_alone);
    let mut left: Vec<String> = server.reply(&["KEYS", "*"]);
    left.sort();
    assert!(alone.is_some(), "{left:?}");
    assert_eq!(left, ["%fence", "%fence%life"]);
}

/// Asked of a server that knows the slots.
#[test]
fn the_items_of_a_lock_are_in_one_slot() {
    let (cluster, server) = (Redis::start(&["--cluster-enabled", "yes"]), Redis::start(&[]));
    let mut admin = server.connection();
    for name in ["m", "a b", "ü", "x/y:z", "a%wait", "%"] {
        let [holder, other] = [(); 2].map(|()| client(&server).mutex(name, LEASE).unwrap());
        let lock = holder.try_lock().unwrap().unwrap();
        let mut keys: Vec<String> = Vec::new();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| other.lock_for(PATIENCE));
            until("the queue is there, too", || {
                keys = reply(&mut admin, &["KEYS", "*lock:*"]);
                keys.len() == 2
            });
            drop(lock);
            drop(waiter.join().unwrap().unwrap().unwrap());
        });
        let slots: Vec<u64> =
            keys.iter().map(|key| cluster.reply(&["CLUSTER", "KEYSLOT", key])).collect();
        assert_eq!(slots[0], slots[1], "{keys:?}");
        let () = server.reply(&["FLUSHALL"]);
    }
}
