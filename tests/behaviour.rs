//! What every front door and every store must do alike: each test here runs four times.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::Answer;
use memlock_tests::door::{C, Door, For, Held, Rust};
use memlock_tests::server::Memcached;
use memlock_tests::stopwatch::Stopwatch;

const LEASE: Duration = Duration::from_secs(30);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Enrols every behaviour for every door and store.
macro_rules! behaviours {
    ($($behaviour:ident)*) => {
        behaviours! { @with rust_on_memory, Rust, None, $($behaviour)* }
        behaviours! { @with rust_on_memcached, Rust, Some(Memcached::start()), $($behaviour)* }
        behaviours! { @with c_on_memory, C, None, $($behaviour)* }
        behaviours! { @with c_on_memcached, C, Some(Memcached::start()), $($behaviour)* }
    };
    (@with $place:ident, $door:ident, $server:expr, $($behaviour:ident)*) => {
        mod $place {
            use super::*;
            $(#[test]
            fn $behaviour() {
                let server: Option<Memcached> = $server;
                let url = match &server {
                    Some(server) => server.url(),
                    None => concat!("memory://", stringify!($place), "-", stringify!($behaviour)).to_owned(),
                };
                super::$behaviour(&|| Box::new($door::open(&url).unwrap()));
            })*
        }
    };
}

type Open<'a> = &'a dyn Fn() -> Box<dyn Door>;

behaviours! {
    a_free_mutex_is_granted_and_a_held_one_is_busy
    unlocking_lets_the_next_one_in
    fences_rise_from_holder_to_holder
    a_wait_ends_at_its_limit
    a_waiter_gets_the_lock_when_it_comes_free
    a_wait_can_be_cancelled_and_leaves_nothing_behind
    remaining_counts_down_from_the_lease
    extending_renews_the_lease_and_keeps_the_fence
    a_dropped_lock_is_released
    the_owner_can_be_seen_and_forced_out
    an_ordinary_no_names_the_lock_the_server_and_what_happened
    odd_names_are_locks_of_their_own
    impossible_names_and_leases_are_refused
    threads_exclude_each_other
    every_key_gets_one_id_and_one_first
    many_keys_at_once_answer_as_one_by_one
    a_list_is_walked_in_the_order_of_ids
    a_session_is_joined_and_torn_down
    a_torn_down_session_refuses_late_inserts
    a_handle_that_set_nothing_up_follows_the_name
    impossible_keys_are_refused
    concurrent_inserters_agree_on_every_id
}

fn no<T>(outcome: Result<T, memlock_tests::door::No>) -> Answer {
    match outcome {
        Ok(_) => Answer::Ok,
        Err(no) => {
            assert!(!no.sentence.is_empty(), "{:?} has no sentence", no.answer);
            no.answer
        }
    }
}

fn a_free_mutex_is_granted_and_a_held_one_is_busy(open: Open<'_>) {
    let (one, two) = (open(), open());
    let held = one.lock(b"m", LEASE, For::Never).unwrap();
    assert_eq!(no(two.lock(b"m", LEASE, For::Never)), Answer::Busy);
    assert_eq!(no(one.lock(b"m", LEASE, For::Never)), Answer::Busy);
    assert_eq!(no(two.lock(b"other", LEASE, For::Never)), Answer::Ok);
    held.unlock().unwrap();
}

fn unlocking_lets_the_next_one_in(open: Open<'_>) {
    let (one, two) = (open(), open());
    for _ in 0..3 {
        one.lock(b"m", LEASE, For::Never).unwrap().unlock().unwrap();
        two.lock(b"m", LEASE, For::Ever).unwrap().unlock().unwrap();
    }
    assert_eq!(one.owner(b"m").unwrap(), None);
}

fn fences_rise_from_holder_to_holder(open: Open<'_>) {
    let (one, two) = (open(), open());
    let mut last = 0;
    for _ in 0..10 {
        for door in [&one, &two] {
            let mut held = door.lock(b"m", LEASE, For::Never).unwrap();
            assert!(held.fence() > last, "{} after {last}", held.fence());
            last = held.fence();
            held.extend(LEASE).unwrap();
            held.unlock().unwrap();
        }
    }
}

