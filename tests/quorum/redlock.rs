//! The known faults of programs that lock by a majority of servers, each made to happen.

use std::thread;
use std::time::Duration;

use memlock_core::{Client, Extension, Release};
use memlock_tests::launch::poll_until;
use memlock_tests::proxy::{Fault, Match};
use memlock_tests::stopwatch::Stopwatch;

use crate::{Bench, GUARD, PATIENCE, SECOND, SILENCE, Trouble, gets, hold, hold_on_all};

/// Each reaches another one of three only. A majority is one of the members that were configured,
/// not of those that answer.
#[test]
fn a_majority_of_the_connected_servers_is_none() {
    let bench = Bench::of(3);
    let client = bench.client();
    drop(hold(&client, "m"));
    for place in 0..3 {
        bench.begin(Trouble::Refused, place + 1, 2);
        for client in [&client, &bench.client()] {
            assert!(client.mutex("m", GUARD).unwrap().try_lock().is_err());
        }
        bench.end(Trouble::Refused, place + 1, 2);
        let free = poll_until(PATIENCE, || (bench.count("lock:m") == 0).then_some(()));
        assert!(free.is_some(), "the vote on {place} stays");
    }
}

/// It lost its votes, and another client may have had the lock in between. A vote that is added
/// again does not show that it has not.
#[test]
fn a_vote_that_was_added_again_is_no_extension() {
    for (number, lost) in [(3, 2), (3, 3), (5, 3), (5, 5)] {
        let bench = Bench::of(number);
        let client = bench.client();
        let mut lock = hold_on_all(&bench, &client, "m");
        for member in bench.some(0, lost) {
            assert!(member.server.plain().delete("lock:m"));
        }
        assert_eq!(lock.extend(GUARD).unwrap(), Extension::Lost, "{lost} of {number}");
        assert_eq!(lock.extend(GUARD).unwrap(), Extension::Lost, "{lost} of {number}");
        assert!(!lock.check().unwrap(), "{lost} of {number}");
        // What the extension added is in nobody's way.
        let watch = Stopwatch::start();
        let next = hold(&bench.client(), "m");
        assert!(watch.elapsed() < 2 * SECOND, "{lost} of {number}: {:?}", watch.elapsed());
        assert!(next.fence() > lock.fence());
    }
}

/// The same, and another client has had the lock in between.
#[test]
fn an_extension_does_not_hide_a_holder_in_between() {
    let bench = Bench::of(3);
    let client = bench.client();
    let mut lock = hold_on_all(&bench, &client, "m");
    for member in bench.some(0, 2) {
        assert!(member.server.plain().delete("lock:m"));
    }
    let mut between = hold(&bench.client(), "m");
    assert!(between.fence() > lock.fence());
    assert_eq!(between.unlock().unwrap(), Release::Released);
    assert_eq!(lock.extend(GUARD).unwrap(), Extension::Lost);
    assert_eq!(lock.unlock().unwrap(), Release::Lost);
}

/// An operator has taken the lock away, on all members or on a majority of them, and another client
/// has had it since.
#[test]
fn a_lock_that_was_taken_away_is_not_had_again_by_adding_votes() {
    for down in [0, 1] {
        let bench = Bench::of(3);
        let (client, other) = (bench.client(), bench.client());
        let mut lock = hold(&client, "m");
        let mutex = other.mutex("m", GUARD).unwrap();
        bench.begin(Trouble::Refused, 0, down);
        assert!(mutex.force_unlock(&lock.token().to_string()).unwrap());
        assert_eq!(hold(&other, "m").unlock().unwrap(), Release::Released);
        bench.end(Trouble::Refused, 0, down);
        assert_eq!(lock.extend(GUARD).unwrap(), Extension::Lost, "{down}");
        assert_eq!(lock.extend(GUARD).unwrap(), Extension::Lost, "{down}");
        assert!(!lock.check().unwrap(), "{down}");
        drop(hold(&other, "m"));
    }
}

#[test]
fn an_attempt_that_fails_leaves_no_votes() {
    for trouble in [Trouble::Killed, Trouble::Hung, Trouble::CutOff, Trouble::Refused] {
        let bench = Bench::of(5);
        let client = bench.client();
        drop(hold(&client, "m"));
        bench.begin(trouble, 0, 3);
        assert!(client.mutex("m", GUARD).unwrap().try_lock().is_err(), "{trouble:?}");
        let none = |member: &crate::Member| member.get("lock:m").is_none();
        assert!(bench.some(3, 2).all(none), "{trouble:?}");
        bench.end(trouble, 0, 3);
    }
}

