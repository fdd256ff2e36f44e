//! Processes that fork.

use memlock_core::{Client, Extension, Lock, Release};
use memlock_tests::assert_safe;
use memlock_tests::launch::until;

use crate::{Bench, LEASE, is_free};

/// The child of a fork has the connections of its parent: a byte that it wrote there, or a polite
/// goodbye when it drops them, would ruin them.
pub(crate) fn a_child_neither_uses_nor_ends_the_connections_of_its_parent(bench: &Bench) {
    let (client, witness) = (bench.client(), bench.client());
    let mut lock = client.mutex("m", LEASE).unwrap().lock().unwrap();
    // SAFETY: the child calls what a child of this test's process may: the other threads of the
    // test harness hold no lock that it needs; it ends with _exit.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "it could not be forked");
    if child == 0 {
        // A child that hangs is killed.
        // SAFETY: alarm has no preconditions.
        unsafe { libc::alarm(120) };
        let is_right =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| in_child(client, lock)));
        // SAFETY: _exit runs nothing of the parent's.
        unsafe { libc::_exit(if is_right.unwrap_or(false) { 0 } else { 1 }) }
    }
    let mut status = 0;
    // SAFETY: the child is this process's own; `status` is a valid place for its status.
    let mut waited = || unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
    until("the child has ended", || waited() == child);
    assert_eq!(status, 0, "the child failed");
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