fn a_wait_ends_at_its_limit(open: Open<'_>) {
    let door = open();
    let held = door.lock(b"m", LEASE, For::Never).unwrap();
    let (began, watch) = (Instant::now(), Stopwatch::start());
    assert_eq!(
        no(door.lock(b"m", LEASE, For::AtMost(Duration::from_millis(300)))),
        Answer::TimedOut
    );
    assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
    assert!(watch.elapsed() < Duration::from_secs(3), "{:?}", watch.elapsed());
    held.unlock().unwrap();
}

fn a_waiter_gets_the_lock_when_it_comes_free(open: Open<'_>) {
    let (one, two) = (open(), open());
    let held = one.lock(b"m", LEASE, For::Never).unwrap();
    let released = AtomicBool::new(false);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let held = two.lock(b"m", LEASE, For::Ever).unwrap();
            assert!(released.load(Ordering::SeqCst), "granted twice");
            held.unlock().unwrap();
        });
        thread::sleep(Duration::from_millis(50));
        released.store(true, Ordering::SeqCst);
        held.unlock().unwrap();
        waiter.join().unwrap();
    });
}

fn a_wait_can_be_cancelled_and_leaves_nothing_behind(open: Open<'_>) {
    let (one, two) = (open(), open());
    let held = one.lock(b"m", LEASE, For::Never).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| no(two.lock(b"m", LEASE, For::Ever)));
        // A wait that has not begun yet is not cancelled: go on until it has ended.
        while !waiter.is_finished() {
            two.cancel_waits();
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(waiter.join().unwrap(), Answer::Interrupted);
    });
    held.unlock().unwrap();
    assert_eq!(one.owner(b"m").unwrap(), None);
    // What is cancelled is the wait, not the client.
    two.lock(b"m", LEASE, For::Ever).unwrap().unlock().unwrap();
}

fn remaining_counts_down_from_the_lease(open: Open<'_>) {
    let held = open().lock(b"m", LEASE, For::Never).unwrap();
    let first = held.remaining();
    assert!(first <= LEASE && first > LEASE - Duration::from_secs(5), "{first:?}");
    thread::sleep(Duration::from_millis(20));
    assert!(held.remaining() < first);
    held.unlock().unwrap();
}

fn extending_renews_the_lease_and_keeps_the_fence(open: Open<'_>) {
    let door = open();
    let mut held = door.lock(b"m", Duration::from_secs(2), For::Never).unwrap();
    let fence = held.fence();
    held.extend(LEASE).unwrap();
    assert!(held.remaining() > Duration::from_secs(20));
    assert_eq!(held.fence(), fence);
    assert_eq!(no(held.extend(Duration::from_millis(999))), Answer::Invalid);
    assert!(held.remaining() > Duration::from_secs(20), "a refused extension changes nothing");
    held.unlock().unwrap();
    assert_eq!(door.owner(b"m").unwrap(), None);
}

fn a_dropped_lock_is_released(open: Open<'_>) {
    let (one, two) = (open(), open());
    drop(one.lock(b"m", LEASE, For::Never).unwrap());
    assert_eq!(no(two.lock(b"m", LEASE, For::Never)), Answer::Ok);
}

fn the_owner_can_be_seen_and_forced_out(open: Open<'_>) {
    let (one, two) = (open(), open());
    assert_eq!(two.owner(b"m").unwrap(), None);
    let held = one.lock(b"m", LEASE, For::Never).unwrap();
    let owner = two.owner(b"m").unwrap().unwrap();
    assert_eq!(owner.pid, std::process::id());
    assert!(owner.since > 1_700_000_000);
    assert_eq!(no(two.force_unlock(b"m", "00000000000000000000000000000000")), Answer::NotHeld);
    assert_eq!(no(one.lock(b"m", LEASE, For::Never)), Answer::Busy);
    two.force_unlock(b"m", &owner.token).unwrap();
    let next = two.lock(b"m", LEASE, For::Never).unwrap();
    assert_eq!(
        no(two.force_unlock(b"m", &owner.token)),
        Answer::NotHeld,
        "a later holder is never touched"
    );
    assert_eq!(no(held.unlock()), Answer::Lost);
    next.unlock().unwrap();
}

