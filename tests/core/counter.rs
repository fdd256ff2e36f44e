//! The plain counter: its ways to acquire, against each other and against clients that know nothing
//! of memlock.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::{Client, Counter, ErrorKind, Wait, Waited};
use memlock_tests::assert_safe;
use memlock_tests::launch::until;
use memlock_tests::memcached_text::MemcachedText;
use memlock_tests::proxy::{Fault, Match, Proxy};
use memlock_tests::server::Memcached;

/// For what must happen, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(20);

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
    while {
        let (value, flags, cas) = plain.gets("app:permits").unwrap();
        let free: u64 = String::from_utf8(value).unwrap().trim_end().parse().unwrap();
        !plain.cas("app:permits", &(free + 1).to_string(), flags, cas)
    } {}
}

#[test]
fn all_ways_and_a_plain_client_share_one_item() {
    const PERMITS: u32 = 3;
    const TURNS: usize = 40;
    let server = Memcached::start();
    assert!(counter(&server).set_up(PERMITS.into()).unwrap());
    let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
    let work = || {
        let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
        most.fetch_max(now, Ordering::SeqCst);
        assert_safe!(now <= PERMITS, "{now} inside");
        // No process goes on before all permits were taken once.
        let began = Instant::now();
        while most.load(Ordering::SeqCst) < PERMITS && began.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(1));
        inside.fetch_sub(1, Ordering::SeqCst);
    };
    let pause = || thread::sleep(Duration::from_micros(300));
    thread::scope(|scope| {
        for number in 0..3 {
            let (server, work) = (&server, &work);
            scope.spawn(move || {
                let counter = counter(server);
                for _ in 0..TURNS {
                    while !counter.try_acquire().unwrap() {
                        pause();
                    }
                    work();
                    counter.release().unwrap();
                }
            });
            scope.spawn(move || {
                let counter = counter(server);
                for _ in 0..TURNS {
                    assert_eq!(
                        counter.acquire_retrying(&Wait::at_most(PATIENCE)).unwrap(),
                        Waited::Done(())
                    );
                    work();
                    counter.release().unwrap();
                }
            });
            scope.spawn(move || {
                let counter = counter(server);
                for _ in 0..TURNS {
                    assert_eq!(
                        counter.acquire_parked(number, &Wait::at_most(PATIENCE)).unwrap(),
                        Waited::Done(())
                    );
                    work();
                    counter.release().unwrap();
                }
            });
            scope.spawn(move || {
                let mut plain = server.plain();
                for _ in 0..TURNS {
                    while !plain_take(&mut plain) {
                        pause();
                    }
                    work();
                    plain_give(&mut plain);
                }
            });
        }
    });
    assert_eq!(counter(&server).available().unwrap(), Some(PERMITS.into()));
    assert_eq!(most.into_inner(), PERMITS, "nobody ever met another");
}

#[test]
fn those_who_are_parked_come_by_priority() {
    let server = Memcached::start();
    // On a busy machine a waiter that polls may find the permit for which another one is being woken.
    let mut orders = (0..5).map(|turn| order_of_service(&server, &format!("app:{turn}")));
    let wanted = (vec![5, 5, 3, 1], 0);
    assert!(orders.any(|order| order == wanted), "it was never {wanted:?}");
}

/// The priorities of the waiters in the order in which they get a permit, and how many entries are
/// left in the queue.
fn order_of_service(server: &Memcached, key: &str) -> (Vec<i64>, usize) {
    let counter = || Client::connect(&server.url()).unwrap().counter(key).unwrap();
    let holder = counter();
    holder.set_up(0).unwrap();
    let (got, gets) = mpsc::channel();
    let waiting = || {
        let queue = server.plain().get(&format!("{key}%wait")).unwrap_or_default();
        queue.iter().filter(|&&byte| byte == b'\n').count()
    };
    for (before, priority) in [1, 5, 3, 5].into_iter().enumerate() {
        let (counter, got) = (counter(), got.clone());
        thread::spawn(move || {
            let waited = counter.acquire_parked(priority, &Wait::at_most(PATIENCE)).unwrap();
            got.send((priority, waited)).unwrap();
        });
        let began = Instant::now();
        while waiting() != before + 1 {
            assert!(began.elapsed() < PATIENCE);
            thread::sleep(Duration::from_millis(1));
        }
    }
    let mut order = Vec::new();
    while order.len() < 4 {
        holder.release().unwrap();
        let (priority, waited) = gets.recv_timeout(PATIENCE).unwrap();
        assert_eq!(waited, Waited::Done(()));
        order.push(priority);
    }
    assert_eq!(holder.available().unwrap(), Some(0));
    (order, waiting())
}

