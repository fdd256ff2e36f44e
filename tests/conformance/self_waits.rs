//! A wait without a limit for what is bound to the waiting thread.

use std::thread;
use std::time::Duration;

use memlock_core::{Bound, Client, ErrorKind, Request, Wait, Waited};
use memlock_tests::launch::until;

use crate::bench::{Bench, LEASE, waits};

behaviours! {
    in Rust:
    a_wait_for_ones_own_lock_is_refused
    a_wait_for_ones_own_lock_whose_lease_is_over_is_not
    a_wait_for_ones_own_lock_that_can_be_cancelled_is_not
    a_wait_for_ones_own_permits_is_refused
    a_wait_for_ones_own_permits_whose_lease_is_over_is_not
}

fn client(bench: &Bench) -> Client {
    Client::connect(&bench.place.url).unwrap()
}

fn a_wait_for_ones_own_lock_is_refused(bench: &Bench) {
    let (one, other) = (client(bench), client(bench));
    let held = one.mutex("m", LEASE).unwrap().lock().unwrap();
    let bound = Bound::to_this_thread(held.token());
    for client in [&one, &other] {
        let mutex = client.mutex("m", LEASE).unwrap();
        let error = mutex.lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
        assert!(error.to_string().contains(&mutex.server()), "{error}");
        assert!(mutex.try_lock().unwrap().is_none(), "a try is answered as ever");
    }
    let mutex = other.mutex("m", LEASE).unwrap();
    thread::scope(|scope| {
        let waiting = waits(scope, || drop(mutex.lock().unwrap()));
        let error = mutex.lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Deadlock, "behind another thread, too");
        drop(held);
        waiting.join().unwrap();
    });
    // It is bound, but not held.
    drop(mutex.lock().unwrap());
    drop(bound);
}

/// The server may keep it for a little longer, and then gives it to another.
fn a_wait_for_ones_own_lock_whose_lease_is_over_is_not(bench: &Bench) {
    let mutex = client(bench).mutex("m", bench.store.shortest_lease).unwrap();
    let held = mutex.lock().unwrap();
    let _bound = Bound::to_this_thread(held.token());
    let longer = bench.guarantees().covering(Duration::ZERO);
    until("its lease is over", || {
        mutex.owner().unwrap().is_none_or(|owner| owner.remaining.unwrap() <= longer)
    });
    drop(mutex.lock().unwrap());
}

fn a_wait_for_ones_own_lock_that_can_be_cancelled_is_not(bench: &Bench) {
    let client = client(bench);
    let (mutex, cancel) = (client.mutex("m", LEASE).unwrap(), client.cancel_handle());
    thread::scope(|scope| {
        let waiting = waits(scope, || {
            let held = mutex.lock().unwrap();
            let _bound = Bound::to_this_thread(held.token());
            mutex.lock_with(&Wait::FOREVER.unless_cancelled(&cancel)).unwrap()
        });
        cancel.cancel();
        assert!(matches!(waiting.join().unwrap(), Waited::Interrupted));
    });
}

fn a_wait_for_ones_own_permits_whose_lease_is_over_is_not(bench: &Bench) {
    let semaphore = client(bench).semaphore("s", 1, bench.store.shortest_lease).unwrap();
    let held = semaphore.acquire().unwrap();
    let _bound = Bound::to_this_thread(held.token());
    let longer = Duration::from_secs(bench.guarantees().covering_seconds(Duration::ZERO));
    until("their lease is over", || {
        let status = semaphore.status().unwrap().unwrap();
        status.holders.iter().all(|holder| holder.remaining <= longer)
    });
    drop(semaphore.acquire().unwrap());
}

fn a_wait_for_ones_own_permits_is_refused(bench: &Bench) {
    let client = client(bench);
    let semaphore = client.semaphore("s", 3, LEASE).unwrap();
    let acquire = |permits, wait: &Wait<'_>| {
        semaphore.acquire_with(Request { permits, ..Request::default() }, wait)
    };
    let ours = acquire(2, &Wait::NEVER).unwrap().done().unwrap();
    let _bound = Bound::to_this_thread(ours.token());
    assert_eq!(acquire(2, &Wait::FOREVER).unwrap_err().kind(), ErrorKind::Deadlock);
    assert!(acquire(1, &Wait::FOREVER).unwrap().done().is_some(), "one is left");
}