fn an_ordinary_no_names_the_lock_the_server_and_what_happened(open: Open<'_>) {
    fn sentence<T>(outcome: Result<T, memlock_tests::door::No>) -> String {
        let sentence = outcome.err().unwrap().sentence;
        let places = [
            "the lock \"it \\\"is\\\"\" on memcached at 127.0.0.1:",
            "the lock \"it \\\"is\\\"\" in this process's memory",
        ];
        let named = sentence.replacen("The lock", "the lock", 1);
        assert!(
            places.iter().any(|place| named.contains(place)) && sentence.ends_with('.'),
            "{sentence}"
        );
        sentence
    }
    let (one, two, name) = (open(), open(), b"it \"is\"");
    let mut held = one.lock(name, LEASE, For::Never).unwrap();
    let busy = sentence(two.lock(name, LEASE, For::Never));
    assert!(busy.contains("is held by another holder"), "{busy}");
    let late = sentence(two.lock(name, LEASE, For::AtMost(Duration::from_millis(120))));
    assert!(late.starts_with("Timed out after 120 ms waiting for the lock"), "{late}");
    assert!(late.contains(&format!(", process {}).", std::process::id())), "{late}");
    let token = two.owner(name).unwrap().unwrap().token;
    two.force_unlock(name, &token).unwrap();
    for lost in [
        sentence(two.force_unlock(name, &token)),
        sentence(held.extend(LEASE)),
        sentence(held.unlock()),
    ] {
        let (gone, none) = ("was lost: before its lease of 30 s was over", "is not held");
        assert!(lost.contains(gone) || lost.contains(none), "{lost}");
    }
    // A lease of one second is over after one, and its holder says since when.
    let held = one.lock(name, Duration::from_secs(1), For::Never).unwrap();
    let next = two.lock(name, LEASE, For::AtMost(Duration::from_secs(20))).unwrap();
    let over = sentence(held.unlock());
    assert!(
        over.contains("was lost: its lease of 1 s ended ") && over.ends_with(" ago."),
        "{over}"
    );
    next.unlock().unwrap();
    let none = one.list(name).unwrap().count().unwrap_err();
    assert_eq!(none.answer, Answer::NotFound);
    assert!(
        none.sentence.starts_with("There is no distinct list \"it \\\"is\\\"\" "),
        "{}",
        none.sentence
    );
}

fn odd_names_are_locks_of_their_own(open: Open<'_>) {
    let door = open();
    let long = vec![b'x'; 64 * 1024];
    let names: [&[u8]; 9] = [
        b"a b",
        b"a%20b",
        b"a\r\ndelete lock:victim\r\n",
        b"\xff\xfe",
        b"%",
        b"\x01",
        "ü".as_bytes(),
        &long,
        &long[1..],
    ];
    let victim = door.lock(b"victim", LEASE, For::Never).unwrap();
    let all: Vec<Box<dyn Held>> =
        names.iter().map(|name| door.lock(name, LEASE, For::Never).unwrap()).collect();
    for name in names {
        assert_eq!(no(door.lock(name, LEASE, For::Never)), Answer::Busy);
    }
    all.into_iter().for_each(|held| held.unlock().unwrap());
    victim.unlock().unwrap();
}

fn impossible_names_and_leases_are_refused(open: Open<'_>) {
    let door = open();
    let long = vec![b'x'; 64 * 1024 + 1];
    for name in [&b""[..], &long] {
        assert_eq!(no(door.lock(name, LEASE, For::Never)), Answer::Invalid);
        assert_eq!(no(door.owner(name)), Answer::Invalid);
        assert_eq!(no(door.set_up(name, LEASE)), Answer::Invalid);
        assert_eq!(no(door.list(name)), Answer::Invalid);
    }
    for lease in
        [Duration::ZERO, Duration::from_millis(999), 367 * DAY, Duration::from_secs(u64::MAX / 2)]
    {
        assert_eq!(no(door.lock(b"m", lease, For::Never)), Answer::Invalid, "{lease:?}");
        assert_eq!(no(door.set_up(b"s", lease)), Answer::Invalid, "{lease:?}");
    }
    for lease in [Duration::from_secs(1), 29 * DAY, 30 * DAY, 31 * DAY, 366 * DAY] {
        let held = door.lock(b"m", lease, For::Never).unwrap();
        assert_eq!(no(door.lock(b"m", LEASE, For::Never)), Answer::Busy, "{lease:?}");
        held.unlock().unwrap();
    }
}