/// The grants arrive, their replies do not. The votes are of an attempt that was given up, and do not
/// count, so their client removes them.
#[test]
fn votes_whose_replies_were_lost_are_in_nobodys_way() {
    for number in [3, 5] {
        let bench = Bench::of(number);
        let client = bench.client();
        drop(hold(&client, "m"));
        for member in &bench.members {
            member.proxy.inject(Match::Adding, Fault::CutAfterRequest);
        }
        let watch = Stopwatch::start();
        let tried = client.mutex("m", GUARD).unwrap().try_lock();
        assert!(!matches!(tried, Ok(None)), "it was free");
        drop(tried);
        drop(hold(&bench.client(), "m"));
        assert!(watch.elapsed() < 3 * SECOND, "{:?}", watch.elapsed());
    }
}

/// A delete that was on its way for long arrives when the same client has the lock again.
#[test]
fn a_late_release_does_not_hit_a_later_lock_of_the_same_client() {
    let late = SILENCE + SECOND;
    let bench = Bench::of(3);
    let client = bench.client();
    let mut lock = hold_on_all(&bench, &client, "m");
    bench.members[1].proxy.inject(Match::Deleting, Fault::DelayRest(0, late));
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    let arrives = Stopwatch::start();
    let mut next = hold(&client, "m");
    assert!(next.fence() > lock.fence());
    while arrives.elapsed() < late + SECOND {
        assert_eq!(next.extend(GUARD).unwrap(), Extension::Extended);
        assert!(next.check().unwrap());
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(bench.count("lock:m"), 3, "the late request has removed a later vote");
    assert!(!gets(&bench.client(), "m"));
    assert_eq!(next.unlock().unwrap(), Release::Released);
}

/// An add that was on its way for long arrives when the lock was released.
#[test]
fn a_late_request_for_a_vote_locks_out_nobody() {
    let late = 8 * SECOND;
    for few in [1, 2] {
        let bench = Bench::of(3);
        let client = bench.client();
        drop(hold(&client, "m"));
        let sets = |member: &crate::Member| member.server.plain().stats()["cmd_set"].clone();
        let sent = std::time::Instant::now();
        for member in bench.some(0, few) {
            member.proxy.inject(Match::Any, Fault::DelayRest(0, late));
        }
        let mut tried = client.mutex("m", GUARD).unwrap().try_lock();
        if let Ok(Some(lock)) = &mut tried {
            assert_eq!(lock.unlock().unwrap(), Release::Released);
        }
        drop(tried);
        let before: Vec<String> = bench.some(0, few).map(sets).collect();
        assert!(sent.elapsed() < late, "the test took too long");
        let arrived = || {
            let now: Vec<String> = bench.some(0, few).map(sets).collect();
            now.iter().zip(&before).all(|(now, before)| now != before).then_some(())
        };
        assert!(poll_until(PATIENCE, arrived).is_some(), "{few}: they do not arrive");
        // It may be a majority for nobody, so its own client removes it at its next contact.
        let watch = Stopwatch::start();
        drop(hold(&client, "m"));
        assert!(watch.elapsed() < 2 * SECOND, "{few}: {:?}", watch.elapsed());
        drop(hold(&bench.client(), "m"));
    }
}

/// A client in whose URL a member is missing counts with another majority.
#[test]
fn a_client_cannot_have_a_majority_of_its_own() {
    let bench = Bench::of(5);
    let held = hold(&bench.client(), "m");
    let few = bench.addresses()[..3].join(",");
    let other = Client::connect(&format!("memcached://{few}?quorum=majority&guard=4s")).unwrap();
    assert!(other.mutex("m", GUARD).unwrap().try_lock().is_err());
    assert!(held.check().unwrap());
    // Nor before the others have come.
    let bench = Bench::of(5);
    let few = bench.addresses()[..3].join(",");
    let other = Client::connect(&format!("memcached://{few}?quorum=majority&guard=4s")).unwrap();
    let held = hold(&other, "m");
    assert!(bench.client().mutex("m", GUARD).unwrap().try_lock().is_err());
    assert!(held.check().unwrap());
}

/// The client that no majority reaches tells why: which of the servers is in which state.
#[test]
fn a_lock_without_a_majority_says_what_each_member_said() {
    let bench = Bench::of(3);
    drop(hold_on_all(&bench, &bench.client(), "m"));
    bench.begin(Trouble::Killed, 0, 1);
    bench.begin(Trouble::Hung, 1, 1);
    let error = bench.client().mutex("m", GUARD).unwrap().try_lock().unwrap_err().to_string();
    let addresses = bench.addresses();
    for address in &addresses[..2] {
        assert!(error.matches(address.as_str()).count() >= 2, "{address}: {error}");
    }
    assert!(error.contains("2 are needed, and 2 could not be used"), "{error}");
    bench.end(Trouble::Hung, 1, 1);
}
