//! A held mutex survives the end of its server.

use std::sync::atomic::AtomicBool;
use std::thread;

use memlock_core::{Extension, Lock, Release};
use memlock_tests::proxy::{Fault, Match};

use super::{Bench, GUARD, SECOND, hold, waits_for_the_end};

/// Lets the holder do something after a crash, while another client waits. It holds the same lock
/// as before, alone, and releases it.
fn survives(put_back: impl FnOnce(&mut Lock)) {
    let bench = Bench::start();
    let client = bench.client();
    let mut lock = hold(&client, "m");
    let (fence, token) = (lock.fence(), lock.token());
    let value = bench.server.plain().get("lock:m").unwrap();
    assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended);
    bench.restart();
    assert_eq!(bench.server.plain().get("lock:m"), None);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let waiter = waits_for_the_end(scope, &bench, "m", &is_over);
        bench.await_waiter("lock:m");
        put_back(&mut lock);
        assert_eq!(bench.server.plain().get("lock:m").unwrap()[..value.len()], value);
        assert_eq!((lock.fence(), lock.token()), (fence, token));
        assert!(lock.check().unwrap());
        let owner = client.mutex("m", GUARD).unwrap().owner().unwrap().unwrap();
        assert_eq!(owner.token(), token.to_string());
        assert_eq!(lock.unlock().unwrap(), Release::Released);
        assert_eq!(bench.server.plain().get("lock:m"), None);
        bench.ends(&is_over);
        waiter.join().unwrap();
    });
    assert!(hold(&client, "m").fence() > fence);
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
fn what_was_put_back_survives_the_next_crash_too() {
    let bench = Bench::start();
    let mut lock = hold(&bench.client(), "m");
    let fence = lock.fence();
    for _ in 0..3 {
        bench.restart();
        assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended);
    }
    bench.restart();
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    bench.grants_at_the_end("m");
    assert_eq!(fence, lock.fence());
}

/// Of the request that puts it back.
#[test]
fn a_lost_reply_is_no_loss() {
    for fault in [Fault::CutAfterRequest, Fault::CutRequestAfter(0)] {
        let bench = Bench::start();
        let mut lock = hold(&bench.client(), "m");
        assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended);
        bench.restart();
        bench.proxy.inject(Match::Adding, fault);
        assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended);
        assert_eq!(lock.unlock().unwrap(), Release::Released);
        assert_eq!(bench.server.plain().get("lock:m"), None);
    }
}

/// The holder knows nothing of the first crash.
#[test]
fn two_crashes_in_a_row_are_as_one() {
    let bench = Bench::start();
    let mut lock = hold(&bench.client(), "m");
    bench.restart();
    bench.restart();
    assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended);
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    bench.grants_at_the_end("m");
}

#[test]
fn a_holder_that_releases_what_the_server_has_forgotten_has_released_it() {
    let bench = Bench::start();
    let client = bench.client();
    let mut lock = hold(&client, "m");
    bench.restart();
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    assert_eq!(bench.server.plain().get("lock:m"), None);
    assert!(client.mutex("m", GUARD).unwrap().try_lock().unwrap().is_none());
    assert_eq!(lock.unlock().unwrap(), Release::NotHeld);
    bench.grants_at_the_end("m");
}

/// Threads of one client hand their locks on without the server's queue.
#[test]
fn a_thread_that_releases_during_the_recovery_hands_nothing_to_the_next() {
    let bench = Bench::start();
    let client = bench.client();
    let mut lock = hold(&client, "m");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| hold(&client, "m"));
        bench.await_waiter("lock:m");
        bench.restart();
        assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended);
        assert_eq!(lock.unlock().unwrap(), Release::Released);
        assert_eq!(bench.server.plain().get("lock:m"), None, "it was handed over");
        bench.ages();
        let mut next = waiter.join().unwrap();
        assert!(next.fence() > lock.fence());
        assert_eq!(next.unlock().unwrap(), Release::Released);
    });
}