fn threads_exclude_each_other(open: Open<'_>) {
    let door = open();
    let (inside, rounds) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let held = door.lock(b"m", LEASE, For::Ever).unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    rounds.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                    held.unlock().unwrap();
                }
            });
        }
    });
    assert_eq!(rounds.into_inner(), 160);
}

fn every_key_gets_one_id_and_one_first(open: Open<'_>) {
    let (one, two) = (open(), open());
    let (_, mut ours) = one.set_up(b"s", LEASE).unwrap();
    let mut theirs = two.list(b"s").unwrap();
    assert_eq!(ours.insert(b"apple").unwrap(), (1, true));
    assert_eq!(theirs.insert(b"apple").unwrap(), (1, false));
    assert_eq!(theirs.insert(b"pear\0\r\n\xff").unwrap(), (2, true));
    assert_eq!(ours.insert(b"pear\0\r\n\xff").unwrap(), (2, false));
    assert_eq!(ours.id(b"apple").unwrap(), Some(1));
    assert_eq!(theirs.id(b"plum").unwrap(), None);
    assert_eq!((ours.count().unwrap(), theirs.count().unwrap()), (2, 2));
}

fn many_keys_at_once_answer_as_one_by_one(open: Open<'_>) {
    let door = open();
    let (_, mut list) = door.set_up(b"s", LEASE).unwrap();
    assert_eq!(list.insert_many(&[]).unwrap(), []);
    let names: Vec<Vec<u8>> =
        (0..2500).map(|number| format!("key {}", number % 2100).into_bytes()).collect();
    list.insert(b"key 7").unwrap();
    let keys: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let answers = list.insert_many(&keys).unwrap();
    let mut ids = HashMap::from([(&b"key 7"[..], 1)]);
    for (&key, &(id, first)) in keys.iter().zip(&answers) {
        assert_eq!(*ids.entry(key).or_insert(id), id);
        assert!(!first || key != b"key 7");
    }
    assert_eq!(answers.iter().filter(|(_, first)| *first).count(), 2099);
    let mut all: Vec<u64> = ids.into_values().collect();
    all.sort_unstable();
    assert_eq!(all, (1..=2100).collect::<Vec<u64>>());
}

fn a_list_is_walked_in_the_order_of_ids(open: Open<'_>) {
    let door = open();
    let (_, mut list) = door.set_up(b"s", LEASE).unwrap();
    assert_eq!(list.walk().unwrap(), []);
    let names: Vec<Vec<u8>> = (0..700).map(|number| format!("{number}\n").into_bytes()).collect();
    let keys: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let ids: Vec<u64> = list.insert_many(&keys).unwrap().into_iter().map(|(id, _)| id).collect();
    let mut expected: Vec<(u64, Vec<u8>)> = ids.into_iter().zip(names.clone()).collect();
    expected.sort_unstable();
    assert_eq!(list.walk().unwrap(), expected);
}

