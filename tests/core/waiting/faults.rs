//! Waiting while something else goes wrong: orphaned grants, full servers, panics.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memlock_core::clock::SystemClock;
use memlock_core::store::{Op, Reply, Returns, Route};
use memlock_core::{Client, ErrorKind, Release, Wait, Waited};
use memlock_tests::launch;
use memlock_tests::server::Memcached;

use memlock_tests::frozen::Frozen;
use memlock_tests::intercepted::intercepted;

use super::bench::{
    Bench, Fate, LEASE, PATIENCE, connect, gets, in_line, lock, unlock, until, waiter,
};

fn is_add_of_the_lock(op: &Op<'_>) -> bool {
    matches!(op, Op::Add { key, .. } if key.as_str() == "lock:m")
}

#[test]
fn a_cancellation_during_the_first_attempt_is_noticed() {
    let bench = Bench::new();
    let held = lock(&bench.client());
    let (slot, mut first) = (Arc::new(Mutex::new(None::<Client>)), true);
    let there = Arc::clone(&slot);
    let client = bench.hooked(Frozen::clock(), move |_| {
        if std::mem::take(&mut first) {
            there.lock().unwrap().as_ref().unwrap().cancel_waits();
        }
        Fate::Done
    });
    *slot.lock().unwrap() = Some(client.clone());
    // No time passes for it.
    let waited = client.mutex("m", LEASE).unwrap().lock_with(&Wait::FOREVER).unwrap();
    assert!(matches!(waited, Waited::Interrupted));
    slot.lock().unwrap().take();
    unlock(held);
}

#[test]
fn a_late_request_of_a_waiter_that_was_served_is_taken_off() {
    let bench = Bench::new();
    let lost = Arc::new(AtomicUsize::new(0));
    let (losing, late) = (Arc::clone(&lost), Arc::new(Mutex::new(None)));
    let kept = Arc::clone(&late);
    let client = bench.hooked(Arc::new(SystemClock), move |op| match op {
        Op::Add { value, expiry, .. }
            if is_add_of_the_lock(op) && losing.load(Ordering::SeqCst) > 0 =>
        {
            losing.fetch_sub(1, Ordering::SeqCst);
            *kept.lock().unwrap() = Some((value.to_vec(), *expiry));
            Fate::RequestLost
        }
        _ => Fate::Done,
    });
    let held = lock(&client);
    lost.store(3, Ordering::SeqCst);
    let waiting = in_line(&client);
    until(|| lost.load(Ordering::SeqCst) == 0);
    bench.until_seen(1);
    unlock(held);
    unlock(waiting.gets());
    // Now the first request arrives after all.
    let (value, expiry) = late.lock().unwrap().take().unwrap();
    let returns = Returns::Version;
    let add = Op::add(&bench.lock, &value, expiry, returns);
    assert!(matches!(
        bench.store.run(Route::of(&bench.lock), &[add]).unwrap()[0],
        Reply::Stored(_)
    ));
    let again = client.mutex("m", LEASE).unwrap().lock_for(PATIENCE).unwrap();
    unlock(again.expect("the client takes off what it may have left"));
}

#[test]
fn a_stray_does_not_keep_the_waiters_of_its_own_client_out() {
    let bench = Bench::new();
    let down = Arc::new(AtomicBool::new(false));
    let is_down = Arc::clone(&down);
    let client = bench.hooked(Arc::new(SystemClock), move |op| {
        let of_the_lock =
            matches!(op, Op::Delete { .. } | Op::CompareAndSet { .. } | Op::Get { .. });
        if of_the_lock && is_down.load(Ordering::SeqCst) { Fate::RequestLost } else { Fate::Done }
    });
    let mut held = lock(&client);
    let waiting = waiter(&client);
    bench.until_seen(1);
    down.store(true, Ordering::SeqCst);
    assert_eq!(held.unlock().unwrap_err().kind(), ErrorKind::Unknown);
    assert_eq!(held.remaining(), Duration::ZERO, "after that it is not certainly ours");
    held.abandon();
    down.store(false, Ordering::SeqCst);
    // Not only when the lease has ended.
    unlock(gets(&waiting));
}

