//! A memcached that was restarted: its cas ids begin anew, and so do the versions made of them.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::name::{Key, Keyspace};
use memlock_core::store::{Expiry, Op, Reply, Returns, Route, Store, Stored, schemes};
use memlock_tests::frozen::Frozen;
use memlock_tests::server::Memcached;

fn connect(server: &Memcached) -> Arc<dyn Store> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    schemes::connect(&server.url(), &clock).unwrap()
}

fn one(store: &Arc<dyn Store>, key: &Key, op: Op<'_>) -> Reply {
    store.run(Route::of(key), &[op]).unwrap().remove(0)
}

fn add(store: &Arc<dyn Store>, key: &Key, value: &[u8]) -> Stored {
    let expiry = Expiry::After(Duration::from_secs(60));
    match one(store, key, Op::add(key, value, expiry, Returns::Fence)) {
        Reply::Stored(stored) => stored,
        other => panic!("{other:?}"),
    }
}

/// Commands to a server whose cas ids have begun anew would hit the wrong items.
#[test]
fn a_restarted_server_is_another_life() {
    let (server, key) = (Memcached::start(), Keyspace::default().lock(b"x"));
    let before = connect(&server);
    let old = add(&before, &key, b"old");
    server.kill();
    // The start time is in whole seconds.
    thread::sleep(Duration::from_millis(1100));
    server.restart();
    let fresh = connect(&server);
    let new = add(&fresh, &key, b"new");
    assert_ne!(old.version.epoch(), new.version.epoch());
    assert!(new.fence > old.fence);
    let refused = one(&fresh, &key, Op::Delete { key: &key, version: old.version });
    assert_eq!(refused, Reply::VersionMismatch);
    // The old connection is replaced without a word.
    let Reply::Value(item) = one(&before, &key, Op::get(&key)) else { panic!("gone") };
    assert_eq!(item.value, b"new");
}

/// What is known of the clock of a quorum's member gets less exact with each day that a connection lasts.
#[test]
fn a_connection_to_a_member_is_used_for_ten_minutes() {
    let key = Keyspace::default().lock(b"x");
    let servers = [(); 3].map(|()| Memcached::with_args(&["-M", "-F"]));
    let addresses = servers.each_ref().map(|server| server.address()).join(",");
    let url = format!("memcached://{addresses}?quorum=majority&guard=60s");
    let frozen = Frozen::clock();
    let clock: Arc<dyn Clock> = Arc::<Frozen>::clone(&frozen);
    let store = schemes::connect(&url, &clock).unwrap();
    let mut plain = servers[0].plain();
    let mut connections = || {
        assert!(matches!(one(&store, &key, Op::get(&key)), Reply::Missing));
        plain.stats()["total_connections"].parse::<u64>().unwrap()
    };
    let first = connections();
    frozen.advance(Duration::from_secs(598));
    assert_eq!(connections(), first);
    frozen.advance(Duration::from_secs(3));
    assert_eq!(connections(), first + 1);
    frozen.advance(Duration::from_secs(598));
    assert_eq!(connections(), first + 1);
    frozen.advance(Duration::from_secs(30 * 86_400));
    assert_eq!(connections(), first + 2);
}
