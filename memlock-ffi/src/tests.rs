//! The C functions on a store in memory, without a server: tests of the boundary that run under
//! Miri.
#![allow(unreachable_pub, reason = "what is fuzzed is a library of its own")]

use std::ffi::{CStr, c_char, c_int};
use std::ptr::{null, null_mut};

use crate::*;

#[path = "../../fuzz/src/corpus.rs"]
mod corpus;
#[path = "../../fuzz/src/ffi.rs"]
mod fuzzed;
#[path = "../../fuzz/src/input.rs"]
mod input;

#[test]
#[cfg_attr(miri, ignore = "Miri would take hours for the corpus")]
fn no_input_breaks_the_boundary() {
    corpus::replay("ffi", fuzzed::run);
}

fn sentence() -> String {
    // SAFETY: never NULL, and a string of this thread.
    unsafe { CStr::from_ptr(memlock_last_error()) }.to_string_lossy().into_owned()
}

fn open(url: &CStr) -> *mut memlock_client {
    let mut client = null_mut();
    // SAFETY: the URL is a string, and the out parameter is a local variable.
    let answer = unsafe { memlock_client_open(url.as_ptr(), &raw mut client) };
    assert_eq!(answer, MEMLOCK_OK, "{}", sentence());
    client
}

fn lock(client: *const memlock_client, timeout_ms: i64) -> (c_int, *mut memlock_lock) {
    let mut lock = null_mut();
    // SAFETY: the client is open, the name is a string, and the out parameter is a local variable.
    let answer =
        unsafe { memlock_mutex_lock(client, c"name".as_ptr(), 30_000, timeout_ms, &raw mut lock) };
    (answer, lock)
}

#[test]
fn a_lock_moves_from_one_client_to_another() {
    let (one, two) = (open(c"memory://locks"), open(c"memory://locks"));
    let (answer, held) = lock(one, 0);
    assert_eq!((answer, lock(two, 0).0), (MEMLOCK_OK, MEMLOCK_BUSY), "{}", sentence());
    let (mut fence, mut left, mut owner) = (0, 0, std::mem::MaybeUninit::<memlock_owner>::uninit());
    // SAFETY: open handles, strings, and local variables, one of them uninitialised. A closed
    // handle is not used again.
    unsafe {
        assert_eq!(memlock_lock_fence(held, &raw mut fence), MEMLOCK_OK);
        assert_eq!(memlock_lock_remaining_ms(held, &raw mut left), MEMLOCK_OK);
        assert_eq!(memlock_lock_extend(held, 40_000), MEMLOCK_OK);
        assert_eq!(memlock_lock_extend(held, -1), MEMLOCK_INVALID);
        assert_eq!(memlock_mutex_owner(two, c"name".as_ptr(), owner.as_mut_ptr()), MEMLOCK_BUSY);
        let token = &owner.assume_init_ref().token;
        assert_eq!(memlock_mutex_force_unlock(two, c"name".as_ptr(), token.as_ptr()), MEMLOCK_OK);
        memlock_client_close(one);
        assert_eq!(memlock_unlock(held), MEMLOCK_LOST);
    }
    let (answer, held) = lock(two, -1);
    assert!(answer == MEMLOCK_OK && fence > 0 && left > 0);
    // SAFETY: as above; a lock outlives its client.
    unsafe {
        memlock_client_close(two);
        assert_eq!(memlock_unlock(held), MEMLOCK_OK);
    }
}

#[test]
fn only_a_lock_on_a_database_is_released_in_a_transaction() {
    let client = open(c"memory://transactions");
    let (answer, held) = lock(client, 0);
    assert_eq!(answer, MEMLOCK_OK);
    let mut sql = [1; MEMLOCK_SQL_SIZE];
    // SAFETY: open handles, and a buffer of the size that is told, or none.
    unsafe {
        assert_eq!(memlock_lock_release_sql(held, sql.as_mut_ptr(), sql.len()), MEMLOCK_CONFIG);
        assert!(sql[0] == 0 && sentence().contains("after the commit"), "{}", sentence());
        assert_eq!(memlock_lock_release_sql(held, sql.as_mut_ptr(), 100), MEMLOCK_INVALID);
        assert_eq!(memlock_lock_release_sql(held, null_mut(), sql.len()), MEMLOCK_INVALID);
        assert_eq!(memlock_lock_check(held), MEMLOCK_OK, "it is held as before");
        assert_eq!(memlock_unlock(held), MEMLOCK_OK);
        memlock_client_close(client);
    }
}