#[test]
fn a_holder_whose_grant_was_read_back_knows_of_its_waiters() {
    let bench = Bench::new();
    let (other, waiting) = (bench.frozen(), Arc::new(Mutex::new(None)));
    let (slot, mut adds) = (Arc::clone(&waiting), 0);
    let mut plain = bench.server.plain();
    let client = bench.hooked(Arc::new(SystemClock), move |op| {
        adds += usize::from(is_add_of_the_lock(op));
        match (adds, is_add_of_the_lock(op)) {
            (1, true) => Fate::ReplyLost,
            (2, true) => {
                // Before it finds out that it has the lock, another waiter has seen that.
                *slot.lock().unwrap() = Some(waiter(&other));
                until(|| plain.get("lock:m").is_some_and(|record| record.ends_with(b" rings")));
                Fate::Done
            }
            _ => Fate::Done,
        }
    });
    unlock(lock(&client));
    let waiting = waiting.lock().unwrap().take().unwrap();
    unlock(gets(&waiting));
}

#[test]
fn a_queue_that_cannot_be_read_does_not_prevent_a_release() {
    let server = Memcached::with_args(&["-I", "4m"]);
    let client = Client::connect(&server.url()).unwrap();
    let mut held = lock(&client);
    // There was a waiter, so that the holder reads the queue; which is larger by then than any that
    // we read.
    let gone = Client::connect(&server.url()).unwrap().mutex("m", LEASE).unwrap();
    assert!(gone.lock_for(Duration::from_millis(20)).unwrap().is_none());
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(launch::START_LIMIT)).unwrap();
    write!(stream, "set lock:m%wait 0 0 {}\r\n", 3 << 19).unwrap();
    stream.write_all(&vec![b'x'; 3 << 19]).unwrap();
    stream.write_all(b"\r\n").unwrap();
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"STORED\r\n");
    assert_eq!(held.unlock().unwrap(), Release::Released);
}

/// memcached appends to any item: the entry is taken out again, and the waiter polls.
#[test]
fn a_waiter_restores_what_another_program_stores_in_place_of_the_queue() {
    let bench = Bench::new();
    let mut plain = bench.server.plain();
    let held = lock(&bench.client());
    assert!(plain.set("lock:m%wait", "theirs", 0));
    let restored = Arc::new(AtomicBool::new(false));
    let (restores, queue) = (Arc::clone(&restored), bench.queue.clone());
    let client = bench.hooked(Arc::new(SystemClock), move |op| {
        if matches!(op, Op::CompareAndSet { key, .. } if **key == queue) {
            restores.store(true, Ordering::SeqCst);
        }
        Fate::Done
    });
    let waiting = waiter(&client);
    until(|| restored.load(Ordering::SeqCst));
    until(|| plain.get("lock:m%wait").unwrap() == b"theirs");
    unlock(held);
    unlock(gets(&waiting));
    assert_eq!(plain.get("lock:m%wait").unwrap(), b"theirs");
}

#[test]
fn a_release_leaves_alone_what_another_program_stores_in_place_of_the_queue() {
    let bench = Bench::new();
    let (held, waiting) = bench.waited_for(&bench.client());
    let mut plain = bench.server.plain();
    assert!(plain.set("lock:m%wait", "theirs", 0));
    unlock(held);
    unlock(gets(&waiting));
    assert_eq!(plain.get("lock:m%wait").unwrap(), b"theirs");
}

#[test]
fn a_panic_in_a_hand_over_leaves_no_waiter_hanging() {
    let bench = Bench::new();
    // Once it is armed, the store panics at a hand-over, once.
    let armed = Arc::new(AtomicBool::new(false));
    let panics = Arc::clone(&armed);
    let store = intercepted(connect(&bench.server), move |inner, route, ops| {
        let hand_off = matches!(ops[0], Op::CompareAndSet { key, .. } if key.as_str() == "lock:m");
        assert!(!(hand_off && panics.swap(false, Ordering::SeqCst)), "a bug");
        inner.run(route, ops)
    });
    // A process hands over for a tenth of a second only, which a slow machine would exceed.
    let client = Client::with_store(store, Frozen::clock());
    let mut held = lock(&client);
    let waiting = in_line(&client);
    // A holder that knows of no waiter deletes the lock instead.
    bench.until_marked();
    armed.store(true, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| held.unlock().map(|_| ()))).is_err());
    assert_eq!(held.unlock().unwrap(), Release::Released);
    unlock(waiting.gets());
}
