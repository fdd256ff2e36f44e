//! A held mutex survives the end of its server.

use std::thread;

use memlock_core::{Extension, Lock, Release};

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
    let restarted = bench.restart();
    assert_eq!(bench.server.plain().get("lock:m"), None);
    thread::scope(|scope| {
        let waiter = waits_for_the_end(scope, &bench, "m", &restarted);
        bench.await_waiter("lock:m");
        put_back(&mut lock);
        assert_eq!(bench.server.plain().get("lock:m").unwrap()[..value.len()], value);
        assert_eq!((lock.fence(), lock.token()), (fence, token));
        assert!(lock.check().unwrap());
        let owner = client.mutex("m", GUARD).unwrap().owner().unwrap().unwrap();
        assert_eq!(owner.token(), token.to_string());
        restarted.has_not_ended();
        assert_eq!(lock.unlock().unwrap(), Release::Released);
        assert_eq!(bench.server.plain().get("lock:m"), None);
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
        let restarted = bench.restart();
        assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended);
        restarted.has_not_ended();
    }
    let restarted = bench.restart();
    thread::scope(|scope| {
        let waiter = waits_for_the_end(scope, &bench, "m", &restarted);
        assert_eq!(lock.unlock().unwrap(), Release::Released);
        waiter.join().unwrap();
    });
    assert_eq!(fence, lock.fence());
}

/// The holder knows nothing of the first crash.
#[test]
fn two_crashes_in_a_row_are_as_one() {
    let bench = Bench::start();
    let mut lock = hold(&bench.client(), "m");
    bench.restart();
    let restarted = bench.restart();
    assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended);
    restarted.has_not_ended();
    thread::scope(|scope| {
        let waiter = waits_for_the_end(scope, &bench, "m", &restarted);
        assert_eq!(lock.unlock().unwrap(), Release::Released);
        waiter.join().unwrap();
    });
}

#[test]
fn a_holder_that_releases_what_the_server_has_forgotten_has_released_it() {
    let bench = Bench::start();
    let client = bench.client();
    let mut lock = hold(&client, "m");
    let restarted = bench.restart();
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    assert_eq!(bench.server.plain().get("lock:m"), None);
    assert!(client.mutex("m", GUARD).unwrap().try_lock().unwrap().is_none());
    restarted.has_not_ended();
    assert_eq!(lock.unlock().unwrap(), Release::NotHeld);
    thread::scope(|scope| {
        waits_for_the_end(scope, &bench, "m", &restarted).join().unwrap();
    });
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
        let restarted = bench.restart();
        assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended);
        restarted.has_not_ended();
        assert_eq!(lock.unlock().unwrap(), Release::Released);
        let mut next = waiter.join().unwrap();
        restarted.just_ended();
        assert!(next.fence() > lock.fence());
        assert_eq!(next.unlock().unwrap(), Release::Released);
    });
}
