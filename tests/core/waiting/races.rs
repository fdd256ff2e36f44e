//! The races of the table at the head of `memlock_core::wait`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use memlock_core::notify::{Reach, WakeAddress};
use memlock_core::store::Op;
use memlock_core::wait::entries::{self, Request};

use memlock_tests::assert_safe;
use memlock_tests::cost::usual_cost;
use memlock_tests::frozen::Frozen;
use memlock_tests::launch;
use memlock_tests::stopwatch::Stopwatch;

use super::bench::{
    Bench, Fate, LEASE, gets, in_line, lock, one_of, release, unlock, until, waiter,
};

#[test]
fn a_release_at_any_step_of_joining_is_not_missed() {
    for step in 0..9 {
        let bench = Bench::new();
        let holder = Arc::new(Mutex::new(Some(lock(&bench.client()))));
        let (mut ops, held) = (0, Arc::clone(&holder));
        let client = bench.hooked(Frozen::clock(), move |_| {
            if ops == step {
                release(&held);
            }
            ops += 1;
            Fate::Done
        });
        let waiter = waiter(&client);
        // Joining has fewer steps than that: then it happens while the waiter sleeps.
        until(|| holder.lock().unwrap().is_none() || !bench.waiters().is_empty());
        if step == 8 {
            bench.until_marked();
            release(&holder);
        }
        unlock(gets(&waiter));
        until(|| bench.entries().is_empty());
    }
}

#[test]
fn a_releaser_that_dies_before_it_wakes_is_noticed() {
    let bench = Bench::new();
    let holder = lock(&bench.client());
    let waiters = [waiter(&bench.client()), waiter(&bench.client())];
    bench.until_waiting(2);
    // Its `md` arrived, and then nothing more.
    bench.delete(&bench.lock);
    unlock(one_of(&waiters));
    unlock(one_of(&waiters));
    drop(holder);
}

#[test]
fn a_dead_head_is_passed() {
    let bench = Bench::new();
    let holder = lock(&bench.client());
    bench.add_dead("127.0.0.1:9", 1..=3);
    let waiter = waiter(&bench.frozen());
    bench.until_seen(4);
    // The releaser finds them dead, and wakes the next waiter.
    unlock(holder);
    unlock(gets(&waiter));
    until(|| bench.entries().is_empty());
}

#[test]
fn a_head_that_died_elsewhere_is_noticed() {
    let bench = Bench::new();
    let holder = lock(&bench.client());
    bench.add_dead("192.0.2.1:9", 1..=1);
    let waiter = waiter(&bench.client());
    bench.until_seen(2);
    // The dead waiter is woken in vain, and removed; the next may remove its own entry at any time.
    unlock(holder);
    until(|| bench.waiters().len() <= 1);
    unlock(gets(&waiter));
    until(|| bench.entries().is_empty());
}

#[test]
fn a_courteous_process_waits_for_the_dead_for_a_moment_only() {
    let bench = Bench::new();
    let client = bench.client();
    let mut holder = Some(lock(&client));
    bench.add_dead("192.0.2.1:9", 1..=6);
    // A waiter came and went, so that the holder knows of the queue.
    let gone =
        bench.client().mutex("m", LEASE).unwrap().lock_for(Duration::from_millis(20)).unwrap();
    assert!(gone.is_none());
    // Each release that looks at the queue takes one of them off. A busy machine makes some of them
    // slow.
    let mut least = Duration::MAX;
    launch::until("all of them are taken off", || {
        if bench.waiters().is_empty() {
            return true;
        }
        holder.take().into_iter().for_each(unlock);
        let watch = Stopwatch::start();
        holder = Some(lock(&client));
        least = least.min(watch.elapsed());
        false
    });
    assert!(least < Duration::from_millis(800), "{least:?}");
    holder.into_iter().for_each(unlock);
    // A process that is alone waits for no other.
    unlock(lock(&client));
    let cost = usual_cost(|| {
        let before = bench.server.commands();
        unlock(lock(&client));
        bench.server.commands() - before
    });
    assert_eq!(cost, 2 + bench.server.stamps(), "it goes straight ahead");
    assert!(bench.entries().is_empty());
}

#[test]
fn lost_wake_ups_cost_time_and_nothing_else() {
    let bench = Bench::new();
    let client = bench.client();
    for round in 0..4 {
        let (held, waiter) = bench.waited_for(&client);
        // Its listener works, but the queue names another address.
        let address = WakeAddress::parse(b"127.0.0.1:9");
        let line = entries::line(address, bench.waiters()[0], Request::default());
        assert!(bench.server.plain().set(bench.queue.as_str(), line, 60));
        unlock(held);
        unlock(gets(&waiter));
        assert_eq!(client.reach(), Reach::Unreachable, "round {round}");
        until(|| bench.entries().is_empty());
    }
}

#[test]
fn a_woken_waiter_that_missed_is_the_next() {
    let bench = Bench::new();
    let barger = bench.client();
    let (barged, won) = mpsc::channel();
    let mut tries = 0;
    let first = bench.hooked(Frozen::clock(), move |op| {
        if let Op::Add { key, .. } = op
            && key.as_str() == "lock:m"
        {
            tries += 1;
            if tries == 2 {
                // It was woken, and another client is faster.
                barged
                    .send(barger.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap())
                    .unwrap();
            }
        }
        Fate::Done
    });
    let (holder, first) = bench.waited_for(&first);
    let second = waiter(&bench.frozen());
    bench.until_waiting(2);
    unlock(holder);
    let barger = gets(&won);
    // It has joined in front again. The releaser may not have removed an entry yet.
    bench.until_waiting(2);
    // The barger took a free lock and is notified of waiters.
    bench.until_marked();
    unlock(barger);
    let got = gets(&first);
    let earlier = got.fence();
    unlock(got);
    let got = gets(&second);
    assert_safe!(got.fence() > earlier, "the fence did not rise");
    unlock(got);
}

#[test]
fn a_lost_queue_is_built_anew() {
    let bench = Bench::new();
    let client = bench.client();
    let mut holder = lock(&client);
    let waiters = [waiter(&bench.client()), waiter(&bench.client()), waiter(&bench.client())];
    bench.until_seen(3);
    bench.delete(&bench.queue);
    // Whether the holder goes now or later, all of them get it.
    for _ in 0..3 {
        unlock(holder);
        holder = one_of(&waiters);
    }
    unlock(holder);
    until(|| bench.entries().is_empty());
}

#[test]
fn a_wake_up_that_comes_too_late_is_passed_on() {
    for step in 0..4 {
        let bench = Bench::new();
        let holder = Arc::new(Mutex::new(Some(lock(&bench.client()))));
        let leaving = Arc::new(AtomicUsize::new(usize::MAX));
        let (held, left) = (Arc::clone(&holder), Arc::clone(&leaving));
        // The waiter does not poll: it would find the lock free.
        let first = bench.hooked(Frozen::clock(), move |_| {
            match left.load(Ordering::SeqCst) {
                usize::MAX => {}
                0 => {
                    release(&held);
                    left.store(usize::MAX, Ordering::SeqCst);
                }
                more => left.store(more - 1, Ordering::SeqCst),
            }
            Fate::Done
        });
        let first = in_line(&first);
        bench.until_seen(1);
        let second = waiter(&bench.frozen());
        bench.until_waiting(2);
        leaving.store(step, Ordering::SeqCst);
        first.cancel.cancel();
        first.is_interrupted();
        // Leaving took fewer steps than that.
        release(&holder);
        unlock(gets(&second));
        until(|| bench.entries().is_empty());
    }
}
