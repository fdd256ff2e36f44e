//! The guard's end on a real clock: nothing is granted before it, and waiters get their locks after
//! it.

use std::thread;
use std::time::{Duration, Instant};

use memlock_core::{Client, Request, Wait, Waited};
use memlock_tests::launch::poll_until;
use memlock_tests::server::Memcached;
use memlock_tests::url;

use super::PATIENCE;

const SHORT: Duration = Duration::from_secs(2);

fn client(server: &Memcached) -> Client {
    Client::connect(&url::with(&server.url(), "guard=2s")).unwrap()
}

#[test]
fn waiters_get_their_locks_after_the_guard_and_not_before() {
    let began = Instant::now();
    let server = Memcached::start();
    thread::scope(|scope| {
        for name in ["m", "m", "n"] {
            let client = client(&server);
            scope.spawn(move || {
                let lock = client.mutex(name, SHORT).unwrap().lock_for(PATIENCE).unwrap();
                assert!(began.elapsed() >= SHORT, "{name} was granted during the recovery");
                drop(lock.expect("it is granted after the guard"));
            });
        }
    });
}

/// A try at the very moment at which the server's recovery ends.
#[test]
fn a_try_never_says_that_free_permits_are_held() {
    let began = Instant::now();
    let server = Memcached::start();
    let semaphore = client(&server).semaphore("s", 5, SHORT).unwrap();
    let _ = semaphore.set_up(Duration::from_secs(100)).unwrap();
    let granted = poll_until(PATIENCE, || {
        match semaphore.acquire_with(Request::default(), &Wait::NEVER).unwrap() {
            Waited::Recovering => None,
            other => Some(matches!(other, Waited::Done(_))),
        }
    });
    assert_eq!(granted, Some(true), "the first other answer is a grant");
    assert!(began.elapsed() >= SHORT);
}
