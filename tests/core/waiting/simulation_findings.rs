//! What the simulation found, kept as tests of the real thing.

use memlock_tests::frozen::Frozen;
use memlock_tests::intercepted::intercepted;

use super::bench::*;
use crate::bench::lost;
use memlock_core::clock::{Clock, SystemClock};
use memlock_core::store::{Op, Reply, Store};
use memlock_core::{Client, Extension, Release, SetUp};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn a_lock_that_was_lost_goes_to_the_next_in_the_queue() {
    for extending in [false, true] {
        let bench = Bench::new();
        let (mut holder, waiter) = bench.waited_for(&bench.frozen());
        bench.delete(&bench.lock);
        if extending {
            assert_eq!(holder.extend(LEASE).unwrap(), Extension::Lost);
        }
        assert_eq!(holder.unlock().unwrap(), Release::Lost);
        unlock(gets(&waiter));
    }
}

#[test]
fn a_wake_up_for_a_place_that_could_not_be_given_back_is_heeded() {
    let bench = Bench::new();
    let holder = lock(&bench.client());
    let queue = bench.queue.clone();
    let stuck = Arc::new(AtomicBool::new(true));
    let losing = Arc::clone(&stuck);
    let client = bench.hooked(Frozen::clock(), move |op| match op {
        Op::CompareAndSet { key, .. } if losing.load(Ordering::SeqCst) && **key == queue => {
            Fate::RequestLost
        }
        _ => Fate::Done,
    });
    let first = in_line(&client);
    bench.until_seen(1);
    client.cancel_waits();
    first.is_interrupted();
    assert_eq!(bench.waiters().len(), 1, "its place was given back after all");
    stuck.store(false, Ordering::SeqCst);
    let second = waiter(&client);
    bench.until_waiting(2);
    // The holder wakes the first entry, which has no waiter any more.
    unlock(holder);
    unlock(gets(&second));
    until(|| bench.entries().is_empty());
}

#[test]
fn a_session_that_was_torn_down_does_not_come_back() {
    let bench = Bench::new();
    let mut other = bench.client().distinct_list("s").unwrap();
    let theirs = Arc::new(Mutex::new(other.clone()));
    let (handle, sets) = (Arc::clone(&theirs), AtomicUsize::new(0));
    let client = bench.hooked(Arc::new(SystemClock), move |op| match op {
        Op::Add { key, .. }
            if key.as_str() == "list:s" && sets.fetch_add(1, Ordering::SeqCst) == 0 =>
        {
            Fate::ReplyLost
        }
        // The answer was lost; before it is looked for, another client joins the session, and ends
        // it.
        Op::Get { .. } if sets.load(Ordering::SeqCst) == 1 => {
            sets.store(2, Ordering::SeqCst);
            let mut handle = handle.lock().unwrap();
            assert_eq!(handle.set_up(LEASE).unwrap(), SetUp::Joined);
            assert!(handle.tear_down().unwrap());
            Fate::Done
        }
        _ => Fate::Done,
    });
    let mut list = client.distinct_list("s").unwrap();
    assert_eq!(list.set_up(LEASE).unwrap(), SetUp::Created);
    assert!(list.insert("a").unwrap().is_some());
    assert_eq!(theirs.lock().unwrap().insert("b").unwrap(), None, "that session is over");
    assert_eq!(other.set_up(LEASE).unwrap(), SetUp::Joined);
}

#[test]
fn a_holder_stops_believing_before_a_late_timer_can_end_its_item() {
    let bench = Bench::new();
    let before = SystemClock.now();
    let lock = lock(&bench.frozen());
    assert!(lock.deadline() <= SystemClock.now() + (LEASE - Duration::from_millis(10)));
    assert!(lock.deadline() >= before + (LEASE - Duration::from_millis(10)));
    unlock(lock);
}

#[test]
fn a_waiter_that_leaves_notifies_a_holder_that_came_in_between() {
    let bench = Bench::new();
    let _holder = lock(&bench.client());
    let going = in_line(&bench.frozen());
    bench.until_seen(1);
    // As if the holder had released it, and woken a waiter that leaves: a newcomer was faster, and
    // does not know of any queue.
    bench.delete(&bench.lock);
    let newcomer = lock(&bench.client());
    going.cancel.cancel();
    going.is_interrupted();
    bench.until_marked();
    unlock(newcomer);
}

/// A server that loses the item between the two commands of the second batch, whose first reply was
/// lost.
fn evicting(server: Arc<dyn Store>) -> Arc<dyn Store> {
    let batches = AtomicUsize::new(0);
    intercepted(server, move |server, route, ops| {
        let replies = match batches.fetch_add(1, Ordering::SeqCst) {
            0 => {
                server.run(route, ops)?;
                return Err(lost());
            }
            1 => {
                let mut replies = server.run(route, &ops[..1])?;
                if let [Reply::Value(item)] = &server.run(route, &ops[1..2])?[..] {
                    let Op::Get { key, .. } = ops[1] else { panic!("{:?}", ops[1]) };
                    server.run(route, &[Op::Delete { key, version: item.version }])?;
                }
                replies.extend(server.run(route, &ops[1..])?);
                replies
            }
            _ => server.run(route, ops)?,
        };
        Ok(replies)
    })
}

#[test]
fn a_lock_that_no_other_client_has_had_is_not_called_busy() {
    let bench = Bench::new();
    let client = Client::with_store(evicting(connect(&bench.server)), Arc::new(SystemClock));
    assert!(client.mutex("m", LEASE).unwrap().try_lock().unwrap().is_some());
}
