//! What every store must do: the same behaviours on memory and on a real memcached.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::lease::Ttl;
use memlock_core::name::{Key, Keyspace};
use memlock_core::store::{self, Incarnation, Item, Op, Reply, Route, Store, Version};
use memlock_tests::server::Memcached;

macro_rules! behaviours {
    ($($behaviour:ident)*) => {
        mod memory {
            use super::*;
            $(#[test]
            fn $behaviour() {
                let url = concat!("memory://", stringify!($behaviour));
                super::$behaviour(&Bench::new(url));
            })*
        }
        mod memcached {
            use super::*;
            $(#[test]
            fn $behaviour() {
                let server = Memcached::start();
                super::$behaviour(&Bench::new(&server.url()));
            })*
        }
        /// One that refuses to store when it is full is spoken to in other words.
        mod refusing {
            use super::*;
            $(#[test]
            fn $behaviour() {
                let server = Memcached::with_args(&["-M", "-m", "100"]);
                super::$behaviour(&Bench::new(&server.url()));
            })*
        }
    };
}

behaviours! {
    an_item_is_added_once
    a_swap_needs_the_version
    a_delete_needs_the_version
    appending_changes_the_version_and_keeps_the_rest
    a_put_needs_the_version_and_keeps_what_it_is_told
    counting_begins_where_it_is_told
    a_batch_is_answered_in_its_order
    versions_rise_and_those_of_another_life_are_refused
    a_stamp_is_younger_than_what_was_stored_before_it
    an_item_lives_for_its_ttl
    large_values_come_back_whole
    a_batch_of_thousands_does_not_wedge
}

struct Bench {
    store: Arc<dyn Store>,
    route: Route,
    key: Key,
}

impl Bench {
    fn new(url: &str) -> Bench {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let key = key("x");
        Bench { store: store::connect(url, &clock).unwrap(), route: Route::of(&key), key }
    }

