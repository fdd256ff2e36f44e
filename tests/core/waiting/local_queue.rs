//! The waiters of one process: their order, their hand-overs, and what these leave to others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use memlock_core::clock::SystemClock;
use memlock_core::store::Op;
use memlock_core::{Client, ErrorKind, Release};

use memlock_tests::assert_safe;
use memlock_tests::cost::usual_cost;

use super::bench::{Bench, Fate, LEASE, gets, in_line, lock, unlock, until, waiter};

#[test]
fn a_hand_over_is_one_command_with_a_token_a_lease_and_a_fence_of_its_own() {
    let bench = Bench::new();
    // On a slow machine, a slow reply is checked by one more command, and a process's turn ends.
    let client = bench.frozen();
    let cost = usual_cost(|| hand_over_to_three(&bench, &client));
    assert_eq!(cost, 1 + bench.server.stamps());
}

/// The commands of the cheapest hand-over but for the first, which finds out that there are
/// waiters.
fn hand_over_to_three(bench: &Bench, client: &Client) -> u64 {
    let mut holder = lock(client);
    let waiters: Vec<_> = (0..4).map(|_| in_line(client)).collect();
    assert_eq!(bench.waiters().len(), 1, "one of them stands in the queue for all");
    let mut costs = Vec::new();
    for waiter in &waiters {
        let (fence, token) = (holder.fence(), holder.token());
        let before = bench.server.commands();
        unlock(holder);
        holder = waiter.gets();
        costs.push(bench.server.commands() - before);
        assert_safe!(holder.fence() > fence && holder.token() != token, "the fence did not rise");
        assert!(holder.remaining() > LEASE - Duration::from_secs(5), "{:?}", holder.remaining());
    }
    let owner = client.mutex("m", LEASE).unwrap().owner().unwrap().unwrap();
    assert_eq!(owner.token(), holder.token().to_string());
    unlock(holder);
    assert!(bench.waiters().is_empty(), "the last one takes their entry off");
    costs.split_off(1).into_iter().min().unwrap()
}

#[test]
fn a_process_hands_over_so_often_and_then_it_is_anothers_turn() {
    // The window that was going on, and the one for which the first was in the queue before it;
    // each may end with one more waiter that was woken. On a busy machine the other process may
    // come too late for its turn: then it is tried again.
    let tries: Vec<usize> = std::iter::repeat_with(turns_before_another_process).take(8).collect();
    assert!(tries.iter().any(|turns| *turns <= 2 * (8 + 2)), "so many were before it: {tries:?}");
}

/// How often a crowd in one process has a lock before the waiter of another process, that stands
/// behind one of them, has it.
fn turns_before_another_process() -> usize {
    let bench = Bench::new();
    let client = bench.client();
    let holder = lock(&client);
    let turns = Arc::new(AtomicUsize::new(0));
    let first = in_line(&client);
    let other = waiter(&bench.frozen());
    bench.until_waiting(2);
    // As long as the other one waits, there are always more of us.
    let stop = Arc::new(AtomicBool::new(false));
    let crowd: Vec<_> = (0..6)
        .map(|_| {
            let (client, turns, stop) = (client.clone(), Arc::clone(&turns), Arc::clone(&stop));
            thread::spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let held = lock(&client);
                    turns.fetch_add(1, Ordering::SeqCst);
                    // Processes that hold it for a moment only get windows of another kind.
                    thread::sleep(Duration::from_micros(300));
                    unlock(held);
                }
            })
        })
        .collect();
    unlock(holder);
    unlock(first.gets());
    let others = gets(&other);
    let before_it = turns.load(Ordering::SeqCst);
    stop.store(true, Ordering::SeqCst);
    unlock(others);
    crowd.into_iter().for_each(|thread| thread.join().unwrap());
    until(|| bench.waiters().is_empty());
    before_it
}

#[test]
fn a_waiter_that_gives_up_leaves_the_list_in_order() {
    let bench = Bench::new();
    // A process hands over for a tenth of a second only, which a slow machine would exceed.
    let client = bench.frozen();
    let holder = lock(&client);
    let mut waiters: Vec<_> = (0..4).map(|_| in_line(&client)).collect();
    let place = bench.waiters();
    let other = waiter(&bench.frozen());
    bench.until_waiting(2);
    // One in the middle, and then the first, whose place in the queue the next one takes over.
    for gone in [1, 0] {
        waiters[gone].cancel.cancel();
        waiters[gone].is_interrupted();
    }
    assert_eq!(bench.waiters()[0], place[0]);
    let (third, fourth) = (waiters.remove(2), waiters.remove(2));
    // While it takes over the place, nothing is handed off to it: it would use the place up, and the
    // fourth would queue behind the other process.
    until(|| third.is_asleep());
    let mut last = holder.fence();
    unlock(holder);
    for waiter in [third, fourth] {
        let held = waiter.gets();
        assert_safe!(held.fence() > last, "the fence did not rise");
        last = held.fence();
        unlock(held);
    }
    let held = gets(&other);
    assert_safe!(held.fence() > last, "the fence did not rise");
    unlock(held);
    until(|| bench.waiters().is_empty());
}

#[test]
fn a_hand_over_that_is_lost_on_the_way_is_found_out() {
    for fate in [Fate::RequestLost, Fate::ReplyLost] {
        for times in 1..=3 {
            let bench = Bench::new();
            let tried = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&tried);
            let client = bench.hooked(Arc::new(SystemClock), move |op| {
                let hand_off =
                    matches!(op, Op::CompareAndSet { key, .. } if key.as_str() == "lock:m");
                if hand_off && counted.fetch_add(1, Ordering::SeqCst) < times {
                    return fate;
                }
                Fate::Done
            });
            let mut holder = lock(&client);
            let waiter = in_line(&client);
            let fence = holder.fence();
            match holder.unlock() {
                Ok(Release::Released) => {
                    // On a busy machine the waiter may be awake, and is handed nothing.
                    let was_tried = tried.load(Ordering::SeqCst) > 0;
                    assert!(times < 3 || fate == Fate::ReplyLost || !was_tried);
                }
                Ok(other) => panic!("{other:?}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unknown);
                    assert_eq!(times, 3, "{fate:?}: twice is found out");
                    // It may be asked for again, and then it is known.
                    assert_ne!(holder.unlock().unwrap(), Release::NotHeld);
                }
            }
            let held = waiter.gets();
            assert_safe!(held.fence() > fence, "the fence did not rise");
            unlock(held);
            until(|| bench.waiters().is_empty());
            assert!(client.mutex("m", LEASE).unwrap().owner().unwrap().is_none());
        }
    }
}
