//! A wait without a limit for what its caller holds itself.

use memlock_core::{Client, ErrorKind, Request, Wait};

use crate::bench::{Bench, LEASE};

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
    let tokens = [held.token()];
    for client in [&one, &other] {
        let mutex = client.mutex("m", LEASE).unwrap();
        let error = mutex.lock_with(&Wait::FOREVER.while_holding(&tokens)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
        assert!(error.to_string().contains(&mutex.server()), "{error}");
        let once = mutex.lock_with(&Wait::NEVER.while_holding(&tokens)).unwrap();
        assert!(once.done().is_none(), "a try is answered as ever");
    }
    drop(held);
    let waited = other.mutex("m", LEASE).unwrap().lock_with(&Wait::FOREVER.while_holding(&tokens));
    assert!(waited.unwrap().done().is_some());
}

fn a_wait_for_ones_own_permits_is_refused(bench: &Bench) {
    let client = client(bench);
    let semaphore = client.semaphore("s", 3, LEASE).unwrap();
    let acquire = |permits, wait: &Wait<'_>| {
        semaphore.acquire_with(Request { permits, ..Request::default() }, wait)
    };
    let ours = acquire(2, &Wait::NEVER).unwrap().done().unwrap();
    let tokens = [ours.token()];
    let wait = Wait::FOREVER.while_holding(&tokens);
    assert_eq!(acquire(2, &wait).unwrap_err().kind(), ErrorKind::Deadlock);
    assert!(acquire(1, &wait).unwrap().done().is_some(), "one is left");
}
