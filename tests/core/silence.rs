//! A server that hangs: dropping whatever is held there costs one timeout per server, and calls of
//! the user are tried.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::{Client, ErrorKind, Guard, Release, RenewOptions, Renewal};
use memlock_tests::launch::until;
use memlock_tests::proxy::{Fault, Proxy};
use memlock_tests::server::Memcached;

use crate::bench::{KINDS, Kind};

const LEASE: Duration = Duration::from_secs(300);
const IO_TIMEOUT: Duration = Duration::from_secs(5);
const HELD: usize = 50;

fn connect(addresses: &[String]) -> Client {
    let (addresses, seconds) = (addresses.join(","), IO_TIMEOUT.as_secs());
    Client::connect(&format!("memcached://{addresses}?io_timeout={seconds}s")).unwrap()
}

fn renewed(held: Box<dyn Guard>) -> Renewal {
    held.renew(RenewOptions::default()).unwrap()
}

/// Acquires something under the name of a number.
type Acquire = fn(&Client, usize) -> Box<dyn Any + Send>;

const WAYS: [(&str, Acquire); 5] = [
    ("locks", |client, number| Box::new(hold(Kind::Lock, client, number))),
    ("permits", |client, number| Box::new(hold(Kind::Permit, client, number))),
    ("renewed locks", |client, number| Box::new(renewed(hold(Kind::Lock, client, number)))),
    ("renewed permits", |client, number| Box::new(renewed(hold(Kind::Permit, client, number)))),
    ("permits of one semaphore", |client, _| {
        Box::new(client.semaphore("s", 100, LEASE).unwrap().acquire().unwrap())
    }),
];

fn hold(kind: Kind, client: &Client, number: usize) -> Box<dyn Guard> {
    kind.hold(client, &format!("m{number}"), LEASE)
}

/// One timeout for each would take as many.
#[test]
fn to_drop_much_on_a_server_that_hangs_takes_one_timeout_and_releases_the_rest() {
    thread::scope(|scope| {
        for (what, acquire) in WAYS {
            scope.spawn(move || {
                let (hangs, works) = (Memcached::start(), Memcached::start());
                let proxy = Proxy::start(hangs.address());
                let client = connect(&[proxy.address(), works.address()]);
                let held: Vec<_> = (0..HELD).map(|number| acquire(&client, number)).collect();
                let asked = Arc::new(AtomicUsize::new(0));
                let counted = Arc::clone(&asked);
                proxy.decide(move |_| {
                    counted.fetch_add(1, Ordering::SeqCst);
                    Some(Fault::DropRequest)
                });
                drop(held);
                let asked = asked.load(Ordering::SeqCst);
                assert!(asked < HELD / 5, "{what}: {asked} requests in vain");
                let alone = connect(&[works.address()]);
                for name in (0..HELD).map(|number| format!("m{number}")) {
                    assert!(KINDS.iter().all(|kind| kind.is_free(&alone, &name)), "{what}");
                }
                let status = alone.open_semaphore("s", LEASE).unwrap().status().unwrap();
                assert!(status.is_none_or(|status| status.holders.is_empty()), "{what}");
            });
        }
    });
}

#[test]
fn a_call_of_the_user_is_tried_after_a_silence_and_cleans_up_what_was_left() {
    thread::scope(|scope| {
        for kind in KINDS {
            scope.spawn(move || {
                let server = Memcached::start();
                let client = connect(&[server.address()]);
                let hold = |name: &str| kind.hold(&client, name, LEASE);
                let (dropped, mut released) = (hold("dropped"), hold("released"));
                let renewal = renewed(kind.hold(&client, "renewed", 4 * IO_TIMEOUT));
                server.pause();
                drop(dropped);
                server.resume();
                assert_eq!(released.release().unwrap(), Release::Released);
                until("what was left behind is taken off", || {
                    drop(hold("other"));
                    kind.is_free(&client, "dropped")
                });
                let mut last = renewal.remaining();
                until("what is still held is renewed", || {
                    let left = renewal.remaining();
                    std::mem::replace(&mut last, left) < left
                });
            });
        }
    });
}

#[test]
fn a_call_of_the_user_on_a_server_that_hangs_waits_for_it_each_time() {
    let server = Memcached::start();
    let client = connect(&[server.address()]);
    let mut lock = client.mutex("m", LEASE).unwrap().lock().unwrap();
    server.pause();
    for _ in 0..2 {
        let began = Instant::now();
        assert_eq!(lock.unlock().unwrap_err().kind(), ErrorKind::Unknown);
        assert!(began.elapsed() >= IO_TIMEOUT);
    }
    server.resume();
    assert_ne!(lock.unlock().unwrap(), Release::NotHeld);
    assert!(server.plain().get("lock:m").is_none());
}

#[test]
fn a_drop_releases_again_as_soon_as_the_server_has_answered_anything() {
    let server = Memcached::start();
    let client = connect(&[server.address()]);
    let [first, second] = ["first", "second"].map(|name| Kind::Lock.hold(&client, name, LEASE));
    server.pause();
    drop(first);
    server.resume();
    client.mutex("other", LEASE).unwrap().owner().unwrap();
    drop(second);
    assert!(server.plain().get("lock:second").is_none());
}

#[test]
fn a_drop_does_not_repeat_a_release_that_failed() {
    let server = Memcached::start();
    let client = connect(&[server.address()]);
    let mut held = KINDS.map(|kind| kind.hold(&client, "m", LEASE));
    let renewals = KINDS.map(|kind| renewed(kind.hold(&client, "k", LEASE)));
    server.kill();
    assert!(held.iter_mut().all(|held| held.release().is_err()));
    assert!(renewals.iter().all(|renewal| renewal.release().is_err()));
    server.restart();
    let mut plain = server.plain();
    let mut connections = || plain.stats()["total_connections"].clone();
    let before = connections();
    drop((held, renewals));
    assert_eq!(connections(), before);
}
