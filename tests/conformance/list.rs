//! Distinct lists: one id for each key, and one first inserter.

use std::collections::HashMap;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use memlock_core::Answer;
use memlock_tests::doors::Language;
use memlock_tests::{assert_safe, assert_safe_eq};

use crate::bench::{Bench, LEASE, answer};

behaviours! {
    every_key_gets_one_id_and_one_first
    many_keys_at_once_answer_as_one_by_one
    a_list_is_walked_in_the_order_of_ids
    a_session_is_joined_and_torn_down
    a_torn_down_session_refuses_late_inserts
    impossible_keys_are_refused
    impossible_sessions_are_refused
    concurrent_inserters_agree_on_every_id
    ; not in Python:
    a_handle_that_set_nothing_up_follows_the_name
    what_was_never_set_up_is_not_found
}

fn every_key_gets_one_id_and_one_first(bench: &Bench) {
    let (one, two, session) = (bench.open(), bench.open(), b"an odd\r\n\xff one");
    let (_, mut ours) = one.set_up_list(session, LEASE).unwrap();
    let (_, mut theirs) = two.set_up_list(session, LEASE).unwrap();
    assert_eq!(ours.insert(b"apple").unwrap(), (1, true));
    assert_safe_eq!(theirs.insert(b"apple").unwrap(), (1, false), "accepted twice");
    assert_eq!(theirs.insert(b"pear\0\r\n\xff").unwrap(), (2, true));
    assert_safe_eq!(ours.insert(b"pear\0\r\n\xff").unwrap(), (2, false), "accepted twice");
    assert_eq!(ours.id(b"apple").unwrap(), Some(1));
    assert_eq!(theirs.id(b"plum").unwrap(), None);
    assert_eq!((ours.count().unwrap(), theirs.count().unwrap()), (2, 2));
}

fn many_keys_at_once_answer_as_one_by_one(bench: &Bench) {
    let door = bench.open();
    let (_, mut list) = door.set_up_list(b"s", LEASE).unwrap();
    assert_eq!(list.insert_many(&[]).unwrap(), []);
    let names: Vec<Vec<u8>> =
        (0..2500).map(|number| format!("key {}", number % 2100).into_bytes()).collect();
    list.insert(b"key 7").unwrap();
    let keys: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let answers = list.insert_many(&keys).unwrap();
    let mut ids = HashMap::from([(&b"key 7"[..], 1)]);
    for (&key, &(id, first)) in keys.iter().zip(&answers) {
        assert_safe_eq!(*ids.entry(key).or_insert(id), id, "a key has two ids");
        assert_safe!(!first || key != b"key 7", "accepted twice");
    }
    let firsts = answers.iter().filter(|(_, first)| *first).count();
    assert_safe!(firsts <= 2099, "{firsts} of 2099 keys accepted");
    assert_eq!(firsts, 2099);
    let mut all: Vec<u64> = ids.into_values().collect();
    all.sort_unstable();
    assert_eq!(all, (1..=2100).collect::<Vec<u64>>());
}

fn a_list_is_walked_in_the_order_of_ids(bench: &Bench) {
    let door = bench.open();
    let (_, mut list) = door.set_up_list(b"s", LEASE).unwrap();
    assert_eq!(list.walk().unwrap(), []);
    let names: Vec<Vec<u8>> = (0..700).map(|number| format!("{number}\n").into_bytes()).collect();
    let keys: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let ids: Vec<u64> = list.insert_many(&keys).unwrap().into_iter().map(|(id, _)| id).collect();
    let mut expected: Vec<(u64, Vec<u8>)> = ids.into_iter().zip(names.clone()).collect();
    expected.sort_unstable();
    assert_eq!(list.walk().unwrap(), expected);
}

fn a_session_is_joined_and_torn_down(bench: &Bench) {
    let (one, two) = (bench.open(), bench.open());
    let (first, mut ours) = one.set_up_list(b"s", LEASE).unwrap();
    assert_eq!(first, Answer::Ok);
    let (second, mut theirs) = two.set_up_list(b"s", LEASE).unwrap();
    assert_eq!(second, Answer::Exists);
    ours.insert(b"x").unwrap();
    theirs.tear_down().unwrap();
    assert_eq!(answer(ours.tear_down()), Answer::NotFound);
    let (anew, mut fresh) = one.set_up_list(b"s", LEASE).unwrap();
    assert_eq!(anew, Answer::Ok);
    assert_eq!(fresh.insert(b"x").unwrap(), (1, true), "nothing is left of the old session");
}

