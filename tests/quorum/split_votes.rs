//! Several clients at once, none of which may have a majority at first.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use memlock_core::Release;
use memlock_tests::launch::poll_until;
use memlock_tests::proxy::{Fault, Match};
use memlock_tests::stopwatch::Stopwatch;

use crate::{Bench, GUARD, PATIENCE, SECOND, first_member, gets, hold, hold_on_all};

/// All begin at the same moment, again and again.
#[test]
fn split_votes_end_and_one_of_those_who_try_together_gets_the_lock() {
    const CLIENTS: usize = 8;
    for number in [3, 5] {
        let bench = Bench::of(number);
        let clients: Vec<_> = (0..CLIENTS).map(|_| bench.client()).collect();
        clients.iter().for_each(|client| drop(hold(client, "warm")));
        let barrier = Barrier::new(CLIENTS);
        let (inside, fence) = (AtomicBool::new(false), AtomicU64::new(0));
        let slowest = Mutex::new(Duration::ZERO);
        thread::scope(|scope| {
            for client in &clients {
                scope.spawn(|| {
                    for _ in 0..20 {
                        barrier.wait();
                        let watch = Stopwatch::start();
                        let mut lock = hold(client, "m");
                        assert!(!inside.swap(true, Ordering::SeqCst));
                        let before = fence.swap(lock.fence(), Ordering::SeqCst);
                        assert!(before < lock.fence(), "{} after {before}", lock.fence());
                        assert!(inside.swap(false, Ordering::SeqCst));
                        assert_eq!(lock.unlock().unwrap(), Release::Released);
                        let mut slowest = slowest.lock().unwrap();
                        *slowest = slowest.max(watch.elapsed());
                    }
                });
            }
        });
        let slowest = slowest.into_inner().unwrap();
        assert!(slowest < 3 * SECOND, "one waited {slowest:?} for {CLIENTS} short holds");
    }
}

/// Single attempts, which find the votes split: at least one of each round succeeds, or all give
/// way and one of the next rounds does.
#[test]
fn attempts_that_do_not_wait_get_free_locks_too() {
    const CLIENTS: usize = 4;
    let bench = Bench::of(3);
    let clients: Vec<_> = (0..CLIENTS).map(|_| bench.client()).collect();
    clients.iter().for_each(|client| drop(hold(client, "m")));
    let (barrier, granted) = (Barrier::new(CLIENTS), AtomicU64::new(0));
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| {
                let mutex = client.mutex("m", GUARD).unwrap();
                for _ in 0..20 {
                    barrier.wait();
                    if let Some(mut lock) = mutex.try_lock().unwrap() {
                        granted.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(lock.unlock().unwrap(), Release::Released);
                    }
                }
            });
        }
    });
    let granted = granted.into_inner();
    assert!(granted >= 10, "{granted} of 20 rounds had a holder");
    assert_eq!(bench.count("lock:m"), 0, "votes of attempts that were given up stay");
}

/// From a release to the grant of the next waiter, in another client.
#[test]
fn a_waiter_gets_the_lock_promptly() {
    let bench = Bench::of(3);
    let (client, other) = (bench.client(), bench.client());
    drop(hold(&other, "m"));
    let mut times: Vec<Duration> = (0..10)
        .map(|_| {
            let mut lock = hold(&client, "m");
            thread::scope(|scope| {
                let waiter = scope.spawn(|| drop(hold(&other, "m")));
                bench.await_waiter("m");
                let watch = Stopwatch::start();
                assert_eq!(lock.unlock().unwrap(), Release::Released);
                waiter.join().unwrap();
                watch.elapsed()
            })
        })
        .collect();
    times.sort();
    assert!(times[5] < Duration::from_millis(100), "{times:?}");
}

/// One at a time, in their order, without a pause between them.
#[test]
fn many_waiters_get_the_lock_one_after_the_other() {
    const CLIENTS: usize = 8;
    const ROUNDS: usize = 25;
    let bench = Bench::of(3);
    let clients: Vec<_> = (0..CLIENTS).map(|_| bench.client()).collect();
    clients.iter().for_each(|client| drop(hold(client, "m")));
    let watch = Stopwatch::start();
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    drop(hold(client, "m"));
                }
            });
        }
    });
    let each = watch.elapsed() / u32::try_from(CLIENTS * ROUNDS).unwrap();
    assert!(each < Duration::from_millis(50), "{each:?} from one holder to the next");
}

/// Leaves votes on these members that their client does not remove, as if it had died.
fn die_with_votes_on(bench: &Bench, voted: &[usize]) {
    drop(hold_on_all(bench, &bench.client(), "m"));
    for (place, member) in bench.members.iter().enumerate() {
        if voted.contains(&place) {
            member.proxy.inject_always(Match::Deleting, Fault::CutBeforeRequest);
        } else {
            member.proxy.refuse(true);
        }
    }
    let dead = bench.client();
    let tried = dead.mutex("m", GUARD).unwrap().try_lock();
    assert!(tried.is_err(), "it had too few votes");
    for (place, member) in bench.members.iter().enumerate() {
        assert_eq!(member.get("lock:m").is_some(), voted.contains(&place), "{place}");
    }
    for member in &bench.members {
        member.proxy.refuse(false);
        member.proxy.clear_rules();
    }
}

#[test]
fn the_votes_of_a_dead_client_do_not_block_a_majority_of_others() {
    for (number, few) in [(3, 1), (5, 2)] {
        for rotation in 0..number {
            let bench = Bench::of(number);
            let voted: Vec<usize> = (0..few).map(|place| (place + rotation) % number).collect();
            die_with_votes_on(&bench, &voted);
            let client = bench.client();
            let watch = Stopwatch::start();
            let mut lock = hold(&client, "m");
            assert!(watch.elapsed() < SECOND, "{:?} beside {voted:?}", watch.elapsed());
            assert_eq!(lock.unlock().unwrap(), Release::Released);
            assert!(gets(&client, "m"), "beside {voted:?}");
        }
    }
}

/// Where they are one vote short of everything, the lock is free once their leases have ended.
#[test]
fn the_votes_of_several_dead_clients_end_with_their_leases() {
    let bench = Bench::of(3);
    die_with_votes_on(&bench, &[0]);
    let watch = Stopwatch::start();
    for place in [1, 2] {
        bench.members[place].proxy.inject_always(Match::Deleting, Fault::CutBeforeRequest);
    }
    bench.members[2].proxy.refuse(true);
    assert!(!matches!(bench.client().mutex("m", GUARD).unwrap().try_lock(), Ok(Some(_))));
    bench.members[2].proxy.refuse(false);
    bench.members.iter().for_each(|member| member.proxy.clear_rules());
    assert_eq!(bench.count("lock:m"), 2);
    drop(hold(&bench.client(), "m"));
    assert!(watch.elapsed() < GUARD + 4 * SECOND, "{:?}", watch.elapsed());
}

/// The first member's vote decides whose turn it is, also when a dead client has it.
#[test]
fn a_dead_clients_vote_on_the_first_member_keeps_nobody_from_the_others() {
    let bench = Bench::of(3);
    let client = bench.client();
    let first = first_member(&bench, &client, "m");
    die_with_votes_on(&bench, &[first]);
    for _ in 0..5 {
        let mut lock = client.mutex("m", GUARD).unwrap().try_lock().unwrap().expect("it is free");
        assert!(lock.check().unwrap());
        assert_eq!(lock.unlock().unwrap(), Release::Released);
    }
    let ended = poll_until(PATIENCE, || (bench.count("lock:m") == 0).then_some(()));
    assert!(ended.is_some(), "its vote never ends");
}
