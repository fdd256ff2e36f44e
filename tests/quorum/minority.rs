//! A minority of the members is down, hung, cut off or started anew: nothing is lost, nothing is
//! granted twice, and nothing stands still.

use std::sync::mpsc;
use std::thread;

use memlock_core::{Extension, Lock, Notice, Release, RenewOptions};
use memlock_tests::launch::poll_until;

use crate::{Bench, GUARD, PATIENCE, SECOND, Trouble, gets, hold, hold_on_all};

/// A minority of three, and one of five.
const QUORUMS: [(usize, usize); 2] = [(3, 1), (5, 2)];

fn for_each(test: impl Fn(&Bench, Trouble, usize, usize) + Sync) {
    thread::scope(|scope| {
        for (number, few) in QUORUMS {
            for (first, trouble) in Trouble::ALL.into_iter().enumerate() {
                let test = &test;
                scope.spawn(move || test(&Bench::of(number), trouble, first, few));
            }
        }
    });
}

#[test]
fn what_is_held_is_kept_extended_checked_and_released_and_nobody_else_gets_it() {
    for_each(|bench, trouble, first, few| {
        let [client, other] = [bench.client(), bench.client()];
        let mut lock = hold_on_all(bench, &client, "m");
        let fence = lock.fence();
        assert!(!gets(&other, "m"));
        bench.begin(trouble, first, few);
        // Each of these calls may take a time-out for each member that is silent.
        let is_kept = |is_kept: bool, lock: &Lock| {
            assert!(is_kept, "{trouble:?}: {:?} were left", lock.remaining());
            assert!(!gets(&other, "m"), "{trouble:?}");
        };
        let extended = lock.extend(GUARD).unwrap();
        is_kept(extended == Extension::Extended, &lock);
        let extended = lock.extend(GUARD).unwrap();
        is_kept(extended == Extension::Extended, &lock);
        assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended, "{trouble:?}");
        is_kept(lock.check().unwrap(), &lock);
        assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended, "{trouble:?}");
        assert_eq!(lock.unlock().unwrap(), Release::Released, "{trouble:?}");
        let next = hold(&other, "m");
        assert!(next.fence() > fence, "{trouble:?}");
        bench.end(trouble, first, few);
        assert!(next.check().unwrap(), "{trouble:?}");
    });
}

#[test]
fn what_was_taken_without_a_minority_is_kept_when_it_is_back() {
    for_each(|bench, trouble, first, few| {
        let [client, other] = [bench.client(), bench.client()];
        bench.begin(trouble, first, few);
        let mut lock = hold(&client, "m");
        assert!(!gets(&other, "m"), "{trouble:?}");
        bench.end(trouble, first, few);
        assert!(!gets(&other, "m"), "{trouble:?}");
        assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended, "{trouble:?}");
        assert!(!gets(&other, "m"), "{trouble:?}");
        assert_eq!(lock.unlock().unwrap(), Release::Released, "{trouble:?}");
        assert!(hold(&other, "m").fence() > lock.fence(), "{trouble:?}");
    });
}

#[test]
fn a_waiter_waits_on_and_gets_the_lock_when_it_is_released() {
    for_each(|bench, trouble, first, few| {
        let client = bench.client();
        let mut lock = hold_on_all(bench, &client, "m");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| hold(&bench.client(), "m").fence());
            bench.await_waiter("m");
            bench.begin(trouble, first, few);
            assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended, "{trouble:?}");
            assert!(!waiter.is_finished(), "{trouble:?}");
            assert!(lock.check().unwrap(), "{trouble:?}");
            assert_eq!(lock.unlock().unwrap(), Release::Released, "{trouble:?}");
            assert!(waiter.join().unwrap() > lock.fence(), "{trouble:?}");
        });
        bench.end(trouble, first, few);
    });
}

#[test]
fn a_renewed_lock_is_kept_for_longer_than_its_lease_and_no_loss_is_reported() {
    for_each(|bench, trouble, first, few| {
        let (tell, told) = mpsc::channel();
        let on_notice = Some(Box::new(move |notice| _ = tell.send(notice)) as _);
        let lock = hold_on_all(bench, &bench.client(), "m");
        let renewal = lock.renew(RenewOptions { max_hold: None, on_notice }).unwrap();
        bench.begin(trouble, first, few);
        let waited = bench.client().mutex("m", GUARD).unwrap().lock_for(GUARD + 2 * SECOND);
        assert!(waited.unwrap().is_none(), "{trouble:?}");
        bench.end(trouble, first, few);
        let waited = bench.client().mutex("m", GUARD).unwrap().lock_for(GUARD + 2 * SECOND);
        assert!(waited.unwrap().is_none(), "{trouble:?}");
        assert!(renewal.is_held() && renewal.check().unwrap(), "{trouble:?}");
        assert_eq!(renewal.release().unwrap(), Release::Released, "{trouble:?}");
        let loss = told.try_iter().find(|notice| matches!(notice, Notice::Lost(_)));
        assert_eq!(loss, None, "{trouble:?}");
    });
}

/// A member that lost its vote has it again after the next extensions, so that another member may
/// be lost then.
#[test]
fn a_member_that_is_back_is_given_the_vote_again() {
    for (trouble, first) in [(Trouble::Restarted, 0), (Trouble::Hung, 1), (Trouble::CutOff, 2)] {
        let bench = Bench::of(3);
        let client = bench.client();
        bench.begin(trouble, first, 1);
        let mut lock = hold(&client, "m");
        bench.end(trouble, first, 1);
        // While it is young, and while its earlier vote may come late, it has none.
        let votes_again = poll_until(PATIENCE, || {
            assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended, "{trouble:?}");
            (bench.count("lock:m") == 3).then_some(())
        });
        assert!(votes_again.is_some(), "{trouble:?}");
        assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended, "{trouble:?}");
        bench.begin(Trouble::Killed, first + 1, 1);
        assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended, "{trouble:?}");
        assert!(!gets(&bench.client(), "m"), "{trouble:?}");
        assert_eq!(lock.unlock().unwrap(), Release::Released, "{trouble:?}");
    }
}
