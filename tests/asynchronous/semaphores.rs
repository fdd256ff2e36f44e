//! Permits that are awaited.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use futures::executor::block_on;
use memlock_core::{Answer, Client, ErrorKind, Extension, Release, Request, Semaphore};
use memlock_tests::server::Memcached;

use super::{LEASE, PATIENCE, comes_true};

fn request(permits: u32, priority: i64) -> Request {
    Request { permits, priority, ..Request::default() }
}

fn available(semaphore: &Semaphore) -> u32 {
    semaphore.status().unwrap().unwrap().available
}

#[test]
fn permits_are_awaited_extended_checked_and_released() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let semaphore = client.semaphore("s", 3, LEASE).unwrap();
    block_on(async {
        let two = semaphore.acquire_async(request(2, 0), None).await.unwrap().unwrap();
        assert_eq!((two.permits(), available(&semaphore)), (2, 1));
        let at_once = semaphore.acquire_async(request(2, 0), Some(Duration::ZERO)).await;
        let refused = at_once.unwrap().unwrap_err();
        assert_eq!(refused.answer(), Answer::Busy, "{refused}");
        assert!(refused.to_string().contains("1 of 3"), "{refused}");
        let soon = semaphore.acquire_async(request(2, 0), Some(Duration::from_millis(60))).await;
        assert_eq!(soon.unwrap().unwrap_err().answer(), Answer::TimedOut);
        let (two, extended) = two.extend_async(2 * LEASE).await.unwrap();
        assert_eq!(extended.unwrap(), Extension::Extended);
        let (two, checked) = two.check_async().await.unwrap();
        assert!(checked.unwrap() && two.remaining() > LEASE);
        let (_, released) = two.release_async().await.unwrap();
        assert_eq!(released.unwrap(), Release::Released);
        for wrong in [0, 4] {
            let error = semaphore.acquire_async(request(wrong, 0), None).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        }
    });
    assert_eq!(available(&semaphore), 3);
}

#[test]
fn a_waiter_of_higher_priority_comes_first() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let semaphore = client.semaphore("s", 1, LEASE).unwrap();
    let held = block_on(semaphore.acquire_async(request(1, 0), None)).unwrap().unwrap();
    let low = semaphore.acquire_async(request(1, 0), None);
    comes_true("it queues", || semaphore.waiters().unwrap().len() == 1);
    let high = semaphore.acquire_async(request(1, 5), None);
    comes_true("it queues", || semaphore.waiters().unwrap().len() == 2);
    held.let_go_async();
    let first = block_on(high).unwrap().unwrap();
    assert!(!low.is_done());
    first.let_go_async();
    block_on(low).unwrap().unwrap().let_go_async();
    comes_true("it is released", || available(&semaphore) == 1);
}

#[test]
fn permits_that_are_granted_to_nobody_are_released() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let semaphore = client.semaphore("s", 2, LEASE).unwrap();
    let _ = semaphore.set_up(LEASE).unwrap();
    for round in 0..300_u64 {
        let asked = semaphore.acquire_async(request(1 + (round % 2) as u32, 0), None);
        thread::sleep(Duration::from_micros(round * 7 % 400));
        drop(asked);
    }
    comes_true("they are released", || available(&semaphore) == 2);
    comes_true("nobody queues", || semaphore.waiters().unwrap().is_empty());
}

/// Of hundreds of tasks and some threads, no more than there are permits at once.
#[test]
fn tasks_and_threads_share_the_permits() {
    const PERMITS: u32 = 3;
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let semaphore = Arc::new(client.semaphore("s", PERMITS, LEASE).unwrap());
    let inside = Arc::new(AtomicUsize::new(0));
    let visit = |inside: &AtomicUsize| {
        let others = inside.fetch_add(1, Ordering::SeqCst);
        assert!(others < PERMITS as usize, "{others} others are inside");
        thread::sleep(Duration::from_micros(50));
        inside.fetch_sub(1, Ordering::SeqCst);
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let tasks: Vec<_> = (0..200)
        .map(|_| {
            let (semaphore, inside) = (Arc::clone(&semaphore), Arc::clone(&inside));
            runtime.spawn(async move {
                let permit = semaphore.acquire_async(request(1, 0), Some(PATIENCE)).await;
                let permit = permit.unwrap().unwrap();
                visit(&inside);
                let (_, released) = permit.release_async().await.unwrap();
                assert_eq!(released.unwrap(), Release::Released);
            })
        })
        .collect();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..30 {
                    let permit = semaphore.acquire_for(PATIENCE).unwrap().expect("in time");
                    visit(&inside);
                    drop(permit);
                }
            });
        }
    });
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
    comes_true("all are released", || available(&semaphore) == PERMITS);
}

/// A counter has no leases, so a permit that nobody takes has to be released.
#[test]
fn a_counter_is_awaited_by_priority_and_leaks_nothing() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let counter = client.counter("permits").unwrap();
    counter.set_up(1).unwrap();
    block_on(counter.acquire_async(0, None)).unwrap().unwrap().keep();
    let refused = block_on(counter.acquire_async(0, Some(Duration::ZERO))).unwrap().unwrap_err();
    assert_eq!(refused.answer(), Answer::Busy);

    let waiting = |priority| counter.acquire_async(priority, Some(PATIENCE));
    let queued = || {
        let queue = server.plain().get("permits%wait").unwrap_or_default();
        queue.iter().filter(|&&byte| byte == b'\n').count()
    };
    // On a busy machine a waiter that polls may find the permit for which another one is being woken.
    let mut turns = (0..5).map(|_| {
        let [low, high] = [1, 9].map(|priority| {
            let before = queued();
            let wait = waiting(priority);
            comes_true("it queues", || queued() > before);
            wait
        });
        counter.release().unwrap();
        comes_true("one of them has it", || high.is_done() || low.is_done());
        let is_by_priority = !low.is_done();
        let [first, last] = if is_by_priority { [high, low] } else { [low, high] };
        drop(block_on(first).unwrap().unwrap());
        block_on(last).unwrap().unwrap().keep();
        is_by_priority
    });
    assert!(turns.any(|is_by_priority| is_by_priority), "the lower priority always came first");
    counter.release().unwrap();

    // Whether it is cancelled before it is granted, or after.
    for turns in 0..200 {
        for wait in [
            counter.acquire_async(0, Some(PATIENCE)),
            counter.acquire_retrying_async(Some(PATIENCE)),
        ] {
            for _ in 0..turns * 20 {
                std::hint::spin_loop();
            }
            drop(wait);
        }
    }
    comes_true("it is released", || {
        client.finish_calls(PATIENCE) && counter.available().unwrap() == Some(1)
    });
}
