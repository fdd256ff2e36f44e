//! Early wake-ups: a waiter that was woken knows the next one, and wakes it while its own release
//! is on its way.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use memlock_core::clock::Clock;
use memlock_core::store::{Op, Order};
use memlock_core::{Client, Lock};

use memlock_tests::frozen::Frozen;
use memlock_tests::{assert_safe, assert_safe_eq};

use super::bench::{Bench, Fate, PATIENCE, gets, lock, unlock, until, waiter};

/// A waiter that is nothing but a listener.
struct FakeListener {
    socket: UdpSocket,
    id: u64,
}

impl FakeListener {
    fn new(id: u64) -> FakeListener {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        FakeListener { socket, id }
    }

    fn stands_in(&self, bench: &Bench) {
        bench.add_dead(&self.socket.local_addr().unwrap().to_string(), self.id..=self.id);
    }

    /// Waits until it is woken.
    fn is_woken(&self) {
        let mut datagram = [0; 1000];
        let length = self.socket.recv(&mut datagram).expect("it was not woken");
        let text = str::from_utf8(&datagram[..length]).unwrap();
        assert_eq!(text.split(' ').nth(1), Some(format!("{:016x}", self.id).as_str()), "{text}");
    }

    fn is_silent(&self) {
        self.socket.set_nonblocking(true).unwrap();
        assert!(self.socket.recv(&mut [0; 1000]).is_err(), "it was woken twice, or for nothing");
    }
}

/// How long a lock is held that is not held for a moment only.
const HELD: Duration = Duration::from_millis(5);

