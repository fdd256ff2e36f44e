//! Thousands of tasks, and threads that block beside them.

use std::thread;
use std::time::Duration;

use futures::executor::block_on;
use futures::future::join_all;
use memlock_core::{Client, Pending, Release};
use memlock_tests::launch::poll_until;
use memlock_tests::proxy::Proxy;
use memlock_tests::server::Memcached;

use super::{LEASE, PATIENCE, comes_true, held, is_held, queued};

const MANY: usize = 1000;

#[test]
fn a_thousand_tasks_wait_for_one_lock_by_one_thread() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let mutex = client.mutex("m", LEASE).unwrap();
    let first = block_on(held(&mutex));
    let waits: Vec<Pending<_>> = (0..MANY).map(|_| mutex.lock_async(None)).collect();
    assert!(poll_until(PATIENCE, || (queued(&server, "m") == 1).then_some(())).is_some());
    drop(first);
    let mut fence = 0;
    for wait in waits {
        let lock = block_on(wait).unwrap().unwrap();
        assert!(lock.fence() > fence, "in their order");
        fence = lock.fence();
        let (_, released) = block_on(lock.release_async()).unwrap();
        assert_eq!(released.unwrap(), Release::Released);
    }
    assert_eq!(queued(&server, "m"), 0);
}

#[test]
fn a_thousand_tasks_wait_for_a_thousand_locks() {
    let server = Memcached::start();
    let holder = Client::connect(&server.url()).unwrap();
    let client = Client::connect(&server.url()).unwrap();
    let locks: Vec<_> = (0..MANY)
        .map(|number| holder.mutex(format!("{number}"), LEASE).unwrap().lock().unwrap())
        .collect();
    let wait = |number| client.mutex(format!("{number}"), LEASE).unwrap().lock_async(None);
    let waits: Vec<Pending<_>> = (0..MANY).map(wait).collect();
    let last = format!("{}", MANY - 1);
    assert!(poll_until(PATIENCE, || (queued(&server, &last) == 1).then_some(())).is_some());
    locks.into_iter().for_each(drop);
    let granted = block_on(join_all(waits));
    assert!(granted.iter().all(|lock| matches!(lock, Ok(Ok(_)))));
}

/// Nothing tells them that their locks are free: a plain client removes those.
#[test]
fn what_many_tasks_look_at_is_read_together() {
    const LOCKS: u64 = 200;
    let server = Memcached::start();
    let proxy = Proxy::start(server.address());
    let holder = Client::connect(&server.url()).unwrap();
    let client = Client::connect(&proxy.url()).unwrap();
    let names: Vec<String> = (0..LOCKS).map(|number| format!("{number}")).collect();
    let held: Vec<_> =
        names.iter().map(|name| holder.mutex(name, LEASE).unwrap().lock().unwrap()).collect();
    let wait = |name| client.mutex(name, PATIENCE).unwrap().lock_async(None);
    let waits: Vec<Pending<_>> = names.iter().map(wait).collect();
    comes_true("all are in their queues", || names.iter().all(|name| queued(&server, name) == 1));
    // Not young waits, which look more often, each at its own time; nor after a slow reply.
    comes_true("they are read together", || {
        let (sent, trips) = (server.commands(), proxy.round_trips());
        // They look at the lock and its queue each time.
        comes_true("they look", || server.commands() - sent >= LOCKS * 6);
        let (looks, trips) = ((server.commands() - sent) / 2, proxy.round_trips() - trips);
        trips as u64 * 4 < looks
    });
    for name in &names {
        assert!(server.plain().delete(&format!("lock:{name}")));
    }
    let granted = block_on(join_all(waits));
    assert!(granted.iter().all(|lock| matches!(lock, Ok(Ok(_)))));
    assert!(names.iter().all(|name| is_held(&server, name)));
    drop(held);
}

#[test]
fn a_program_may_wait_for_its_calls_before_it_ends() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    assert!(client.finish_calls(Duration::ZERO));
    let names: Vec<_> = (0..100).map(|number| format!("{number}")).collect();
    for name in &names {
        client.mutex(name, LEASE).unwrap().lock().unwrap().let_go_async();
    }
    assert!(client.finish_calls(PATIENCE));
    assert!(names.iter().all(|name| !is_held(&server, name)));

    let mutex = client.mutex("m", LEASE).unwrap();
    let lock = mutex.lock().unwrap();
    let wait = mutex.lock_async(None);
    assert!(!client.finish_calls(Duration::from_millis(20)), "a wait goes on");
    wait.cancel();
    assert!(client.finish_calls(PATIENCE));
    drop(lock);
    assert_eq!(queued(&server, "m"), 0);
}

/// Both in one process, and both in the server's queue.
#[test]
fn tasks_and_threads_wait_for_the_same_lock() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let mutex = client.mutex("m", LEASE).unwrap();
    thread::scope(|scope| {
        for place in 0..6 {
            let mutex = &mutex;
            scope.spawn(move || {
                for _ in 0..40 {
                    let lock = match place % 2 {
                        0 => block_on(held(mutex)),
                        _ => mutex.lock_for(PATIENCE).unwrap().expect("it was never granted"),
                    };
                    thread::sleep(Duration::from_micros(100));
                    match place % 3 {
                        0 => drop(lock),
                        _ => lock.let_go_async(),
                    }
                }
            });
        }
    });
    let nobody = || (queued(&server, "m") == 0).then_some(());
    assert!(poll_until(PATIENCE, nobody).is_some());
}
