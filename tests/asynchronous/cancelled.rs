//! Calls that nobody waits for any more.

use std::thread;
use std::time::Duration;

use futures::executor::block_on;
use memlock_core::{Answer, Client};
use memlock_tests::server::Memcached;

use super::{LEASE, comes_true, held, is_held, queued, workers};

#[test]
fn a_dropped_wait_leaves_the_queue_and_its_lock_goes_to_the_next() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let mutex = client.mutex("m", LEASE).unwrap();
    let lock = block_on(held(&mutex));
    let first = mutex.lock_async(None);
    comes_true("it queues", || queued(&server, "m") == 1);
    let second = mutex.lock_async(None);
    drop(first);
    lock.let_go_async();
    let next = block_on(second).unwrap().unwrap();
    next.let_go_async();
    comes_true("it is released", || !is_held(&server, "m"));
    comes_true("nobody is left in the queue", || queued(&server, "m") == 0);
}

#[test]
fn a_cancelled_wait_is_interrupted() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let mutex = client.mutex("m", LEASE).unwrap();
    let lock = block_on(held(&mutex));
    let waits = mutex.lock_async(None);
    comes_true("it queues", || queued(&server, "m") == 1);
    waits.cancel();
    assert_eq!(block_on(waits).unwrap().unwrap_err().answer(), Answer::Interrupted);
    comes_true("nobody is left in the queue", || queued(&server, "m") == 0);
    let waits = mutex.lock_async(None);
    comes_true("it queues", || queued(&server, "m") == 1);
    client.cancel_waits();
    assert_eq!(block_on(waits).unwrap().unwrap_err().answer(), Answer::Interrupted);
    drop(lock);
}

/// At any moment: before it is sent, while it is sent, and when it is granted.
#[test]
fn what_is_granted_to_nobody_is_released() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let mutex = client.mutex("m", LEASE).unwrap();
    for round in 0..300_u64 {
        let asked = mutex.lock_async(None);
        thread::sleep(Duration::from_micros(round * 7 % 400));
        drop(asked);
    }
    comes_true("it is released", || !is_held(&server, "m"));
    // It was granted, and nobody took it.
    let granted = mutex.lock_async(None);
    comes_true("it is granted", || granted.is_done());
    assert!(is_held(&server, "m"));
    drop(granted);
    comes_true("it is released", || !is_held(&server, "m"));
    comes_true("nobody is left in the queue", || queued(&server, "m") == 0);
}

#[test]
fn the_thread_ends_after_the_last_call() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let mutex = client.mutex("m", LEASE).unwrap();
    let before = workers();
    block_on(held(&mutex)).let_go_async();
    comes_true("its thread ends", || workers() <= before);
    drop(block_on(held(&mutex)));
}