#[test]
fn permits_move_from_one_client_to_another() {
    let (one, two) = (open(c"memory://permits"), open(c"memory://permits"));
    let (mut ours, mut theirs, mut held, mut none) =
        (null_mut(), null_mut(), null_mut(), null_mut());
    let (mut count, mut left, mut available, mut holders) = (0, 0, 0, 0);
    let mut holder = std::mem::MaybeUninit::<memlock_holder>::uninit();
    let request = memlock_request { permits: 2, priority: 5, strict: 1 };
    // SAFETY: as above.
    unsafe {
        let name = c"name".as_ptr();
        assert_eq!(
            memlock_semaphore_open(one, name, 2, 30_000, &raw mut ours),
            MEMLOCK_OK,
            "{}",
            sentence()
        );
        assert_eq!(memlock_semaphore_open(two, name, 0, 30_000, &raw mut theirs), MEMLOCK_OK);
        assert_eq!(memlock_semaphore_acquire(theirs, 1, 0, &raw mut none), MEMLOCK_NOT_FOUND);
        assert_eq!(memlock_semaphore_set_up(ours, 60_000), MEMLOCK_OK, "{}", sentence());
        let answer =
            memlock_semaphore_acquire_wait(ours, &raw const request, 0, null(), &raw mut held);
        assert_eq!(answer, MEMLOCK_OK, "{}", sentence());
        assert_eq!(memlock_semaphore_acquire(theirs, 1, 0, &raw mut none), MEMLOCK_BUSY);
        assert_eq!(memlock_permit_count(held, &raw mut count), MEMLOCK_OK);
        assert_eq!(memlock_permit_remaining_ms(held, &raw mut left), MEMLOCK_OK);
        assert_eq!(memlock_permit_extend(held, 40_000), MEMLOCK_OK);
        assert_eq!(
            memlock_semaphore_holders(theirs, holder.as_mut_ptr(), 1, &raw mut holders),
            MEMLOCK_OK
        );
        assert_eq!((count, holders, holder.assume_init_ref().permits), (2, 1, 2));
        memlock_client_close(one);
        memlock_semaphore_close(ours);
        assert_eq!(memlock_permit_release(held), MEMLOCK_OK);
        assert_eq!(memlock_semaphore_resize(theirs, 7), MEMLOCK_OK);
        assert_eq!(memlock_semaphore_available(theirs, &raw mut available), MEMLOCK_OK);
        assert_eq!(memlock_semaphore_tear_down(theirs), MEMLOCK_OK);
        memlock_semaphore_close(theirs);
        memlock_client_close(two);
    }
    assert!(none.is_null() && left > 0 && available == 7);
}

#[test]
fn what_exists_already_is_named_with_its_server() {
    let client = open(c"memory://twice");
    let (mut one, mut two, mut semaphore) = (null_mut(), null_mut(), null_mut());
    let says = |text: &str| assert!(sentence().contains(text), "{}", sentence());
    // SAFETY: as above.
    unsafe {
        let (name, key) = (c"name".as_ptr(), c"key".as_ptr());
        assert_eq!(memlock_list_set_up(client, name, 60_000, &raw mut one), MEMLOCK_OK);
        assert_eq!(memlock_list_set_up(client, name, 60_000, &raw mut two), MEMLOCK_EXISTS);
        says("The distinct list \"name\" in this process's memory was already set up");
        assert_eq!(memlock_list_insert(one, key, 3, null_mut()), MEMLOCK_OK);
        assert_eq!(memlock_list_insert(two, key, 3, null_mut()), MEMLOCK_DUPLICATE);
        says("The key was already in the distinct list \"name\" in this process's memory.");
        memlock_list_close(one);
        memlock_list_close(two);
        assert_eq!(memlock_semaphore_open(client, name, 2, 30_000, &raw mut semaphore), MEMLOCK_OK);
        assert_eq!(memlock_semaphore_set_up(semaphore, 60_000), MEMLOCK_OK);
        assert_eq!(memlock_semaphore_set_up(semaphore, 60_000), MEMLOCK_EXISTS);
        says("The semaphore \"name\" in this process's memory was already set up.");
        memlock_semaphore_close(semaphore);
        assert_eq!(memlock_counter_set_up(client, key, 2), MEMLOCK_OK);
        assert_eq!(memlock_counter_set_up(client, key, 3), MEMLOCK_EXISTS);
        says("The counter \"key\" in this process's memory was already set up");
        memlock_client_close(client);
    }
}

