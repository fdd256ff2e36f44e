//! A server that hangs: dropping whatever is held there costs one timeout per server, and calls of
//! the user are tried.

use std::thread;
use std::time::{Duration, Instant};

use memlock_core::{Client, ErrorKind, Release, RenewOptions};
use memlock_tests::server::Memcached;

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);
const IO_TIMEOUT: Duration = Duration::from_millis(300);
/// One timeout each would take 15 seconds.
const HELD: usize = 50;
/// Ten timeouts: for a machine that is busy with other things.
const SOON: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(20);

fn connect(servers: &[&Memcached]) -> Client {
    let hosts: Vec<String> = servers.iter().map(|server| server.address()).collect();
    Client::connect(&format!(
        "memcached://{}?io_timeout={}ms",
        hosts.join(","),
        IO_TIMEOUT.as_millis()
    ))
    .unwrap()
}

fn eventually(what: &str, mut true_by_now: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !true_by_now() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Acquires something under the name of a number, to be dropped by the caller.
type Acquire = fn(&Client, usize) -> Box<dyn Send>;

const KINDS: [(&str, Acquire); 5] = [
    ("locks", |client, number| {
        Box::new(client.mutex(format!("m{number}"), LEASE).unwrap().lock().unwrap())
    }),
    ("permits of one semaphore", |client, _| {
        Box::new(client.semaphore("s", 100, LEASE).unwrap().acquire().unwrap())
    }),
    ("permits of many semaphores", |client, number| {
        Box::new(client.semaphore(format!("s{number}"), 1, LEASE).unwrap().acquire().unwrap())
    }),
    ("renewed locks", |client, number| {
        let lock = client.mutex(format!("k{number}"), LEASE).unwrap().lock().unwrap();
        Box::new(lock.renew(RenewOptions::default()).unwrap())
    }),
    ("renewed permits", |client, number| {
        let permit = client.semaphore(format!("k{number}"), 1, LEASE).unwrap().acquire().unwrap();
        Box::new(permit.renew(RenewOptions::default()).unwrap())
    }),
];

fn drop_all(what: &str, held: Vec<Box<dyn Send>>) {
    let began = Instant::now();
    drop(held);
    assert!(began.elapsed() < SOON, "{what}: {:?}", began.elapsed());
}

#[test]
fn to_drop_many_locks_of_a_server_that_hangs_takes_one_timeout() {
    for (what, acquire) in KINDS {
        let server = Memcached::start();
        let client = connect(&[&server]);
        let held: Vec<_> = (0..HELD).map(|number| acquire(&client, number)).collect();
        server.pause();
        drop_all(what, held);
    }
}

#[test]
fn what_is_held_on_another_server_is_released_meanwhile() {
    for (what, acquire) in KINDS {
        let (hangs, works) = (Memcached::start(), Memcached::start());
        let client = connect(&[&hangs, &works]);
        let held: Vec<_> = (0..HELD).map(|number| acquire(&client, number)).collect();
        hangs.pause();
        drop_all(what, held);
        let alone = connect(&[&works]);
        for number in 0..HELD {
            assert!(works.plain().get(&format!("lock:m{number}")).is_none(), "{what}");
            assert!(works.plain().get(&format!("lock:k{number}")).is_none(), "{what}");
            for name in [format!("s{number}"), format!("k{number}"), "s".to_owned()] {
                let status = alone.open_semaphore(&name, LEASE).unwrap().status().unwrap();
                assert!(status.is_none_or(|status| status.holders.is_empty()), "{what}: {name}");
            }
        }
    }
}

#[test]
fn a_call_of_the_user_is_tried_after_a_silence_and_cleans_up_what_was_left() {
    let server = Memcached::start();
    let client = connect(&[&server]);
    let lock = |name: &str| client.mutex(name, LEASE).unwrap().lock().unwrap();
    let (dropped, mut unlocked) = (lock("dropped"), lock("unlocked"));
    let renewed = client
        .mutex("renewed", 2 * SECOND)
        .unwrap()
        .lock()
        .unwrap()
        .renew(RenewOptions::default())
        .unwrap();
    server.pause();
    drop(dropped);
    server.resume();
    assert_eq!(unlocked.unlock().unwrap(), Release::Released);
    eventually("what was left behind is taken off", || {
        drop(lock("other"));
        server.plain().get("lock:dropped").is_none()
    });
    let end = Instant::now() + 3 * SECOND;
    while Instant::now() < end {
        assert!(renewed.is_held(), "what is still held is renewed");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_call_of_the_user_on_a_server_that_hangs_waits_for_it_each_time() {
    let server = Memcached::start();
    let client = connect(&[&server]);
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
    let client = connect(&[&server]);
    let mutex = |name: &str| client.mutex(name, LEASE).unwrap();
    let held = ["first", "second"].map(|name| mutex(name).lock().unwrap());
    let [first, second] = held;
    server.pause();
    drop(first);
    server.resume();
    mutex("other").owner().unwrap();
    drop(second);
    assert!(server.plain().get("lock:second").is_none());
}

#[test]
fn a_drop_does_not_repeat_a_release_that_failed() {
    let server = Memcached::start();
    let client = connect(&[&server]);
    let mut lock = client.mutex("m", LEASE).unwrap().lock().unwrap();
    let mut permit = client.semaphore("s", 1, LEASE).unwrap().acquire().unwrap();
    let renewed =
        client.mutex("k", LEASE).unwrap().lock().unwrap().renew(RenewOptions::default()).unwrap();
    server.kill();
    lock.unlock().unwrap_err();
    permit.release().unwrap_err();
    renewed.release().unwrap_err();
    server.restart();
    let mut plain = server.plain();
    let connections = |plain: &mut memlock_tests::server::MemcachedText| {
        plain.stats()["total_connections"].clone()
    };
    let before = connections(&mut plain);
    drop((lock, permit, renewed));
    assert_eq!(connections(&mut plain), before);
}
