//! Owners, waiters, and operators who take a lock away.

use std::thread;

use memlock_core::{Extension, Release};
use memlock_tests::launch::poll_until;

use crate::{Bench, GUARD, PATIENCE, Trouble, gets, hold, hold_on_all};

#[test]
fn the_owner_is_the_one_that_a_majority_voted_for() {
    let bench = Bench::of(3);
    let (client, other) = (bench.client(), bench.client());
    let mutex = other.mutex("m", GUARD).unwrap();
    assert_eq!(mutex.owner().unwrap(), None);
    let mut lock = hold_on_all(&bench, &client, "m");
    for trouble in [Trouble::Refused, Trouble::Restarted] {
        for place in 0..3 {
            bench.begin(trouble, place, 1);
            let owner = mutex.owner().unwrap().expect("it is held");
            assert_eq!(owner.token(), lock.token().to_string());
            let record = owner.record.expect("memlock wrote it");
            assert_eq!(record.pid, std::process::id());
            assert!(owner.remaining.is_some_and(|left| !left.is_zero()));
            // Members that were restarted have forgotten their numbers, in the end all of them.
            let is_known = trouble == Trouble::Refused || place == 0;
            assert!(!is_known || owner.newest_fence >= lock.fence());
            bench.end(trouble, place, 1);
            assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended);
        }
    }
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    assert_eq!(bench.votes(&lock), 0);
    assert_eq!(mutex.owner().unwrap(), None);
}

/// The vote of a client that is dead, on one of three.
#[test]
fn a_vote_of_a_minority_owns_nothing() {
    let bench = Bench::of(3);
    let lock = hold(&bench.client(), "m");
    let value = bench.members[0].get("lock:m").unwrap();
    drop(lock);
    for place in 0..3 {
        assert!(bench.members[place].server.plain().add("lock:m", &value, 60));
        assert_eq!(bench.client().mutex("m", GUARD).unwrap().owner().unwrap(), None);
        assert!(bench.members[place].server.plain().delete("lock:m"));
    }
}

#[test]
fn a_lock_is_taken_away_by_its_token_and_a_later_one_never() {
    let bench = Bench::of(3);
    let (client, other) = (bench.client(), bench.client());
    let mutex = other.mutex("m", GUARD).unwrap();
    let mut lock = hold(&client, "m");
    let token = mutex.owner().unwrap().unwrap().token();
    assert!(!mutex.force_unlock("another").unwrap());
    assert!(mutex.force_unlock(&token).unwrap());
    assert_eq!(bench.count("lock:m"), 0);
    let next = hold(&other, "m");
    assert!(next.fence() > lock.fence());
    assert!(!mutex.force_unlock(&token).unwrap());
    assert!(next.check().unwrap());
    assert!(!lock.check().unwrap());
    assert_eq!(lock.extend(GUARD).unwrap(), Extension::Lost);
    assert_eq!(lock.unlock().unwrap(), Release::Lost);
    assert!(next.check().unwrap() && !gets(&client, "m"));
}

#[test]
fn a_lock_is_taken_away_while_a_member_is_down() {
    for place in 0..3 {
        let bench = Bench::of(3);
        let mut lock = hold_on_all(&bench, &bench.client(), "m");
        bench.begin(Trouble::Refused, place, 1);
        let mutex = bench.client().mutex("m", GUARD).unwrap();
        let token = mutex.owner().unwrap().unwrap().token();
        assert!(mutex.force_unlock(&token).unwrap());
        assert_eq!(mutex.owner().unwrap(), None);
        let next = hold(&bench.client(), "m");
        bench.end(Trouble::Refused, place, 1);
        assert_eq!(lock.extend(GUARD).unwrap(), Extension::Lost);
        assert!(next.check().unwrap());
    }
}

#[test]
fn a_waiter_is_woken_when_the_lock_is_taken_away() {
    let bench = Bench::of(3);
    let lock = hold(&bench.client(), "m");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| hold(&bench.client(), "m").fence());
        bench.await_waiter("m");
        let mutex = bench.client().mutex("m", GUARD).unwrap();
        let token = mutex.owner().unwrap().unwrap().token();
        assert!(mutex.force_unlock(&token).unwrap());
        assert!(waiter.join().unwrap() > lock.fence());
    });
    lock.abandon();
}

#[test]
fn waiters_are_listed_in_their_order_wherever_the_queue_is() {
    let bench = Bench::of(3);
    let lock = hold(&bench.client(), "m");
    let clients = [bench.client(), bench.client()];
    thread::scope(|scope| {
        let listed = || bench.client().mutex("m", GUARD).unwrap().waiters().unwrap().len();
        for (place, client) in clients.iter().enumerate() {
            scope.spawn(move || drop(hold(client, "m")));
            let stands = || (listed() == place + 1).then_some(());
            assert!(poll_until(PATIENCE, stands).is_some(), "{place} waits");
        }
        for place in 0..3 {
            bench.begin(Trouble::Refused, place, 1);
            // Waiters that find their queue's member away stand elsewhere after their next look.
            let stand = || (listed() == 2).then_some(());
            assert!(poll_until(PATIENCE, stand).is_some(), "without {place}: {}", listed());
            assert!(lock.check().unwrap());
            bench.end(Trouble::Refused, place, 1);
        }
        drop(lock);
    });
    // Where the queue stood before, entries may be left. Releases wake their waiters in vain, and
    // remove them.
    let client = bench.client();
    let nobody_stands = || {
        drop(hold(&client, "m"));
        client.mutex("m", GUARD).unwrap().waiters().unwrap().is_empty().then_some(())
    };
    assert!(poll_until(PATIENCE, nobody_stands).is_some());
}