#[test]
fn a_list_is_iterated() {
    let client = open(c"memory://lists");
    let (mut list, mut walk, mut id) = (null_mut(), null_mut(), 0);
    let (mut key, mut length): (*const c_char, usize) = (null(), 0);
    // SAFETY: as above; the bytes of a key are valid until the next step of the iteration.
    unsafe {
        assert_eq!(memlock_list_set_up(client, c"s".as_ptr(), 60_000, &raw mut list), MEMLOCK_OK);
        for (expected, bytes) in
            [(MEMLOCK_OK, "a\0b"), (MEMLOCK_DUPLICATE, "a\0b"), (MEMLOCK_OK, "")]
        {
            let answer = memlock_list_insert(list, bytes.as_ptr().cast(), bytes.len(), &raw mut id);
            assert!(
                answer == expected || bytes.is_empty() && answer == MEMLOCK_INVALID,
                "{}",
                sentence()
            );
        }
        assert_eq!(memlock_list_insert(list, null(), 1, null_mut()), MEMLOCK_INVALID);
        assert_eq!(memlock_list_walk(list, &raw mut walk), MEMLOCK_OK);
        assert_eq!(memlock_walk_next(walk, &raw mut id, &raw mut key, &raw mut length), MEMLOCK_OK);
        assert_eq!(std::slice::from_raw_parts(key.cast::<u8>(), length), b"a\0b");
        memlock_list_close(list);
        memlock_client_close(client);
        memlock_walk_close(walk);
    }
}

#[test]
fn a_cancelled_wait_acquires_nothing() {
    let client = open(c"memory://waits");
    let (mut wait, mut held) = (null_mut(), null_mut());
    // SAFETY: as above.
    unsafe {
        assert_eq!(memlock_wait_open(client, &raw mut wait), MEMLOCK_OK);
        assert_eq!(memlock_wait_cancel(wait), MEMLOCK_OK);
        let name = c"name".as_ptr();
        let answer = memlock_mutex_lock_wait(client, name, 30_000, -1, wait, &raw mut held);
        assert!(answer == MEMLOCK_INTERRUPTED && held.is_null());
        memlock_client_close(client);
        memlock_wait_close(wait);
    }
}

#[test]
fn null_is_refused_and_can_be_closed() {
    let mut held = null_mut();
    // SAFETY: NULL is allowed everywhere.
    unsafe {
        assert_eq!(memlock_client_open(c"memory://null".as_ptr(), null_mut()), MEMLOCK_INVALID);
        assert_eq!(memlock_mutex_lock(null(), null(), 0, 0, &raw mut held), MEMLOCK_INVALID);
        assert_eq!(memlock_unlock(null_mut()), MEMLOCK_INVALID);
        assert_eq!(memlock_lock_fence(null(), null_mut()), MEMLOCK_INVALID);
        assert_eq!(memlock_semaphore_open(null(), null(), 0, 0, null_mut()), MEMLOCK_INVALID);
        assert_eq!(memlock_permit_release(null_mut()), MEMLOCK_INVALID);
        memlock_semaphore_close(null_mut());
        memlock_client_close(null_mut());
        memlock_list_close(null_mut());
        memlock_walk_close(null_mut());
        memlock_wait_close(null_mut());
    }
    assert!(sentence().contains("NULL"));
}
