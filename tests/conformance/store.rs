//! The operations of a store, below all primitives.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::name::{Key, Keyspace};
use memlock_core::store::{
    Epoch, Expiry, Item, Op, Reply, Returns, Route, Store, Stored, Version, schemes,
};
use memlock_tests::{assert_safe, assert_safe_eq};

use crate::bench::Bench;

behaviours! {
    in Rust:
    an_item_is_added_once
    a_swap_needs_the_version
    a_delete_needs_the_version
    appending_changes_the_version_and_keeps_the_rest
    what_ends_at_a_time_tells_the_servers_clock
    counting_begins_where_it_is_told
    a_batch_is_answered_in_its_order
    versions_of_another_life_are_refused
    fences_rise_from_store_to_store
    an_item_lives_for_its_ttl
    large_values_come_back_whole
    a_batch_of_thousands_does_not_wedge
}

/// The store itself, and a key.
struct Items {
    store: Arc<dyn Store>,
    route: Route,
    keys: Keyspace,
    key: Key,
}

impl Items {
    fn new(bench: &Bench) -> Items {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let store = schemes::connect(&bench.place.store_url, &clock).unwrap();
        let keys = Keyspace::new(&format!("{}:", bench.unique)).unwrap();
        let key = keys.lock(b"x");
        Items { store, route: Route::of(&key), keys, key }
    }

    fn other_key(&self, name: &str) -> Key {
        self.keys.lock(name.as_bytes())
    }

