//! A dead holder's permits come back, and not before its lease is over.

use std::thread;
use std::time::Duration;

use memlock_core::clock::{Clock, Moment, SystemClock};
use memlock_core::{Client, Extension, Release, Semaphore};
use memlock_tests::stopwatch::Stopwatch;
use memlock_tests::{assert_safe, assert_safe_eq};

use super::{Bench, LEASE, PATIENCE};

/// What is said of a grant that took longer than its lease.
const TOO_SLOW: &str = "longer to answer than the lease";

/// Polls until a permit is granted. Returns the start of the last request that was refused, and the
/// moment of the grant.
fn taken_between(semaphore: &Semaphore) -> [Moment; 2] {
    let began = SystemClock.now();
    let mut refused = began;
    loop {
        let asked = SystemClock.now();
        if let Some(permit) = semaphore.try_acquire().unwrap() {
            let granted = SystemClock.now();
            drop(permit);
            return [refused, granted];
        }
        refused = asked;
        assert!(asked.since(began) < PATIENCE, "it never comes back");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_permit_is_never_granted_twice_at_any_phase_of_the_servers_clock() {
    let bench = Bench::new();
    let url = format!("{}?io_timeout=10s", bench.server.url());
    let client = Client::connect(&url).unwrap();
    for lease in [1000, 1400] {
        thread::scope(|scope| {
            for phase in 0..25 {
                let client = &client;
                scope.spawn(move || {
                    thread::sleep(Duration::from_millis(phase * 40));
                    let name = format!("{lease} {phase}");
                    let semaphore =
                        client.semaphore(&name, 2, Duration::from_millis(lease)).unwrap();
                    let mut other = client.semaphore(&name, 2, LEASE).unwrap().acquire().unwrap();
                    // The second one is reckoned from what the first one's reply showed of the
                    // server's clock.
                    thread::sleep(Duration::from_millis(phase * 13));
                    // A machine that stands still for longer than the lease says so: try again.
                    let permit = loop {
                        match semaphore.acquire() {
                            Ok(permit) => break permit,
                            Err(error) => assert!(error.to_string().contains(TOO_SLOW), "{error}"),
                        }
                    };
                    let deadline = SystemClock.now() + permit.remaining();
                    std::mem::forget(permit);
                    assert_eq!(other.extend(LEASE).unwrap(), Extension::Extended);
                    let [refused, next] = taken_between(&semaphore);
                    assert_safe!(
                        next > deadline,
                        "phase {phase}: granted {:?} too early",
                        deadline.since(next)
                    );
                    let late = refused.since(deadline);
                    assert!(
                        late < Duration::from_millis(4100),
                        "phase {phase}: only after {late:?}"
                    );
                });
            }
        });
    }
}

#[test]
fn a_waiter_gets_what_a_dead_holder_held_without_being_woken() {
    let bench = Bench::new();
    let holder = bench.client().semaphore("s", 2, Duration::from_secs(2)).unwrap();
    std::mem::forget([holder.acquire().unwrap(), holder.acquire().unwrap()]);
    let watch = Stopwatch::start();
    let waiters: Vec<_> = (0..2)
        .map(|_| {
            let semaphore = bench.semaphore(2);
            thread::spawn(move || semaphore.acquire_for(PATIENCE).unwrap().map(std::mem::forget))
        })
        .collect();
    assert!(waiters.into_iter().all(|waiter| waiter.join().unwrap().is_some()));
    let took = watch.elapsed();
    assert!(took < Duration::from_secs(9), "{took:?}");
}

#[test]
fn who_overslept_holds_nothing_and_is_told() {
    let bench = Bench::new();
    let semaphore = bench.client().semaphore("s", 1, Duration::from_secs(2)).unwrap();
    let mut permit = semaphore.acquire().unwrap();
    let next = bench.semaphore(1).acquire().unwrap();
    assert!(permit.remaining().is_zero());
    assert_eq!(permit.release().unwrap(), Release::Lost);
    assert_safe_eq!(
        semaphore.status().unwrap().unwrap().available,
        0,
        "another holder's permit was released"
    );
    drop(next);
}

#[test]
fn a_semaphore_is_kept_for_its_life_after_it_was_used_last() {
    let bench = Bench::new();
    let semaphore = bench.semaphore(1);
    let _ = semaphore.set_up(Duration::from_secs(1)).unwrap();
    // From the second time on a step builds upon what the last one saw.
    drop(semaphore.acquire().unwrap());
    let mut permit = semaphore.acquire().unwrap();
    thread::sleep(Duration::from_secs(5));
    assert_eq!(permit.release().unwrap(), Release::Released);
    assert!(semaphore.status().unwrap().is_some());
}