fn a_torn_down_session_refuses_late_inserts(bench: &Bench) {
    let (one, two) = (bench.open(), bench.open());
    let (_, mut late) = one.set_up_list(b"s", LEASE).unwrap();
    let (_, mut other) = two.set_up_list(b"s", LEASE).unwrap();
    other.tear_down().unwrap();
    assert_eq!(answer(late.insert(b"x")), Answer::NotFound);
    let (_, mut fresh) = two.set_up_list(b"s", LEASE).unwrap();
    assert_eq!(answer(late.insert(b"x")), Answer::NotFound, "it belongs to the old session");
    assert_eq!(answer(late.insert_many(&[b"x", b"y"])), Answer::NotFound);
    assert_eq!(answer(late.count()), Answer::NotFound);
    assert_eq!(answer(late.tear_down()), Answer::NotFound, "nor does it tear the new one down");
    assert_eq!(fresh.insert(b"x").unwrap(), (1, true));
}

fn a_handle_that_set_nothing_up_follows_the_name(bench: &Bench) {
    let door = bench.open();
    let (_, mut first) = door.set_up_list(b"s", LEASE).unwrap();
    let mut follower = door.list(b"s").unwrap();
    assert_eq!(follower.insert(b"x").unwrap(), (1, true));
    first.tear_down().unwrap();
    assert_eq!(answer(follower.insert(b"x")), Answer::NotFound);
    door.set_up_list(b"s", LEASE).unwrap();
    assert_eq!(follower.insert(b"y").unwrap(), (1, true));
    assert_eq!(follower.count().unwrap(), 1);
}

fn impossible_keys_are_refused(bench: &Bench) {
    let (_, mut list) = bench.open().set_up_list(b"s", LEASE).unwrap();
    let long = vec![b'x'; 64 * 1024 + 1];
    for key in [&b""[..], &long] {
        assert_eq!(answer(list.insert(key)), Answer::Invalid);
        assert_eq!(answer(list.insert_many(&[b"fine", key])), Answer::Invalid);
        assert_eq!(answer(list.id(key)), Answer::Invalid);
    }
    let longest = &long[1..];
    if bench.guarantees().longest_value <= longest.len() {
        assert_eq!(answer(list.insert(longest)), Answer::Protocol);
        assert_eq!(list.walk().unwrap(), []);
        return;
    }
    assert_eq!(list.insert(longest).unwrap(), (1, true), "a refused batch inserted nothing");
    assert_eq!(list.walk().unwrap(), [(1, longest.to_vec())]);
}

fn concurrent_inserters_agree_on_every_id(bench: &Bench) {
    let door = bench.open();
    let (_, mut list) = door.set_up_list(b"s", LEASE).unwrap();
    let start = Barrier::new(6);
    let told: Vec<Vec<(u64, bool)>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..6)
            .map(|worker| {
                let start = &start;
                let door = bench.open();
                scope.spawn(move || {
                    let (_, mut list) = door.set_up_list(b"s", LEASE).unwrap();
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
        assert_safe!(ids.iter().all(|&id| id == ids[0]), "k{number}: {ids:?}");
        let firsts = told.iter().filter(|answers| answers[number].1).count();
        assert_safe!(firsts < 2, "k{number}: accepted {firsts} times");
        assert_eq!(firsts, 1, "k{number}");
    }
    let walked = list.walk().unwrap();
    assert_eq!(walked.len(), 300);
    assert!(walked.is_sorted());
}

fn impossible_sessions_are_refused(bench: &Bench) {
    let door = bench.open();
    let long = vec![b'x'; 64 * 1024 + 1];
    for name in [&b""[..], &long] {
        assert_eq!(answer(door.set_up_list(name, LEASE)), Answer::Invalid);
        if bench.language != Language::Python {
            assert_eq!(answer(door.list(name)), Answer::Invalid);
        }
    }
    for life in [
        Duration::ZERO,
        Duration::from_millis(999),
        Duration::from_secs(367 * 24 * 3600),
        Duration::from_secs(u64::MAX / 2),
    ] {
        assert_eq!(answer(door.set_up_list(b"s", life)), Answer::Invalid, "{life:?}");
    }
}

/// In Python making a list sets it up.
fn what_was_never_set_up_is_not_found(bench: &Bench) {
    let mut nothing = bench.open().list(b"it \"is\"").unwrap();
    assert_eq!(answer(nothing.insert(b"x")), Answer::NotFound);
    assert_eq!(answer(nothing.id(b"x")), Answer::NotFound);
    assert_eq!(answer(nothing.walk()), Answer::NotFound);
    assert_eq!(answer(nothing.tear_down()), Answer::NotFound);
    let none = nothing.count().unwrap_err();
    assert_eq!(none.answer, Answer::NotFound);
    let said = "There is no distinct list \"it \\\"is\\\"\" ";
    assert!(none.sentence.starts_with(said), "{}", none.sentence);
}
