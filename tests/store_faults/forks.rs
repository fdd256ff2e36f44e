//! Processes that fork.

use memlock_core::{Client, Extension, Lock, Release};
use memlock_tests::assert_safe;
use memlock_tests::fork::in_a_child;

use crate::{Bench, LEASE, is_free};

/// The child of a fork has the connections of its parent: a byte that it wrote there, or a polite
/// goodbye when it drops them, would ruin them.
pub(crate) fn a_child_neither_uses_nor_ends_the_connections_of_its_parent(bench: &Bench) {
    let (client, witness) = (bench.client(), bench.client());
    let lock = client.mutex("m", LEASE).unwrap().lock().unwrap();
    let mut both = Some((client, lock));
    let is_right = in_a_child(|| {
        let (client, lock) = both.take().unwrap();
        in_child(client, lock)
    });
    assert!(is_right, "the child failed");
    let (_client, mut lock) = both.unwrap();
    assert!(lock.check().unwrap(), "the parent's connection works");
    assert_safe!(!is_free(&witness, "m"), "the child released its parent's lock");
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    assert!(is_free(&witness, "m") && is_free(&witness, "child"));
}

fn in_child(client: Client, mut inherited: Lock) -> bool {
    let is_nothing = inherited.remaining().is_zero()
        && inherited.extend(LEASE).unwrap() == Extension::NotHeld
        && inherited.unlock().unwrap() == Release::NotHeld;
    drop(inherited);
    let is_held = client.mutex("m", LEASE).unwrap().try_lock().unwrap().is_none();
    let lock = client.mutex("child", LEASE).unwrap().try_lock().unwrap();
    let is_its_own = lock.is_some();
    drop(lock);
    drop(client);
    // It has the thread that forked: a client starts none.
    let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
    is_nothing && is_held && is_its_own && threads == 1
}
