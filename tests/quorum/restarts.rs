//! Members that are started anew one after the other: fences rise, and locks are kept.

use std::thread;

use memlock_core::{Extension, Release};
use memlock_tests::launch::poll_until;

use crate::{Bench, GUARD, PATIENCE, Trouble, gets, hold, hold_on_all};

#[test]
fn fences_rise_though_every_member_was_restarted() {
    for number in [3, 5] {
        let bench = Bench::of(number);
        let clients = [bench.patient(), bench.patient()];
        let mut fence = 0;
        let mut rises = |place: usize| {
            // The same client, and another one.
            for client in [&clients[place % 2], &clients[place % 2], &clients[(place + 1) % 2]] {
                let mut lock = hold(client, "m");
                assert!(lock.fence() > fence, "{} after {fence}", lock.fence());
                fence = lock.fence();
                assert_eq!(lock.unlock().unwrap(), Release::Released);
            }
        };
        rises(0);
        for place in 0..number {
            bench.members[place].server.restart();
            rises(place);
        }
        bench.restart(number);
        rises(1);
    }
}

/// One after the other, each when the one before gives votes again: at no time is more than one
/// unavailable.
#[test]
fn a_rolling_restart_interrupts_neither_holders_nor_others() {
    let bench = Bench::of(3);
    let (client, other) = (bench.client(), bench.client());
    let renewal = hold_on_all(&bench, &client, "held").renew(Default::default()).unwrap();
    let mut fence = 0;
    for place in 0..3 {
        for trouble in [Trouble::Killed, Trouble::Restarted] {
            bench.begin(trouble, place, 1);
            assert!(!gets(&other, "held"));
            let mut lock = other.mutex("free", GUARD).unwrap().try_lock().unwrap().unwrap();
            assert!(lock.fence() > fence);
            fence = lock.fence();
            assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended);
            assert_eq!(lock.unlock().unwrap(), Release::Released);
        }
        bench.settle();
        let is_back = || (bench.count("lock:held") == 3).then_some(());
        assert!(poll_until(PATIENCE, is_back).is_some());
    }
    assert!(renewal.check().unwrap());
    assert_eq!(renewal.release().unwrap(), Release::Released);
    assert!(gets(&other, "held"));
}

/// What was put back is a vote like any other, and survives the next restart.
#[test]
fn a_holder_keeps_its_lock_over_any_number_of_restarts() {
    let bench = Bench::of(3);
    let mut lock = hold_on_all(&bench, &bench.client(), "m");
    let fence = lock.fence();
    for round in 0..6 {
        bench.begin(Trouble::Restarted, round, 1 + round % 3);
        assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended, "{round}");
        assert!(lock.check().unwrap(), "{round}");
    }
    assert_eq!(lock.fence(), fence);
    assert!(!gets(&bench.client(), "m"));
    assert_eq!(lock.unlock().unwrap(), Release::Released);
}

/// It was taken on two of three; one of them is started anew. Without the guard, a majority would
/// be free.
#[test]
fn a_restart_does_not_erode_the_majority_of_a_lock() {
    for (number, away) in [(3, 1), (5, 2)] {
        let bench = Bench::of(number);
        let (client, other) = (bench.client(), bench.client());
        bench.begin(Trouble::Refused, 0, away);
        let mut lock = hold(&client, "m");
        bench.end(Trouble::Refused, 0, away);
        bench.members[away].server.restart();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| hold(&other, "m").fence());
            bench.await_waiter("m");
            while !lock.remaining().is_zero() {
                assert!(!waiter.is_finished() || lock.remaining().is_zero());
                thread::sleep(std::time::Duration::from_millis(5));
            }
            assert!(waiter.join().unwrap() > lock.fence());
        });
        assert_eq!(lock.extend(GUARD).unwrap(), Extension::Lost);
    }
}