    fn run(&self, ops: &[Op<'_>]) -> Vec<Reply> {
        self.store.run(self.route, ops).unwrap()
    }

    fn one(&self, op: Op<'_>) -> Reply {
        self.run(&[op]).remove(0)
    }

    fn add(&self, value: &[u8]) -> Version {
        stored(&self.one(Op::Add { key: &self.key, value, ttl: minute() }))
    }

    fn read(&self) -> Option<Item> {
        match self.one(Op::Get { key: &self.key }) {
            Reply::Value(item) => Some(item),
            Reply::Missing => None,
            other => panic!("{other:?}"),
        }
    }
}

fn key(name: &str) -> Key {
    Keyspace::default().lock(name.as_bytes())
}

fn minute() -> Ttl {
    Ttl::covering(Duration::from_secs(60))
}

fn stored(reply: &Reply) -> Version {
    match reply {
        Reply::Stored(version) => *version,
        other => panic!("{other:?}"),
    }
}

fn an_item_is_added_once(bench: &Bench) {
    let version = bench.add(b"a b\r\n");
    assert_eq!(
        bench.one(Op::Add { key: &bench.key, value: b"other", ttl: minute() }),
        Reply::Exists
    );
    let item = bench.read().unwrap();
    assert_eq!((item.value.as_slice(), item.version), (&b"a b\r\n"[..], version));
    let remaining = item.remaining.unwrap();
    assert!(
        remaining <= Duration::from_secs(62) && remaining > Duration::from_secs(50),
        "{remaining:?}"
    );
}

fn a_swap_needs_the_version(bench: &Bench) {
    let (key, ttl) = (&bench.key, minute());
    let first = bench.add(b"1");
    let second = stored(&bench.one(Op::CompareAndSet { key, version: first, value: b"2", ttl }));
    assert_eq!(
        bench.one(Op::CompareAndSet { key, version: first, value: b"3", ttl }),
        Reply::VersionMismatch
    );
    assert_eq!(bench.read().unwrap().value, b"2");
    assert_eq!(bench.one(Op::Delete { key, version: second }), Reply::Deleted);
    assert_eq!(
        bench.one(Op::CompareAndSet { key, version: second, value: b"4", ttl }),
        Reply::Missing
    );
}

fn a_delete_needs_the_version(bench: &Bench) {
    let key = &bench.key;
    let first = bench.add(b"1");
    let second =
        stored(&bench.one(Op::CompareAndSet { key, version: first, value: b"2", ttl: minute() }));
    assert_eq!(bench.one(Op::Delete { key, version: first }), Reply::VersionMismatch);
    assert_eq!(bench.one(Op::Delete { key, version: second }), Reply::Deleted);
    assert_eq!(bench.one(Op::Delete { key, version: second }), Reply::Missing);
}

fn appending_changes_the_version_and_keeps_the_rest(bench: &Bench) {
    let key = &bench.key;
    assert_eq!(bench.one(Op::Append { key, value: b"x" }), Reply::Missing);
    assert_eq!(bench.one(Op::Prepend { key, value: b"x" }), Reply::Missing);
    let mut last = bench.add(b"1");
    for (op, value) in [
        (Op::Append { key, value: b"" }, &b"1"[..]),
        (Op::Append { key, value: b"23" }, b"123"),
        (Op::Prepend { key, value: b"-\r\n" }, b"-\r\n123"),
    ] {
        assert_eq!(bench.one(op), Reply::Written);
        let item = bench.read().unwrap();
        assert_eq!(item.value, value);
        assert!(item.version.cas > last.cas);
        assert!(item.remaining.unwrap() > Duration::from_secs(50));
        last = item.version;
    }
}

fn a_put_needs_the_version_and_keeps_what_it_is_told(bench: &Bench) {
    let key = &bench.key;
    let put = |version, flags, value, ttl| bench.one(Op::Put { key, version, flags, value, ttl });
    let strange = Version { incarnation: Incarnation { boot: 1, pid: 1 }, cas: 1 };
    assert_eq!(bench.one(Op::Get { key }), Reply::Missing);
    let now = bench.store.time(bench.route).unwrap();
    assert_eq!(put(None, 7, b"1\r\n", Ttl::Until(now + 100)), Reply::Written);
    assert_eq!(put(None, 7, b"2", minute()), Reply::Exists);
    let item = bench.read().unwrap();
    assert_eq!((item.value.as_slice(), item.flags), (&b"1\r\n"[..], 7));
    // What is left of it tells the server's time.
    let left = item.remaining.unwrap().as_secs();
    assert!((90..=103).contains(&left), "{left}");
    assert_eq!(put(Some(strange), 0, b"3", minute()), Reply::VersionMismatch);
    assert_eq!(put(Some(item.version), 4_294_967_295, b"4", Ttl::Never), Reply::Written);
    assert_eq!(put(Some(item.version), 0, b"5", minute()), Reply::VersionMismatch);
    let item = bench.read().unwrap();
    assert_eq!(
        (item.value.as_slice(), item.remaining, item.flags),
        (&b"4"[..], None, 4_294_967_295)
    );
    assert_eq!(bench.one(Op::Delete { key, version: item.version }), Reply::Deleted);
    assert_eq!(put(Some(item.version), 0, b"6", minute()), Reply::Missing);
}

fn counting_begins_where_it_is_told(bench: &Bench) {
    let key = &bench.key;
    assert_eq!(bench.one(Op::Increment { key, by: 1, initial: None }), Reply::Missing);
    assert_eq!(
        bench.one(Op::Increment { key, by: 5, initial: Some((7, minute())) }),
        Reply::Number(7)
    );
    assert_eq!(
        bench.one(Op::Increment { key, by: 5, initial: Some((7, minute())) }),
        Reply::Number(12)
    );
    assert_eq!(bench.one(Op::Increment { key, by: 1000, initial: None }), Reply::Number(1012));
}

fn a_batch_is_answered_in_its_order(bench: &Bench) {
    let (here, there) = (key("here"), key("there"));
    let replies = bench.run(&[
        Op::Get { key: &here },
        Op::Add { key: &here, value: b"1", ttl: minute() },
        Op::Get { key: &here },
        Op::Get { key: &there },
        Op::Add { key: &here, value: b"2", ttl: minute() },
        Op::Increment { key: &here, by: 2, initial: None },
    ]);
    assert_eq!(replies[0], Reply::Missing);
    stored(&replies[1]);
    assert!(matches!(&replies[2], Reply::Value(item) if item.value == b"1"));
    assert_eq!(replies[3..], [Reply::Missing, Reply::Exists, Reply::Number(3)]);
    assert_eq!(bench.run(&[]), []);
}

fn versions_rise_and_those_of_another_life_are_refused(bench: &Bench) {
    let version = bench.add(b"1");
    let other = stored(&bench.one(Op::Add { key: &key("y"), value: b"1", ttl: minute() }));
    assert!(other.cas > version.cas && other.fence() > version.fence());
    let earlier = Incarnation { boot: version.incarnation.boot - 1, ..version.incarnation };
    let past = Version { incarnation: earlier, cas: version.cas };
    assert!(past.fence() < version.fence());
    let key = &bench.key;
    let replies = bench.run(&[
        Op::Delete { key, version: past },
        Op::CompareAndSet { key, version: past, value: b"2", ttl: minute() },
        Op::Get { key },
    ]);
    assert_eq!(replies[..2], [Reply::VersionMismatch, Reply::VersionMismatch]);
    assert!(matches!(&replies[2], Reply::Value(item) if item.value == b"1"));
}

fn a_stamp_is_younger_than_what_was_stored_before_it(bench: &Bench) {
    let stamp = Keyspace::default().stamp();
    let mut last = bench.add(b"1");
    for _ in 0..3 {
        let ops = [
            Op::CompareAndSet { key: &bench.key, version: last, value: b"2", ttl: minute() },
            Op::Stamp { key: &stamp },
            Op::Get { key: &bench.key },
        ];
        let replies = bench.run(&ops);
        let stored = stored(&replies[0]);
        assert!(stored.fence() > last.fence());
        last = match replies[1] {
            Reply::Needless => stored,
            Reply::Stored(stamp) => {
                assert!(stamp.fence() > stored.fence() && stamp.incarnation == stored.incarnation);
                stored
            }
            ref other => panic!("{other:?}"),
        };
        assert!(matches!(&replies[2], Reply::Value(item) if item.version == last));
    }
}

fn an_item_lives_for_its_ttl(bench: &Bench) {
    let clock = SystemClock;
    let before = clock.now();
    let lease = Duration::from_secs(1);
    bench.one(Op::Add { key: &bench.key, value: b"1", ttl: Ttl::covering(lease) });
    let mut seen = before;
    loop {
        let asked = clock.now();
        if bench.read().is_none() {
            break;
        }
        seen = asked;
        thread::sleep(Duration::from_millis(10));
    }
    let gone = clock.now().since(before);
    assert!(gone > lease, "{gone:?}");
    let lived = seen.since(before);
    assert!(lived < Duration::from_secs(4), "{lived:?}");
}

fn large_values_come_back_whole(bench: &Bench) {
    let value: Vec<u8> = (0..500_000_u32).map(|number| (number % 251) as u8).collect();
    bench.add(&value);
    assert_eq!(bench.read().unwrap().value, value);
}

fn a_batch_of_thousands_does_not_wedge(bench: &Bench) {
    let keys: Vec<Key> = (0..2000).map(|number| key(&format!("{number}"))).collect();
    let value = vec![b'v'; 10_000];
    let adds: Vec<Op<'_>> =
        keys.iter().map(|key| Op::Add { key, value: &value, ttl: minute() }).collect();
    assert!(bench.run(&adds).iter().all(|reply| matches!(reply, Reply::Stored(_))));
    let gets: Vec<Op<'_>> = keys.iter().map(|key| Op::Get { key }).collect();
    let replies = bench.run(&gets);
    assert_eq!(replies.len(), 2000);
    assert!(replies.iter().all(|reply| matches!(reply, Reply::Value(item) if item.value == value)));
}

/// Commands to a server whose cas ids have begun anew would hit the wrong items.
#[test]
fn a_restarted_server_is_another_life() {
    let server = Memcached::start();
    let bench = Bench::new(&server.url());
    let old = bench.add(b"old");
    server.kill();
    // The start time is in whole seconds.
    thread::sleep(Duration::from_millis(1100));
    server.restart();
    let fresh = Bench::new(&server.url());
    let new = fresh.add(b"new");
    assert_ne!(old.incarnation, new.incarnation);
    assert!(new.fence() > old.fence());
    assert_eq!(fresh.one(Op::Delete { key: &fresh.key, version: old }), Reply::VersionMismatch);
    assert_eq!(
        bench.read().unwrap().value,
        b"new",
        "the old connection is replaced without a word"
    );
}
