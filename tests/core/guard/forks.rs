//! A forked child holds nothing of its parent's, and puts nothing back.

use memlock_core::{Client, Extension, Lock, Permit, Release};
use memlock_tests::fork::in_a_child;

use super::{Bench, GUARD, hold};

fn in_child(client: &Client, lock: &mut Lock, permit: &mut Permit) -> bool {
    // Its own connection sees the server that has forgotten them.
    let is_free = client.mutex("m", GUARD).unwrap().owner().unwrap().is_none();
    let extended = lock.extend(GUARD).unwrap() == Extension::NotHeld
        && permit.extend(GUARD).unwrap() == Extension::NotHeld;
    let checked = !lock.check().unwrap() && !permit.check().unwrap();
    let released =
        lock.unlock().unwrap() == Release::NotHeld && permit.release().unwrap() == Release::NotHeld;
    is_free && extended && checked && released
}

#[test]
fn a_child_puts_nothing_back_and_its_parent_does() {
    let bench = Bench::start();
    let client = bench.client();
    let mut lock = hold(&client, "m");
    let mut permit = client.semaphore("s", 1, GUARD).unwrap().acquire().unwrap();
    assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended);
    bench.restart();
    assert!(in_a_child(|| in_child(&client, &mut lock, &mut permit)), "the child failed");
    let mut plain = bench.server.plain();
    assert!(plain.get("lock:m").is_none() && plain.get("semaphore:s").is_none());
    assert!(lock.check().unwrap() && permit.check().unwrap());
    assert!(plain.get("lock:m").is_some() && plain.get("semaphore:s").is_some());
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    assert_eq!(permit.release().unwrap(), Release::Released);
}