/// A lock that was acquired by a waiter whose wake-up named `fake`, and was held for so long.
fn told_of(
    bench: &Bench,
    order: Order,
    fake: &FakeListener,
    held: Duration,
    hook: impl FnMut(&Op<'_>) -> Fate + Send + 'static,
) -> Lock {
    let clock = Frozen::clock();
    let client = bench.ordered(order, Arc::<Frozen>::clone(&clock), hook);
    let (holder, waiter) = bench.waited_for(&client);
    fake.stands_in(bench);
    unlock(holder);
    let lock = gets(&waiter);
    // The releaser has taken it off.
    bench.until_waiting(1);
    clock.advance(held);
    lock
}

fn is_release(op: &Op<'_>) -> bool {
    matches!(op, Op::Delete { key, .. } if key.as_str() == "lock:m")
}

#[test]
fn the_next_one_is_woken_before_the_release_is_answered() {
    let (bench, fake) = (Bench::new(), Arc::new(FakeListener::new(7)));
    let (next, (done, released)) = (Arc::clone(&fake), mpsc::channel());
    let lock = told_of(&bench, Order::Sent, &fake, HELD, move |op| {
        if is_release(op) {
            next.is_woken();
            done.send(()).unwrap();
        }
        Fate::Done
    });
    unlock(lock);
    released.try_recv().unwrap();
    fake.is_silent();
    assert_eq!(bench.entries(), b"");
}

#[test]
fn the_waiter_that_is_next_by_now_is_woken_as_well() {
    let (bench, gone, next) = (Bench::new(), FakeListener::new(7), FakeListener::new(8));
    let lock = told_of(&bench, Order::Sent, &gone, HELD, |_| Fate::Done);
    bench.delete(&bench.queue);
    next.stands_in(&bench);
    unlock(lock);
    gone.is_woken();
    next.is_woken();
    next.is_silent();
    assert_eq!(bench.entries(), b"");
}

#[test]
fn on_a_store_that_answers_late_and_after_a_moments_hold_the_release_comes_first() {
    for (order, held) in [(Order::Open, HELD), (Order::Sent, Duration::ZERO)] {
        let (bench, fake) = (Bench::new(), Arc::new(FakeListener::new(7)));
        let next = Arc::clone(&fake);
        let lock = told_of(&bench, order, &fake, held, move |op| {
            if is_release(op) {
                next.is_silent();
            }
            Fate::Done
        });
        unlock(lock);
        fake.socket.set_nonblocking(false).unwrap();
        fake.is_woken();
    }
}

/// The attempts of a waiter that is woken ahead of a release, and how often it joins again. The
/// release is carried out just before the first operation for which `is_late`, given also the number
/// of attempts, is true. Each attempt takes `delay`.
fn overtaking(delay: Duration, is_late: fn(&Op<'_>, usize) -> bool) -> (usize, usize) {
    let bench = Bench::new();
    let clock = Frozen::clock();
    let ((late, waited), (done, released)) = (mpsc::channel(), mpsc::channel());
    let mut is_sent = false;
    let first = bench.ordered(Order::Close, Arc::<Frozen>::clone(&clock), move |op| {
        // What follows the release in its batch.
        if is_sent {
            let _ = done.send(());
        }
        if is_release(op) {
            waited.recv_timeout(PATIENCE).expect("the other one did not try");
            is_sent = true;
        }
        Fate::Done
    });
    let (holder, first) = bench.waited_for(&first);
    let counts = Arc::new(Mutex::new((0, 0)));
    let counted = Arc::clone(&counts);
    let its_clock = Frozen::clock();
    let second =
        waiter(&bench.ordered(Order::Close, Arc::<Frozen>::clone(&its_clock), move |op| {
            let mut counts = counted.lock().unwrap();
            match op {
                Op::Add { key, .. } if key.as_str() == "lock:m" => {
                    counts.0 += 1;
                    its_clock.advance(delay);
                }
                Op::Prepend { .. } => counts.1 += 1,
                _ => {}
            }
            if is_late(op, counts.0) {
                late.send(()).unwrap();
                released.recv_timeout(PATIENCE).expect("it was not released");
            }
            Fate::Done
        }));
    // One that still joins may find the lock free and take it.
    bench.until_joined(2);
    unlock(holder);
    let lock = gets(&first);
    bench.until_waiting(1);
    clock.advance(HELD);
    *counts.lock().unwrap() = (0, 0);
    unlock(lock);
    unlock(gets(&second));
    assert_eq!(bench.entries(), b"");
    *counts.lock().unwrap()
}

#[test]
fn a_waiter_that_overtakes_the_release_tries_again() {
    let (attempts, joins) =
        overtaking(Duration::ZERO, |op, attempts| matches!(op, Op::Add { .. }) && attempts == 4);
    assert_eq!((attempts, joins), (4, 0));
}

#[test]
fn a_waiter_that_overtakes_a_slow_release_joins_again_in_front() {
    let joins_again = |op: &Op<'_>, _| matches!(op, Op::Prepend { .. });
    assert_eq!(overtaking(Duration::ZERO, joins_again), (8, 1));
    // At a slow server a release is not on its way for several attempts.
    assert_eq!(overtaking(Duration::from_millis(10), joins_again), (2, 1));
}

#[test]
fn a_holder_whose_entry_is_still_there_wakes_the_one_behind_it_too() {
    let (bench, before, behind) = (Bench::new(), FakeListener::new(7), FakeListener::new(8));
    let (holder, waiter) = bench.waited_for(&bench.frozen());
    let ours = bench.entries();
    unlock(holder);
    let lock = gets(&waiter);
    until(|| bench.entries().is_empty());
    // As if no releaser had written yet: neither the waker of the one before us, nor that one,
    // which woke us.
    before.stands_in(&bench);
    bench.append(&ours);
    behind.stands_in(&bench);
    unlock(lock);
    before.is_woken();
    behind.is_woken();
    // Otherwise it would do the same when it releases, and the one before it would never come
    // first.
    until(|| bench.entries().is_empty());
}

/// Two threads of each of some clients, which do not poll, take turns. Some hold the lock for a
/// moment only, by their own clock: their waker may not have written yet.
fn crowd(rounds: usize) {
    let bench = Bench::new();
    let inside = AtomicUsize::new(0);
    let (done, ended) = mpsc::channel();
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let clock = Frozen::clock();
            let its: Arc<dyn Clock> = Arc::<Frozen>::clone(&clock);
            (Client::with_clock(&bench.server.url(), its).unwrap(), clock)
        })
        .collect();
    thread::scope(|scope| {
        for (number, (client, clock)) in clients.iter().chain(&clients).enumerate() {
            let (inside, done) = (&inside, done.clone());
            scope.spawn(move || {
                let mut fence = 0;
                for round in 0..rounds {
                    // Between two locks: a process that comes back at once gets batch windows, in
                    // which no waiter is woken.
                    clock.advance(Duration::from_millis(1));
                    let held = lock(client);
                    assert_safe_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "holders at once");
                    assert_safe!(held.fence() > fence, "the fence did not rise");
                    fence = held.fence();
                    if !(number + round).is_multiple_of(3) {
                        clock.advance(Duration::from_micros(300));
                    }
                    inside.fetch_sub(1, Ordering::SeqCst);
                    unlock(held);
                }
                done.send(()).unwrap();
            });
        }
        for _ in 0..2 * clients.len() {
            if ended.recv_timeout(2 * PATIENCE).is_err() {
                // The threads cannot be ended otherwise, as they wait for ever.
                clients.iter().for_each(|(client, _)| client.cancel_waits());
                let queue = bench.entries();
                panic!("a waiter was not woken: {:?}", String::from_utf8_lossy(&queue));
            }
        }
    });
    assert_eq!(bench.entries(), b"");
}

#[test]
fn early_wake_ups_lose_no_waiter() {
    crowd(60);
}

#[test]
#[ignore = "real time: make prove"]
fn very_many_early_wake_ups_lose_no_waiter() {
    crowd(1000);
}
