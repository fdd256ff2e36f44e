//! A majority of the members, or all of them, are started anew at once: holders put back what they
//! hold, and nobody else is granted anything before the guard's end.

use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use memlock_core::{Extension, Lock, Notice, Release, RenewOptions, Wait, Waited};
use memlock_tests::launch::poll_until;

use crate::{Bench, GUARD, PATIENCE, SECOND, hold, hold_on_all};

/// How many are restarted, of how many.
const RESTARTS: [(usize, usize); 4] = [(2, 3), (3, 3), (3, 5), (5, 5)];

/// The guard of the members that were restarted has not ended for certain.
#[track_caller]
fn has_not_ended(began: Instant) {
    assert!(began.elapsed() < GUARD, "the test took too long: {:?}", began.elapsed());
}

/// Lets the holder do something after the restarts, while another client waits.
fn survives(put_back: impl Fn(&mut Lock) + Sync) {
    thread::scope(|scope| {
        for (many, number) in RESTARTS {
            let put_back = &put_back;
            scope.spawn(move || {
                let bench = Bench::of(number);
                let client = bench.patient();
                let mut lock = hold_on_all(&bench, &client, "m");
                let fence = lock.fence();
                assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended);
                let began = bench.restart(many);
                assert_eq!(bench.count("lock:m"), number - many);
                thread::scope(|scope| {
                    let waiter = scope.spawn(|| {
                        let next = hold(&bench.patient(), "m");
                        (began.elapsed(), next.fence())
                    });
                    put_back(&mut lock);
                    assert_eq!(bench.votes(&lock), number, "{many} of {number}");
                    assert_eq!(lock.fence(), fence);
                    let owner = client.mutex("m", GUARD).unwrap().owner().unwrap().unwrap();
                    assert_eq!(owner.token(), lock.token().to_string());
                    has_not_ended(began);
                    assert_eq!(lock.unlock().unwrap(), Release::Released);
                    assert_eq!(bench.votes(&lock), 0);
                    let (after, next) = waiter.join().unwrap();
                    assert!(after >= GUARD, "granted {after:?} after the restart");
                    assert!(next > fence, "{next} after {fence}");
                });
            });
        }
    });
}

#[test]
fn an_extension_puts_the_lock_back() {
    survives(|lock| {
        assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended);
        assert!(lock.remaining() > GUARD - 2 * SECOND);
    });
}

#[test]
fn a_check_puts_the_lock_back_for_the_rest_of_its_lease() {
    survives(|lock| {
        let deadline = lock.deadline();
        assert!(lock.check().unwrap());
        assert_eq!(lock.deadline(), deadline);
    });
}

#[test]
fn a_release_needs_no_vote_to_be_there() {
    for (many, number) in RESTARTS {
        let bench = Bench::of(number);
        let mut lock = hold(&bench.client(), "m");
        let began = bench.restart(many);
        assert_eq!(lock.unlock().unwrap(), Release::Released, "{many} of {number}");
        assert_eq!(bench.count("lock:m"), 0);
        has_not_ended(began);
        drop(hold(&bench.patient(), "m"));
        assert!(began.elapsed() >= GUARD);
    }
}

#[test]
fn a_renewed_lock_is_put_back_and_no_loss_is_reported() {
    thread::scope(|scope| {
        for (many, number) in RESTARTS {
            scope.spawn(move || {
                let bench = Bench::of(number);
                let (tell, told) = mpsc::channel();
                let on_notice = Some(Box::new(move |notice| _ = tell.send(notice)) as _);
                let options = RenewOptions { max_hold: None, on_notice };
                let renewal = hold_on_all(&bench, &bench.patient(), "m").renew(options).unwrap();
                let began = bench.restart(many);
                let is_back = || (bench.count("lock:m") == number).then_some(());
                assert!(poll_until(PATIENCE, is_back).is_some(), "{many} of {number}");
                has_not_ended(began);
                let other = bench.patient();
                let waited = other.mutex("m", GUARD).unwrap().lock_for(GUARD + 4 * SECOND);
                assert!(waited.unwrap().is_none() && renewal.is_held());
                assert!(renewal.check().unwrap());
                assert_eq!(renewal.release().unwrap(), Release::Released);
                let loss = told.try_iter().find(|notice| matches!(notice, Notice::Lost(_)));
                assert_eq!(loss, None, "{many} of {number}");
            });
        }
    });
}

/// Also of what nobody held.
#[test]
fn nothing_is_granted_before_the_guards_end() {
    for (many, number) in RESTARTS {
        let bench = Bench::of(number);
        let [one, two] = [bench.client(), bench.patient()];
        drop(hold(&one, "seen"));
        let began = bench.restart(many);
        for client in [&one, &two, &bench.client()] {
            for name in ["seen", "never"] {
                let tried = client.mutex(name, GUARD).unwrap().lock_with(&Wait::NEVER).unwrap();
                has_not_ended(began);
                assert!(matches!(tried, Waited::Recovering), "{name}: {tried:?}");
            }
        }
        drop(hold(&two, "never"));
        assert!(began.elapsed() >= GUARD, "{:?}", began.elapsed());
    }
}

#[test]
fn a_lease_that_ended_before_it_was_put_back_is_lost() {
    let bench = Bench::of(3);
    let mut lock = hold(&bench.client(), "m");
    // Of one second, a slow reply may leave nothing.
    assert_eq!(lock.extend(SECOND * 3 / 2).unwrap(), Extension::Extended);
    let began = bench.restart(3);
    assert!(poll_until(PATIENCE, || lock.remaining().is_zero().then_some(())).is_some());
    // Servers keep votes for whole seconds, so that these count a little longer than the lease.
    thread::sleep(SECOND);
    assert_eq!(lock.extend(GUARD).unwrap(), Extension::Lost);
    assert_eq!(bench.count("lock:m"), 0);
    has_not_ended(began);
    drop(hold(&bench.patient(), "m"));
    assert!(began.elapsed() >= GUARD);
}

#[test]
fn a_cold_start_grants_nothing_for_one_guard() {
    let began = Instant::now();
    let bench = Bench::fresh(3);
    let client = bench.patient();
    let tried = client.mutex("m", GUARD).unwrap().lock_with(&Wait::NEVER).unwrap();
    assert!(matches!(tried, Waited::Recovering), "{tried:?}");
    drop(hold(&client, "m"));
    assert!(began.elapsed() >= GUARD);
}
