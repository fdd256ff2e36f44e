//! What is not put back: what has ended, or was released.

use std::thread;

use memlock_core::{Extension, Lock, Release};
use memlock_tests::launch::poll_until;
use memlock_tests::proxy::{Fault, Match, Proxy};

use super::{BRIEF, Bench, GUARD, PATIENCE, Restarted, hold, waits_for_the_end};

fn is_over(lock: &Lock) {
    let over = poll_until(PATIENCE, || lock.remaining().is_zero().then_some(()));
    assert!(over.is_some(), "the lease does not end");
}

/// A lock whose lease has ended, on a server that recovers.
fn ended(bench: &Bench) -> (Lock, Restarted) {
    let mut lock = hold(&bench.client(), "m");
    assert_eq!(lock.extend(BRIEF).unwrap(), Extension::Extended);
    let restarted = bench.restart();
    is_over(&lock);
    restarted.has_not_ended();
    (lock, restarted)
}

fn is_not_put_back(lose: impl FnOnce(&mut Lock)) {
    let bench = Bench::start();
    let (mut lock, restarted) = ended(&bench);
    lose(&mut lock);
    assert_eq!(bench.server.plain().get("lock:m"), None);
    thread::scope(|scope| waits_for_the_end(scope, &bench, "m", &restarted).join().unwrap());
}

#[test]
fn an_extension_after_the_lease_finds_it_lost() {
    is_not_put_back(|lock| {
        assert_eq!(lock.extend(GUARD).unwrap(), Extension::Lost);
        assert_eq!(lock.unlock().unwrap(), Release::Lost);
    });
}

#[test]
fn a_check_after_the_lease_finds_it_lost() {
    is_not_put_back(|lock| assert!(!lock.check().unwrap()));
}

#[test]
fn a_release_after_the_lease_finds_it_lost() {
    is_not_put_back(|lock| assert_eq!(lock.unlock().unwrap(), Release::Lost));
}

#[test]
fn a_server_that_is_away_for_longer_than_the_lease_has_lost_it() {
    let bench = Bench::start();
    let mut lock = hold(&bench.client(), "m");
    assert_eq!(lock.extend(BRIEF).unwrap(), Extension::Extended);
    bench.server.kill();
    is_over(&lock);
    let restarted = bench.start_again();
    assert_eq!(lock.extend(GUARD).unwrap(), Extension::Lost);
    restarted.has_not_ended();
    thread::scope(|scope| waits_for_the_end(scope, &bench, "m", &restarted).join().unwrap());
}

#[test]
fn what_was_released_before_the_crash_is_not_put_back() {
    let bench = Bench::start();
    let mut lock = hold(&bench.client(), "m");
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    let restarted = bench.restart();
    assert_eq!(lock.unlock().unwrap(), Release::NotHeld);
    assert_eq!(lock.extend(GUARD).unwrap(), Extension::NotHeld);
    drop(lock);
    restarted.has_not_ended();
    assert_eq!(bench.server.plain().get("lock:m"), None);
}

/// Another client may have had it since, and may still.
#[test]
fn what_may_have_been_released_before_the_crash_is_not_put_back() {
    let bench = Bench::start();
    let proxy = Proxy::start(bench.server.address());
    let url = bench.url().replace(&bench.server.url(), &proxy.url());
    let client = memlock_core::Client::connect(&url).unwrap();
    let mut lock = hold(&client, "m");
    assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended);
    // The release is carried out, its reply is lost, and so is every request that asks what became
    // of it.
    proxy.inject(Match::Any, Fault::CutAfterRequest);
    proxy.inject_always(Match::Any, Fault::CutRequestAfter(0));
    assert!(lock.unlock().is_err());
    assert_eq!(bench.server.plain().get("lock:m"), None);
    proxy.clear_rules();
    let restarted = bench.restart();
    assert_eq!(lock.extend(GUARD).unwrap(), Extension::Lost);
    assert_eq!(bench.server.plain().get("lock:m"), None);
    restarted.has_not_ended();
}

/// A loss that no restart explains: the server is the same, so that others may have had the lock.
#[test]
fn what_an_operator_removed_is_not_put_back() {
    let bench = Bench::start();
    let client = bench.client();
    let restarted = bench.restart();
    let (mut extended, mut released, checked) = {
        let held = hold(&client, "a");
        (held, hold(&client, "b"), hold(&client, "c"))
    };
    restarted.just_ended();
    bench.server.plain().flush_all();
    assert_eq!(extended.extend(GUARD).unwrap(), Extension::Lost);
    assert_eq!(released.unlock().unwrap(), Release::Lost);
    assert!(!checked.check().unwrap());
    let mut plain = bench.server.plain();
    assert!(["a", "b", "c"].iter().all(|name| plain.get(&format!("lock:{name}")).is_none()));
}

/// The same during the recovery: the lock was put back, and then taken away.
#[test]
fn what_was_put_back_and_removed_is_not_put_back_again() {
    let bench = Bench::start();
    let mut lock = hold(&bench.client(), "m");
    let restarted = bench.restart();
    assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended);
    assert!(bench.server.plain().delete("lock:m"));
    assert!(!lock.check().unwrap());
    assert_eq!(lock.extend(GUARD).unwrap(), Extension::Lost);
    assert_eq!(bench.server.plain().get("lock:m"), None);
    restarted.has_not_ended();
}