    fn run(&self, ops: &[Op<'_>]) -> Vec<Reply> {
        self.store.run(self.route, ops).unwrap()
    }

    fn one(&self, op: Op<'_>) -> Reply {
        self.run(&[op]).remove(0)
    }

    fn add(&self, value: &[u8]) -> Version {
        stored(&self.one(add(&self.key, value)))
    }

    fn read(&self) -> Option<Item> {
        match self.one(Op::get(&self.key)) {
            Reply::Value(item) => Some(item),
            Reply::Missing => None,
            other => panic!("{other:?}"),
        }
    }
}

const MINUTE: Expiry = Expiry::After(Duration::from_secs(60));

fn add<'a>(key: &'a Key, value: &'a [u8]) -> Op<'a> {
    Op::add(key, value, MINUTE, Returns::Version)
}

fn set<'a>(key: &'a Key, version: Version, value: &'a [u8]) -> Op<'a> {
    Op::CompareAndSet { key, version, value, expiry: MINUTE, returns: Returns::Version }
}

fn stored(reply: &Reply) -> Version {
    with_fence(reply).version
}

fn with_fence(reply: &Reply) -> Stored {
    match reply {
        Reply::Stored(stored) => *stored,
        other => panic!("{other:?}"),
    }
}

fn an_item_is_added_once(bench: &Bench) {
    let items = &Items::new(bench);
    let version = items.add(b"a b\r\n");
    assert_safe_eq!(items.one(add(&items.key, b"other")), Reply::Exists, "added twice");
    let item = items.read().unwrap();
    assert_eq!((item.value.as_slice(), item.version), (&b"a b\r\n"[..], version));
    let remaining = item.remaining.unwrap();
    assert!(
        remaining <= Duration::from_secs(62) && remaining > Duration::from_secs(50),
        "{remaining:?}"
    );
}

fn a_swap_needs_the_version(bench: &Bench) {
    let items = &Items::new(bench);
    let key = &items.key;
    let first = items.add(b"1");
    let second = stored(&items.one(set(key, first, b"2")));
    assert_safe_eq!(
        items.one(set(key, first, b"3")),
        Reply::VersionMismatch,
        "another client's value"
    );
    assert_eq!(items.read().unwrap().value, b"2");
    assert_eq!(items.one(Op::Delete { key, version: second }), Reply::Deleted);
    assert_eq!(items.one(set(key, second, b"4")), Reply::Missing);
}

fn a_delete_needs_the_version(bench: &Bench) {
    let items = &Items::new(bench);
    let key = &items.key;
    let first = items.add(b"1");
    let second = stored(&items.one(set(key, first, b"2")));
    assert_safe_eq!(
        items.one(Op::Delete { key, version: first }),
        Reply::VersionMismatch,
        "another client's value"
    );
    assert_eq!(items.one(Op::Delete { key, version: second }), Reply::Deleted);
    assert_eq!(items.one(Op::Delete { key, version: second }), Reply::Missing);
}

fn appending_changes_the_version_and_keeps_the_rest(bench: &Bench) {
    let items = &Items::new(bench);
    let key = &items.key;
    assert_eq!(items.one(Op::Append { key, value: b"x" }), Reply::Missing);
    assert_eq!(items.one(Op::Prepend { key, value: b"x" }), Reply::Missing);
    let mut last = items.add(b"1");
    for (op, value) in [
        (Op::Append { key, value: b"" }, &b"1"[..]),
        (Op::Append { key, value: b"23" }, b"123"),
        (Op::Prepend { key, value: b"-\r\n" }, b"-\r\n123"),
    ] {
        assert_eq!(items.one(op), Reply::Written);
        let item = items.read().unwrap();
        assert_eq!(item.value, value);
        assert_ne!(item.version, last);
        assert!(item.remaining.unwrap() > Duration::from_secs(50));
        last = item.version;
    }
}

/// Records that hold several leases are written so: no version is needed, and the time at which the
/// item ends is given, so that what is left of it tells the server's time.
fn what_ends_at_a_time_tells_the_servers_clock(bench: &Bench) {
    let items = &Items::new(bench);
    let key = &items.key;
    let returns = Returns::Nothing;
    assert_eq!(items.one(Op::get(key)), Reply::Missing);
    let end = items.store.time(items.route).unwrap() + Duration::from_secs(100);
    let end = Duration::from_secs(end.as_secs());
    let add = |value, expiry| items.one(Op::add(key, value, expiry, returns));
    let set = |version, value, expiry| {
        items.one(Op::CompareAndSet { key, version, value, expiry, returns })
    };
    assert_eq!(add(b"1\r\n", Expiry::At(end)), Reply::Written);
    assert_eq!(add(b"2", MINUTE), Reply::Exists);
    let item = items.read().unwrap();
    assert_eq!(item.value, b"1\r\n");
    let left = item.remaining.unwrap().as_secs();
    assert!((90..=103).contains(&left), "{left}");
    let strange = Version::new(Epoch::new(1, 1), 1);
    assert_safe_eq!(set(strange, b"3", MINUTE), Reply::VersionMismatch, "another client's value");
    assert_eq!(set(item.version, b"4", Expiry::Unchanged(item.remaining)), Reply::Written);
    assert_safe_eq!(
        set(item.version, b"5", MINUTE),
        Reply::VersionMismatch,
        "another client's value"
    );
    let item = items.read().unwrap();
    assert_eq!(item.value, b"4");
    let now_left = item.remaining.unwrap().as_secs();
    assert!((left - 3..=left).contains(&now_left), "{now_left} after {left}");
    assert_eq!(set(item.version, b"6", Expiry::Never), Reply::Written);
    let item = items.read().unwrap();
    assert_eq!((item.value.as_slice(), item.remaining), (&b"6"[..], None));
    assert_eq!(items.one(Op::Delete { key, version: item.version }), Reply::Deleted);
    assert_eq!(set(item.version, b"7", MINUTE), Reply::Missing);
}

fn counting_begins_where_it_is_told(bench: &Bench) {
    let items = &Items::new(bench);
    let key = &items.key;
    assert_eq!(items.one(Op::Increment { key, by: 1, initial: None }), Reply::Missing);
    assert_eq!(
        items.one(Op::Increment { key, by: 5, initial: Some((7, MINUTE)) }),
        Reply::Number(7)
    );
    assert_eq!(
        items.one(Op::Increment { key, by: 5, initial: Some((7, MINUTE)) }),
        Reply::Number(12)
    );
    assert_eq!(items.one(Op::Increment { key, by: 1000, initial: None }), Reply::Number(1012));
}

fn a_batch_is_answered_in_its_order(bench: &Bench) {
    let items = &Items::new(bench);
    let (here, there) = (items.other_key("here"), items.other_key("there"));
    let replies = items.run(&[
        Op::get(&here),
        add(&here, b"1"),
        Op::get(&here),
        Op::get(&there),
        add(&here, b"2"),
        Op::Increment { key: &here, by: 2, initial: None },
    ]);
    assert_eq!(replies[0], Reply::Missing);
    stored(&replies[1]);
    assert!(matches!(&replies[2], Reply::Value(item) if item.value == b"1"));
    assert_eq!(replies[3..], [Reply::Missing, Reply::Exists, Reply::Number(3)]);
    assert_eq!(items.run(&[]), []);
}

fn versions_of_another_life_are_refused(bench: &Bench) {
    let items = &Items::new(bench);
    let version = items.add(b"1");
    let past = Version::new(Epoch::new(1, 1), version.number());
    let key = &items.key;
    let replies =
        items.run(&[Op::Delete { key, version: past }, set(key, past, b"2"), Op::get(key)]);
    assert_safe_eq!(
        replies[..2],
        [Reply::VersionMismatch, Reply::VersionMismatch],
        "versions of another life"
    );
    assert!(matches!(&replies[2], Reply::Value(item) if item.value == b"1"));
}

fn fences_rise_from_store_to_store(bench: &Bench) {
    let items = &Items::new(bench);
    let key = &items.key;
    let (expiry, returns) = (MINUTE, Returns::Fence);
    let mut last = with_fence(&items.one(Op::add(key, b"1", expiry, returns)));
    for round in 0..4 {
        let (version, value) = (last.version, &b"2"[..]);
        let ops = [
            Op::CompareAndSet { key, version, value, expiry, returns },
            Op::Get { key, fence: true },
        ];
        let replies = items.run(&ops);
        let next = with_fence(&replies[0]);
        assert_safe!(next.fence > last.fence, "{next:?} after {last:?}");
        let Reply::Value(item) = &replies[1] else { panic!("{replies:?}") };
        assert_eq!(item.version, next.version);
        assert!(item.fence >= next.fence);
        last = next;
        // The next holder's is greater, whatever was removed before.
        if round % 2 == 0 {
            assert_eq!(items.one(Op::Delete { key, version: next.version }), Reply::Deleted);
            let add = Op::add(key, value, expiry, returns);
            let again = with_fence(&items.one(add));
            assert_safe!(again.fence > last.fence, "{again:?} after {last:?}");
            last = again;
        }
    }
}

fn an_item_lives_for_its_ttl(bench: &Bench) {
    let items = &Items::new(bench);
    let clock = SystemClock;
    let before = clock.now();
    let lease = Duration::from_secs(1);
    items.one(Op::add(&items.key, b"1", Expiry::After(lease), Returns::Nothing));
    // It was added before this, however long the reply took.
    let added = clock.now();
    let mut seen = added;
    loop {
        let asked = clock.now();
        if items.read().is_none() {
            break;
        }
        seen = asked;
        thread::sleep(Duration::from_millis(10));
    }
    let gone = clock.now().since(before);
    assert!(gone > lease, "{gone:?}");
    let lived = seen.since(added);
    assert!(lived < Duration::from_secs(4), "{lived:?}");
}

fn large_values_come_back_whole(bench: &Bench) {
    let items = &Items::new(bench);
    let longest = items.store.guarantees().longest_value;
    let length = longest.min(500_000);
    let value: Vec<u8> = (0..length).map(|number| (number % 251) as u8).collect();
    items.add(&value);
    assert_eq!(items.read().unwrap().value, value);
    if length == longest {
        // It cannot grow, and is left as it was.
        let append = Op::Append { key: &items.key, value: b"x" };
        let failure = items.store.run(items.route, &[append]).unwrap_err();
        assert!(!failure.sent, "{failure:?}");
        assert_eq!(items.read().unwrap().value, value);
    }
}

fn a_batch_of_thousands_does_not_wedge(bench: &Bench) {
    let items = &Items::new(bench);
    let keys: Vec<Key> = (0..2000).map(|number| items.other_key(&format!("{number}"))).collect();
    let value = vec![b'v'; items.store.guarantees().longest_value.min(10_000)];
    let adds: Vec<Op<'_>> = keys.iter().map(|key| add(key, &value)).collect();
    assert!(items.run(&adds).iter().all(|reply| matches!(reply, Reply::Stored(_))));
    let gets: Vec<Op<'_>> = keys.iter().map(Op::get).collect();
    let replies = items.run(&gets);
    assert_eq!(replies.len(), 2000);
    assert!(replies.iter().all(|reply| matches!(reply, Reply::Value(item) if item.value == value)));
}
