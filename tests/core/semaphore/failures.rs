//! Servers that are full, gone or come back empty; and many threads at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::wait::entries;
use memlock_core::{Client, ErrorKind, Permit, Release, Request, Wait, Waited};
use memlock_tests::assert_safe;
use memlock_tests::proxy::{Fault, Proxy};
use memlock_tests::server::Memcached;

use super::{Bench, LEASE, PATIENCE};

#[test]
fn a_full_server_takes_nobodys_permits() {
    let server = Memcached::with_args(&["-M", "-m", "2"]);
    let client = Client::connect(&server.url()).unwrap();
    let semaphore = client.semaphore("s", 3, LEASE).unwrap();
    let mut held = semaphore.acquire().unwrap();
    let mut plain = server.plain();
    let mut number = 0;
    for size in [400_000, 100_000, 20_000, 5000, 1000, 500, 200, 100, 50, 6] {
        let value = "x".repeat(size);
        let mut stored = true;
        while stored {
            number += 1;
            stored = plain
                .command(&format!("set f{number} 0 0 {size}\r\n{value}"))
                .starts_with("STORED");
        }
    }
    let other = Client::connect(&server.url()).unwrap().semaphore("s", 3, LEASE).unwrap();
    for _ in 0..3 {
        let error = other.try_acquire().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert!(error.to_string().contains("out of memory"), "{error}");
    }
    assert_eq!(other.status().unwrap().unwrap().holders[0].token, held.token());
    // The record without it is smaller, and may find room.
    match held.release() {
        Ok(released) => assert_eq!(released, Release::Released),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Protocol),
    }
}

#[test]
fn a_server_that_comes_back_empty_loses_everything_and_says_so() {
    let bench = Bench::new();
    let semaphore = bench.semaphore(2);
    let mut held = semaphore.acquire().unwrap();
    bench.server.kill();
    assert_eq!(semaphore.try_acquire().unwrap_err().kind(), ErrorKind::Unreachable);
    bench.server.restart();
    let next = semaphore.acquire().unwrap();
    assert_eq!(held.release().unwrap(), Release::Lost);
    assert_eq!(semaphore.status().unwrap().unwrap().available, 1);
    drop(next);
}

#[test]
fn threads_and_clients_are_never_more_inside_than_there_are_permits() {
    const PERMITS: u32 = 4;
    let bench = Bench::new();
    let shared = bench.semaphore(PERMITS);
    let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        for number in 0..12 {
            let semaphore = if number % 2 == 0 { shared.clone() } else { bench.semaphore(PERMITS) };
            let (inside, most) = (&inside, &most);
            scope.spawn(move || {
                for turn in 0..30 {
                    let request =
                        Request { permits: 1 + (number + turn) % 3, ..Request::default() };
                    let waited = semaphore.acquire_with(request, &Wait::at_most(PATIENCE)).unwrap();
                    let Waited::Done(mut permit) = waited else { panic!("{waited:?}") };
                    let now =
                        inside.fetch_add(permit.permits(), Ordering::SeqCst) + permit.permits();
                    most.fetch_max(now, Ordering::SeqCst);
                    assert_safe!(now <= PERMITS, "{now} inside");
                    thread::sleep(Duration::from_micros(500));
                    inside.fetch_sub(permit.permits(), Ordering::SeqCst);
                    assert_eq!(permit.release().unwrap(), Release::Released);
                }
            });
        }
    });
    assert_eq!(shared.status().unwrap().unwrap().available, PERMITS);
    assert!(most.into_inner() > 1, "nobody ever met another");
    let queue = bench.server.plain().get("semaphore:s%wait").unwrap_or_default();
    assert!(queue.is_empty(), "{}", String::from_utf8_lossy(&queue));
}

