//! The plain counter beside clients that know nothing of memlock: the rest is in
//! `tests/conformance/counter.rs`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use memlock_core::{Client, Counter, ErrorKind, Wait, Waited};
use memlock_tests::assert_safe;
use memlock_tests::client::connect;
use memlock_tests::doors::WaitingThread;
use memlock_tests::launch::until;
use memlock_tests::memcached_text::MemcachedText;
use memlock_tests::proxy::{Fault, Match, Proxy};
use memlock_tests::server::Memcached;
use memlock_tests::url;

/// For what must happen, however slow the machine.
fn patience() -> Wait<'static> {
    Wait::at_most(Duration::from_secs(60))
}

fn counter(server: &Memcached) -> Counter {
    Client::connect(&server.url()).unwrap().counter("app:permits").unwrap()
}

/// Takes one as a program without memlock does.
fn plain_take(plain: &mut MemcachedText) -> bool {
    let (value, flags, cas) = plain.gets("app:permits").unwrap();
    let free: u64 = String::from_utf8(value).unwrap().trim_end().parse().unwrap();
    free > 0 && plain.cas("app:permits", &(free - 1).to_string(), flags, cas)
}

fn plain_give(plain: &mut MemcachedText) {
    until("it is given back", || {
        let (value, flags, cas) = plain.gets("app:permits").unwrap();
        let free: u64 = String::from_utf8(value).unwrap().trim_end().parse().unwrap();
        plain.cas("app:permits", &(free + 1).to_string(), flags, cas)
    });
}

#[test]
fn parked_waiters_and_plain_clients_share_one_item() {
    const PERMITS: u32 = 3;
    let server = Memcached::start();
    assert!(counter(&server).set_up(PERMITS.into()).unwrap());
    let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
    let work = || {
        let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
        most.fetch_max(now, Ordering::SeqCst);
        assert_safe!(now <= PERMITS, "{now} inside");
        // No thread goes on before all permits were taken once.
        until("all meet", || most.load(Ordering::SeqCst) == PERMITS);
        thread::sleep(Duration::from_millis(1));
        inside.fetch_sub(1, Ordering::SeqCst);
    };
    thread::scope(|scope| {
        for number in 0..8 {
            let (server, work) = (&server, &work);
            scope.spawn(move || {
                let (counter, mut plain) = (counter(server), server.plain());
                for _ in 0..15 {
                    if number % 2 == 0 {
                        let taken = counter.acquire_parked(number, &patience()).unwrap();
                        assert_eq!(taken, Waited::Done(()));
                        work();
                        counter.release().unwrap();
                    } else {
                        until("one is free", || plain_take(&mut plain));
                        work();
                        plain_give(&mut plain);
                    }
                }
            });
        }
    });
    assert_eq!(counter(&server).available().unwrap(), Some(PERMITS.into()));
    assert!(server.plain().get("app:permits%wait").unwrap_or_default().is_empty());
}

#[test]
fn a_parked_waiter_finds_what_a_plain_client_gives_back() {
    let server = Memcached::start();
    let (parked, mut plain) = (counter(&server), server.plain());
    parked.set_up(0).unwrap();
    let waiter = WaitingThread::default();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            waiter.is_this_one();
            parked.acquire_parked(0, &patience()).unwrap()
        });
        until("it is parked", || waiter.is_asleep());
        plain_give(&mut plain);
        assert_eq!(waiting.join().unwrap(), Waited::Done(()));
    });
}

#[test]
fn flags_and_expiry_are_the_items_own() {
    let server = Memcached::start();
    let (counter, mut plain) = (counter(&server), server.plain());
    assert_eq!(plain.command("set app:permits 77 1000 2\r\n10"), "STORED");
    assert!(counter.try_acquire().unwrap());
    let (value, flags, _) = plain.gets("app:permits").unwrap();
    assert_eq!((value, flags), (b"9".to_vec(), 77));
    assert_eq!(counter.release().unwrap(), 10);
    assert_eq!(plain.gets("app:permits").unwrap().1, 77);
    let left = plain.command("mg app:permits t");
    let left: u64 = left.strip_prefix("HD t").unwrap().parse().unwrap();
    assert!((800..=1001).contains(&left), "{left}");
    // A number that became shorter by `decr`.
    assert_eq!(plain.command("decr app:permits 1"), "9");
    assert!(counter.try_acquire().unwrap());
    assert_eq!(plain.get("app:permits").unwrap(), b"8");
    // What is no number.
    plain.set("app:permits", "three", 0);
    let error = counter.try_acquire().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol);
    assert!(error.to_string().contains("not a decimal number"), "{error}");
}

#[test]
fn a_counter_is_named_as_it_was_given() {
    let server = Memcached::start();
    server.plain().add("app-lock:x%20y", "no number", 60);
    let client = Client::connect(&url::with(&server.url(), "prefix=app-")).unwrap();
    for name in ["lock:x%20y", "semaphore:jobs", "%k"] {
        let counter = client.counter(name).unwrap();
        let error = counter.try_acquire().unwrap_err();
        let subject = format!("counter {name:?} on memcached at {}", server.address());
        assert!(error.to_string().contains(&subject), "{error}");
        assert_eq!(error.subject().map(ToString::to_string), Some(subject));
    }
    let error = client.counter("lock:x%20y").unwrap().available().unwrap_err();
    assert!(error.to_string().contains("The item app-lock:x%20y is not"), "{error}");
}

#[test]
fn a_lost_reply_is_not_guessed_about() {
    let server = Memcached::start();
    let proxy = Proxy::start(server.address());
    let counter = connect(&proxy.url()).counter("app:permits").unwrap();
    counter.set_up(5).unwrap();
    for way in 0..3 {
        proxy.inject(Match::Putting, Fault::CutAfterRequest);
        let error = match way {
            0 => counter.try_acquire().unwrap_err(),
            1 => counter.acquire_retrying(&patience()).unwrap_err(),
            _ => counter.acquire_parked(0, &patience()).unwrap_err(),
        };
        assert_eq!(error.kind(), ErrorKind::Unknown);
        assert!(error.to_string().contains("a permit may be gone"), "{error}");
    }
    assert_eq!(counter.available().unwrap(), Some(2));
    proxy.inject(Match::Counting, Fault::CutAfterRequest);
    assert_eq!(counter.release().unwrap_err().kind(), ErrorKind::Unknown);
    assert_eq!(counter.available().unwrap(), Some(3));
}