#[test]
fn who_is_parked_finds_what_a_plain_client_gives_back() {
    let server = Memcached::start();
    let (parked, mut plain) = (counter(&server), server.plain());
    parked.set_up(0).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| parked.acquire_parked(0, &Wait::at_most(PATIENCE)).unwrap());
        until("it is parked", || plain.get("app:permits%wait").is_some());
        plain_give(&mut plain);
        assert_eq!(waiting.join().unwrap(), Waited::Done(()));
    });
}

#[test]
fn flags_and_expiry_are_the_items_own() {
    let server = Memcached::start();
    let (counter, mut plain) = (counter(&server), server.plain());
    assert_eq!(plain.command("set app:permits 77 100 2\r\n10"), "STORED");
    assert!(counter.try_acquire().unwrap());
    let (value, flags, _) = plain.gets("app:permits").unwrap();
    assert_eq!((value, flags), (b"9".to_vec(), 77));
    assert_eq!(counter.release().unwrap(), 10);
    assert_eq!(plain.gets("app:permits").unwrap().1, 77);
    let left = plain.command("mg app:permits t");
    let left: u64 = left.strip_prefix("HD t").unwrap().parse().unwrap();
    assert!((80..=101).contains(&left), "{left}");
    // A number that became shorter by `decr`.
    assert_eq!(plain.command("decr app:permits 1"), "9");
    assert!(counter.try_acquire().unwrap());
    assert_eq!(plain.get("app:permits").unwrap(), b"8");
}

#[test]
fn each_no_is_its_own() {
    let server = Memcached::start();
    let counter = counter(&server);
    assert_eq!(counter.try_acquire().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(counter.release().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(counter.available().unwrap(), None);
    assert!(counter.set_up(1).unwrap());
    assert!(!counter.set_up(5).unwrap());
    assert!(counter.try_acquire().unwrap());
    assert_safe!(!counter.try_acquire().unwrap(), "more permits than there are");
    let limit = Wait::at_most(Duration::from_millis(30));
    assert_eq!(counter.acquire_retrying(&limit).unwrap(), Waited::TimedOut);
    assert_eq!(counter.acquire_parked(0, &limit).unwrap(), Waited::TimedOut);
    assert_eq!(counter.acquire_parked(0, &Wait::NEVER).unwrap(), Waited::Busy);
    server.plain().set("app:permits", "three", 0);
    let error = counter.try_acquire().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol);
    assert!(error.to_string().contains("not a decimal number"), "{error}");
    let client = Client::connect(&server.url()).unwrap();
    for bad in ["", "a b", "\u{fc}", &"x".repeat(246)] {
        assert_eq!(client.counter(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
    }
}

#[test]
fn a_cancelled_wait_leaves_nothing_behind() {
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    let counter = client.counter("app:permits").unwrap();
    counter.set_up(0).unwrap();
    for parked in [true, false] {
        let cancel = client.cancel_handle();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let wait = Wait::FOREVER.unless_cancelled(&cancel);
                if parked {
                    counter.acquire_parked(0, &wait)
                } else {
                    counter.acquire_retrying(&wait)
                }
            });
            thread::sleep(Duration::from_millis(50));
            cancel.cancel();
            assert_eq!(waiting.join().unwrap().unwrap(), Waited::Interrupted);
        });
    }
    assert!(server.plain().get("app:permits%wait").unwrap_or_default().is_empty());
}

#[test]
fn a_lost_reply_is_not_guessed_about() {
    let server = Memcached::start();
    let proxy = Proxy::start(server.address());
    let client = Client::connect(&format!("{}?io_timeout=700ms", proxy.url())).unwrap();
    let counter = client.counter("app:permits").unwrap();
    counter.set_up(5).unwrap();
    let patience = Wait::at_most(PATIENCE);
    for way in 0..3 {
        proxy.inject(Match::Putting, Fault::SwallowReply);
        let error = match way {
            0 => counter.try_acquire().unwrap_err(),
            1 => counter.acquire_retrying(&patience).unwrap_err(),
            _ => counter.acquire_parked(0, &patience).unwrap_err(),
        };
        assert_eq!(error.kind(), ErrorKind::Unknown);
        assert!(error.to_string().contains("a permit may be gone"), "{error}");
    }
    assert_eq!(counter.available().unwrap(), Some(2));
    proxy.inject(Match::Counting, Fault::SwallowReply);
    assert_eq!(counter.release().unwrap_err().kind(), ErrorKind::Unknown);
    assert_eq!(counter.available().unwrap(), Some(3));
}