#[test]
fn what_was_left_behind_on_a_silent_server_does_not_hold_up_a_wait_again_and_again() {
    const TIMEOUT: Duration = Duration::from_secs(1);
    const MANY: u32 = 40;
    let bench = Bench::new();
    let url = format!("{}?io_timeout={}ms", bench.server.url(), TIMEOUT.as_millis());
    let semaphore = Client::connect(&url).unwrap().semaphore("s", MANY, LEASE).unwrap();
    let permits: Vec<Permit> = (0..MANY).map(|_| semaphore.acquire().unwrap()).collect();
    permits.into_iter().for_each(Permit::abandon);
    bench.server.pause();
    let began = Instant::now();
    let waited = semaphore.acquire_for(TIMEOUT);
    let took = began.elapsed();
    bench.server.resume();
    assert!(!matches!(waited, Ok(Some(_))) && took < TIMEOUT * MANY / 2, "{took:?}");
}

/// It may have been for more permits, or of a higher priority: then others would wait behind an
/// entry without a waiter.
#[test]
fn a_wait_does_not_stand_where_an_earlier_one_of_its_client_could_not_leave_the_queue() {
    let bench = Bench::new();
    let queue = || {
        let queue = bench.server.plain().get("semaphore:s%wait").unwrap_or_default();
        entries::waiters(&queue).map(|entry| (entry.priority, entry.permits)).collect::<Vec<_>>()
    };
    let _held = bench.semaphore(5).acquire().unwrap();
    let url = format!("{}?io_timeout=1s", bench.server.url());
    let client = Client::connect(&url).unwrap();
    let semaphore = client.semaphore("s", 5, LEASE).unwrap();
    let request = |priority| Request { permits: 5, priority, ..Request::default() };
    thread::scope(|scope| {
        let waits = |priority| {
            let semaphore = &semaphore;
            scope.spawn(move || {
                semaphore.acquire_with(request(priority), &Wait::at_most(PATIENCE)).map(drop)
            })
        };
        let first = waits(7);
        until(|| queue() == [(7, 5)]);
        bench.server.pause();
        client.cancel_waits();
        let _ = first.join().unwrap();
        bench.server.resume();
        assert_eq!(queue(), [(7, 5)], "it could not leave the queue");
        let _second = waits(-3);
        until(|| queue() == [(-3, 5)]);
        client.cancel_waits();
    });
    assert_eq!(queue(), []);
}

/// The first attempt to take the line off fails as that of the earlier wait did.
#[test]
fn a_wait_through_an_outage_takes_off_what_an_earlier_one_left_behind() {
    let bench = Bench::new();
    let queue = || {
        let queue = bench.server.plain().get("semaphore:s%wait").unwrap_or_default();
        entries::waiters(&queue).map(|entry| (entry.priority, entry.permits)).collect::<Vec<_>>()
    };
    let _held: Vec<Permit> = (0..5).map(|_| bench.semaphore(5).acquire().unwrap()).collect();
    let proxy = Proxy::start(bench.server.address());
    let client = Client::connect(&format!("{}?io_timeout=600ms", proxy.url())).unwrap();
    let semaphore = client.semaphore("s", 5, LEASE).unwrap();
    let lost = Arc::new(AtomicU32::new(0));
    thread::scope(|scope| {
        let waits = |priority, permits| {
            let request = Request { permits, priority, ..Request::default() };
            let semaphore = &semaphore;
            scope.spawn(move || semaphore.acquire_with(request, &Wait::at_most(PATIENCE)).map(drop))
        };
        let first = waits(7, 5);
        until(|| queue() == [(7, 5)]);
        let counts = Arc::clone(&lost);
        proxy.decide(move |burst| {
            let is_of_the_queue = burst.windows(5).any(|part| part == b"%wait");
            is_of_the_queue.then(|| {
                counts.fetch_add(1, Ordering::SeqCst);
                Fault::DropRequest
            })
        });
        client.cancel_waits();
        let _ = first.join().unwrap();
        let before = lost.load(Ordering::SeqCst);
        let _second = waits(-3, 1);
        // By then it has tried to take that line off, and to join.
        until(|| lost.load(Ordering::SeqCst) > before + 1);
        proxy.clear_rules();
        until(|| queue() == [(-3, 1)]);
        client.cancel_waits();
    });
    assert_eq!(queue(), []);
}

#[track_caller]
fn until(done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "it did not come about");
        thread::sleep(Duration::from_millis(1));
    }
}
