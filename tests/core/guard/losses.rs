//! What is not put back: what has ended, or was released.

use memlock_core::{Extension, Lock, Release};
use memlock_tests::launch::poll_until;
use memlock_tests::proxy::{Fault, Match};

use super::{BRIEF, Bench, GUARD, PATIENCE, hold};

fn is_over(lock: &Lock) {
    let over = poll_until(PATIENCE, || lock.remaining().is_zero().then_some(()));
    assert!(over.is_some(), "the lease does not end");
}

/// A lock whose lease has ended, on a server that recovers.
fn ended(bench: &Bench) -> Lock {
    let mut lock = hold(&bench.client(), "m");
    assert_eq!(lock.extend(BRIEF).unwrap(), Extension::Extended);
    bench.restart();
    is_over(&lock);
    lock
}

fn is_not_put_back(lose: impl FnOnce(&mut Lock)) {
    let bench = Bench::start();
    let mut lock = ended(&bench);
    lose(&mut lock);
    assert_eq!(bench.server.plain().get("lock:m"), None);
    bench.grants_at_the_end("m");
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
    bench.start_again();
    assert_eq!(lock.extend(GUARD).unwrap(), Extension::Lost);
    bench.grants_at_the_end("m");
}

#[test]
fn what_was_released_before_the_crash_is_not_put_back() {
    let bench = Bench::start();
    let mut lock = hold(&bench.client(), "m");
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    bench.restart();
    assert_eq!(lock.unlock().unwrap(), Release::NotHeld);
    assert_eq!(lock.extend(GUARD).unwrap(), Extension::NotHeld);
    drop(lock);
    assert_eq!(bench.server.plain().get("lock:m"), None);
}

/// The release is carried out, its reply is lost, and so is every request that asks what became of
/// it, until the server is started anew.
pub(super) fn crashes_in_a_release(bench: &Bench, release: impl FnOnce() -> bool) {
    bench.proxy.clear_rules();
    bench.proxy.inject(Match::Any, Fault::CutAfterRequest);
    bench.proxy.inject_always(Match::Any, Fault::CutRequestAfter(0));
    assert!(release(), "it knows what became of it");
    bench.proxy.clear_rules();
    bench.tells_its_age();
    bench.restart();
}

/// Another client may have had it since, and may still.
#[test]
fn what_may_have_been_released_before_the_crash_is_not_put_back() {
    let bench = Bench::start();
    let mut lock = hold(&bench.client(), "m");
    assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended);
    crashes_in_a_release(&bench, || lock.unlock().is_err());
    assert_eq!(lock.extend(GUARD).unwrap(), Extension::Lost);
    assert_eq!(bench.server.plain().get("lock:m"), None);
}

/// The crash took nothing away that the lease did not cover.
#[test]
fn what_may_have_been_released_before_the_crash_is_released_if_the_release_is_repeated() {
    let bench = Bench::start();
    let mut lock = hold(&bench.client(), "m");
    assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended);
    crashes_in_a_release(&bench, || lock.unlock().is_err());
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    assert_eq!(bench.server.plain().get("lock:m"), None);
}

/// A loss that no restart explains: the server is the same, so that others may have had the lock.
#[test]
fn what_an_operator_removed_is_not_put_back() {
    let bench = Bench::start();
    let client = bench.client();
    let (mut extended, mut released, checked) = {
        let held = hold(&client, "a");
        (held, hold(&client, "b"), hold(&client, "c"))
    };
    bench.server.plain().flush_all();
    assert_eq!(extended.extend(GUARD).unwrap(), Extension::Lost);
    assert_eq!(released.unlock().unwrap(), Release::Lost);
    assert!(!checked.check().unwrap());
    let mut plain = bench.server.plain();
    assert!(["a", "b", "c"].iter().all(|name| plain.get(&format!("lock:{name}")).is_none()));
}

/// The same during the recovery: the lock was put back, and then taken away.
fn is_not_put_back_again(put_back: impl FnOnce(&mut Lock)) {
    let bench = Bench::start();
    let mut lock = hold(&bench.client(), "m");
    bench.restart();
    put_back(&mut lock);
    assert!(bench.server.plain().delete("lock:m"));
    assert!(!lock.check().unwrap());
    assert_eq!(lock.extend(GUARD).unwrap(), Extension::Lost);
    assert_eq!(bench.server.plain().get("lock:m"), None);
}

#[test]
fn what_an_extension_put_back_and_was_removed_is_not_put_back_again() {
    is_not_put_back_again(|lock| assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended));
}

#[test]
fn what_a_check_put_back_and_was_removed_is_not_put_back_again() {
    is_not_put_back_again(|lock| assert!(lock.check().unwrap()));
}

#[test]
fn what_a_check_found_after_a_lost_reply_and_was_removed_is_not_put_back_again() {
    let bench = Bench::start();
    let mut lock = hold(&bench.client(), "m");
    bench.restart();
    bench.proxy.inject(Match::Adding, Fault::CutAfterRequest);
    assert!(lock.check().unwrap());
    assert!(bench.server.plain().delete("lock:m"));
    assert!(!lock.check().unwrap());
    assert_eq!(lock.extend(GUARD).unwrap(), Extension::Lost);
    assert_eq!(bench.server.plain().get("lock:m"), None);
}

/// The record that the holder finds may be of a request that was late.
fn proves_nothing_after_the_lease(put_back: impl FnOnce(&mut Lock)) {
    let bench = Bench::start();
    let mut lock = hold(&bench.client(), "m");
    assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended);
    let value = bench.server.plain().get("lock:m").unwrap();
    bench.restart();
    // The first request that puts it back is lost, and the second one arrives.
    bench.proxy.inject(Match::Adding, Fault::CutRequestAfter(0));
    put_back(&mut lock);
    is_over(&lock);
    bench.server.plain().delete("lock:m");
    // Another client may have held it in between.
    assert!(bench.server.plain().set("lock:m", value, 0));
    assert_eq!(lock.extend(GUARD).unwrap(), Extension::Lost);
    assert_eq!(bench.server.plain().get("lock:m"), None);
}

#[test]
fn a_record_that_a_lost_extension_may_have_left_proves_nothing_after_the_lease() {
    proves_nothing_after_the_lease(|lock| {
        assert_eq!(lock.extend(BRIEF).unwrap(), Extension::Extended);
    });
}

#[test]
fn a_record_that_a_lost_check_may_have_left_proves_nothing_after_the_lease() {
    proves_nothing_after_the_lease(|lock| {
        assert!(lock.check().is_err());
        assert_eq!(lock.extend(BRIEF).unwrap(), Extension::Extended);
    });
}
