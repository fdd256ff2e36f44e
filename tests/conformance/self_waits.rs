//! A wait without a limit for what is bound to the waiting thread.

use std::thread;

use memlock_core::{Bound, Client, ErrorKind, Request, Wait};

use crate::bench::{Bench, LEASE, waits};

behaviours! {
    in Rust:
    a_wait_for_ones_own_lock_is_refused
    a_wait_for_ones_own_permits_is_refused
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
        drop(held);
        waiting.join().unwrap();
    });
    // It is bound, but not held.
    drop(mutex.lock().unwrap());
    drop(bound);
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