fn a_session_is_joined_and_torn_down(open: Open<'_>) {
    let (one, two) = (open(), open());
    let mut nothing = one.list(b"s").unwrap();
    assert_eq!(no(nothing.insert(b"x")), Answer::NotFound);
    assert_eq!(no(nothing.count()), Answer::NotFound);
    assert_eq!(no(nothing.id(b"x")), Answer::NotFound);
    assert_eq!(no(nothing.walk()), Answer::NotFound);
    assert_eq!(no(nothing.tear_down()), Answer::NotFound);
    let (answer, mut ours) = one.set_up(b"s", LEASE).unwrap();
    assert_eq!(answer, Answer::Ok);
    let (answer, mut theirs) = two.set_up(b"s", LEASE).unwrap();
    assert_eq!(answer, Answer::Exists);
    ours.insert(b"x").unwrap();
    theirs.tear_down().unwrap();
    assert_eq!(no(ours.tear_down()), Answer::NotFound);
    let (answer, mut fresh) = one.set_up(b"s", LEASE).unwrap();
    assert_eq!(answer, Answer::Ok);
    assert_eq!(fresh.insert(b"x").unwrap(), (1, true), "nothing is left of the old session");
}

fn a_torn_down_session_refuses_late_inserts(open: Open<'_>) {
    let (one, two) = (open(), open());
    let (_, mut late) = one.set_up(b"s", LEASE).unwrap();
    let (_, mut other) = two.set_up(b"s", LEASE).unwrap();
    other.tear_down().unwrap();
    assert_eq!(no(late.insert(b"x")), Answer::NotFound);
    let (_, mut fresh) = two.set_up(b"s", LEASE).unwrap();
    assert_eq!(no(late.insert(b"x")), Answer::NotFound, "it belongs to the old session");
    assert_eq!(no(late.insert_many(&[b"x", b"y"])), Answer::NotFound);
    assert_eq!(no(late.count()), Answer::NotFound);
    assert_eq!(no(late.tear_down()), Answer::NotFound, "nor does it tear the new one down");
    assert_eq!(fresh.insert(b"x").unwrap(), (1, true));
}

fn a_handle_that_set_nothing_up_follows_the_name(open: Open<'_>) {
    let door = open();
    let (_, mut first) = door.set_up(b"s", LEASE).unwrap();
    let mut follower = door.list(b"s").unwrap();
    assert_eq!(follower.insert(b"x").unwrap(), (1, true));
    first.tear_down().unwrap();
    assert_eq!(no(follower.insert(b"x")), Answer::NotFound);
    door.set_up(b"s", LEASE).unwrap();
    assert_eq!(follower.insert(b"y").unwrap(), (1, true));
    assert_eq!(follower.count().unwrap(), 1);
}

fn impossible_keys_are_refused(open: Open<'_>) {
    let (_, mut list) = open().set_up(b"s", LEASE).unwrap();
    let long = vec![b'x'; 64 * 1024 + 1];
    for key in [&b""[..], &long] {
        assert_eq!(no(list.insert(key)), Answer::Invalid);
        assert_eq!(no(list.insert_many(&[b"fine", key])), Answer::Invalid);
        assert_eq!(no(list.id(key)), Answer::Invalid);
    }
    assert_eq!(list.insert(&long[1..]).unwrap(), (1, true), "a refused batch inserted nothing");
    assert_eq!(list.walk().unwrap(), [(1, long[1..].to_vec())]);
}

fn concurrent_inserters_agree_on_every_id(open: Open<'_>) {
    let door = open();
    door.set_up(b"s", LEASE).unwrap();
    let start = Barrier::new(6);
    let told: Vec<Vec<(u64, bool)>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..6)
            .map(|worker| {
                let start = &start;
                let door = open();
                scope.spawn(move || {
                    let mut list = door.list(b"s").unwrap();
                    let names: Vec<Vec<u8>> =
                        (0..300).map(|number| format!("k{number}").into_bytes()).collect();
                    start.wait();
                    if worker % 2 == 0 {
                        let keys: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
                        return list.insert_many(&keys).unwrap();
                    }
                    names.iter().map(|name| list.insert(name).unwrap()).collect()
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    for number in 0..300 {
        let ids: Vec<u64> = told.iter().map(|answers| answers[number].0).collect();
        assert!(ids.iter().all(|&id| id == ids[0]), "k{number}: {ids:?}");
        assert_eq!(told.iter().filter(|answers| answers[number].1).count(), 1, "k{number}");
    }
    let walked = door.list(b"s").unwrap().walk().unwrap();
    assert_eq!(walked.len(), 300);
    assert!(walked.is_sorted());
}
