//! Plain counters: try, retry, park and release, without leases.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::Answer;
use memlock_tests::assert_safe;
use memlock_tests::doors::{Counter, For};
use memlock_tests::launch::until;
use memlock_tests::stopwatch::Stopwatch;

use crate::bench::{Bench, LONG, WOKEN, answer, is_busy, waits, within};

behaviours! {
    as_many_are_taken_as_there_are
    it_is_set_up_once
    what_nobody_has_set_up_is_not_found
    a_wait_ends_at_its_limit_with_nothing_taken
    all_ways_to_acquire_share_one_number
    parked_waiters_are_served_by_priority_and_in_order
    a_retrying_waiter_finds_what_is_released
    cancelled_waits_take_nothing
    a_parked_waiter_is_woken_by_a_release_in_another_process
    impossible_keys_are_refused
}

fn as_many_are_taken_as_there_are(bench: &Bench) {
    let [one, two] = [bench.open(), bench.open()].map(|door| door.counter("app:permits"));
    assert_eq!(one.set_up(3), Ok(Answer::Ok));
    assert_eq!(two.available(), Ok(3));
    one.try_acquire().unwrap();
    two.retry(For::Never).unwrap();
    two.park(0, For::Never).unwrap();
    assert_eq!(one.available(), Ok(0));
    is_busy(one.try_acquire());
    is_busy(one.retry(For::Never));
    is_busy(one.park(0, For::Never));
    // Whichever client took it.
    one.release().unwrap();
    assert_eq!(two.available(), Ok(1));
    two.try_acquire().unwrap();
    for _ in 0..4 {
        two.release().unwrap();
    }
    assert_eq!(one.available(), Ok(4), "it has no leases, so nobody knows better");
}

fn it_is_set_up_once(bench: &Bench) {
    let [one, two] = [bench.open(), bench.open()].map(|door| door.counter("app:permits"));
    assert_eq!(one.set_up(0), Ok(Answer::Ok));
    assert_eq!(two.set_up(5), Ok(Answer::Exists));
    assert_eq!(two.available(), Ok(0));
}

fn what_nobody_has_set_up_is_not_found(bench: &Bench) {
    let counter = bench.open().counter("app:permits");
    assert_eq!(answer(counter.try_acquire()), Answer::NotFound);
    assert_eq!(answer(counter.release()), Answer::NotFound);
    assert_eq!(answer(counter.available()), Answer::NotFound);
    for wait in [For::Never, For::Ever, LONG] {
        assert_eq!(answer(counter.retry(wait)), Answer::NotFound);
        assert_eq!(answer(counter.park(0, wait)), Answer::NotFound);
    }
}

fn a_wait_ends_at_its_limit_with_nothing_taken(bench: &Bench) {
    let limit = Duration::from_millis(150);
    let counter = bench.open().counter("app:permits");
    assert_eq!(counter.set_up(0), Ok(Answer::Ok));
    for parked in [false, true] {
        within(limit + 2 * WOKEN, || {
            let (began, watch) = (Instant::now(), Stopwatch::start());
            let wait = For::AtMost(limit);
            let outcome = if parked { counter.park(0, wait) } else { counter.retry(wait) };
            assert_eq!(answer(outcome), Answer::TimedOut);
            assert!(began.elapsed() >= limit, "{:?}", began.elapsed());
            watch.elapsed()
        });
    }
    counter.release().unwrap();
    assert_eq!(counter.available(), Ok(1));
}

fn all_ways_to_acquire_share_one_number(bench: &Bench) {
    const PERMITS: u64 = 3;
    let shared = bench.open();
    assert_eq!(shared.counter("app:permits").set_up(PERMITS), Ok(Answer::Ok));
    let (inside, most) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for number in 0..6 {
            let own = bench.open();
            let counter = if number < 3 { &shared } else { &own }.counter("app:permits");
            let (inside, most) = (&inside, &most);
            scope.spawn(move || {
                for turn in 0..10 {
                    match number % 3 {
                        0 => {
                            while counter.try_acquire().is_err() {
                                thread::sleep(Duration::from_micros(500));
                            }
                        }
                        1 => counter.retry(LONG).unwrap(),
                        _ => counter.park(number, LONG).unwrap(),
                    }
                    let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now, Ordering::SeqCst);
                    assert_safe!(now <= PERMITS, "{now} are taken");
                    if turn == 0 {
                        until("it meets another thread", || most.load(Ordering::SeqCst) > 1);
                    }
                    thread::sleep(Duration::from_millis(3));
                    inside.fetch_sub(1, Ordering::SeqCst);
                    counter.release().unwrap();
                }
            });
        }
    });
    assert_eq!(shared.counter("app:permits").available(), Ok(PERMITS));
}

fn parked_waiters_are_served_by_priority_and_in_order(bench: &Bench) {
    let wanted = [(5, 1), (5, 3), (3, 2), (1, 0)];
    // On a busy machine a waiter that looks by itself may find the permit for which another one is
    // being woken.
    let mut orders =
        (0..bench.attempts()).map(|turn| order_of_service(bench, &format!("app:{turn}")));
    assert!(orders.any(|order| order == wanted), "the order was never {wanted:?}");
}

/// Which waiters were served, one after the other: the priority of each, and when it came.
fn order_of_service(bench: &Bench, key: &str) -> Vec<(i64, usize)> {
    let holder = bench.open().counter(key);
    assert_eq!(holder.set_up(0), Ok(Answer::Ok));
    thread::scope(|scope| {
        let mut waiting: Vec<_> = [1, 5, 3, 5]
            .into_iter()
            .enumerate()
            .map(|(number, priority)| {
                let counter = bench.open_sleeper().counter(key);
                let waiter = waits(scope, move || counter.park(priority, LONG).unwrap());
                (priority, number, waiter)
            })
            .collect();
        let mut order = Vec::new();
        while !waiting.is_empty() {
            holder.release().unwrap();
            let mut served = None;
            until("a waiter is served", || {
                served = waiting.iter().position(|(_, _, waiter)| waiter.is_finished());
                served.is_some()
            });
            let (priority, number, waiter) = waiting.remove(served.unwrap());
            waiter.join().unwrap();
            order.push((priority, number));
        }
        order
    })
}

fn a_retrying_waiter_finds_what_is_released(bench: &Bench) {
    let [one, two] = [bench.open(), bench.open()].map(|door| door.counter("app:permits"));
    assert_eq!(one.set_up(0), Ok(Answer::Ok));
    thread::scope(|scope| {
        let waiter = waits(scope, || two.retry(For::Ever));
        one.release().unwrap();
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(one.available(), Ok(0));
}

fn cancelled_waits_take_nothing(bench: &Bench) {
    let (one, two) = (bench.open(), bench.open());
    let counter = one.counter("app:permits");
    assert_eq!(counter.set_up(0), Ok(Answer::Ok));
    thread::scope(|scope| {
        let theirs = [two.counter("app:permits"), two.counter("app:permits")];
        let [retrying, parking] = theirs;
        let waiters = [
            waits(scope, move || answer(retrying.retry(For::Ever))),
            waits(scope, move || answer(parking.park(7, For::Ever))),
        ];
        two.cancel_waits();
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap(), Answer::Interrupted);
        }
    });
    counter.release().unwrap();
    assert_eq!(counter.available(), Ok(1), "nothing of theirs is left in the queue either");
    counter.park(0, LONG).unwrap();
}

fn a_parked_waiter_is_woken_by_a_release_in_another_process(bench: &Bench) {
    if bench.is_of_one_process() {
        return;
    }
    let (elsewhere, _driver) = bench.elsewhere();
    let ours = bench.open_sleeper().counter("app:permits");
    let theirs = elsewhere.counter("app:permits");
    assert_eq!(theirs.set_up(0), Ok(Answer::Ok));
    let hand_over = |waiting: &dyn Counter, releasing: &dyn Counter| {
        thread::scope(|scope| {
            let waiter = waits(scope, || waiting.park(0, For::Ever));
            let watch = Stopwatch::start();
            releasing.release().unwrap();
            waiter.join().unwrap().unwrap();
            watch.elapsed()
        })
    };
    bench.is_woken(|| hand_over(&*ours, &*theirs));
    within(WOKEN, || hand_over(&*theirs, &*ours));
}

fn impossible_keys_are_refused(bench: &Bench) {
    let door = bench.open();
    for bad in ["", "a b", "\u{fc}", &"x".repeat(246)] {
        let counter = door.counter(bad);
        assert_eq!(answer(counter.set_up(1)), Answer::Invalid, "{bad:?}");
        assert_eq!(answer(counter.try_acquire()), Answer::Invalid, "{bad:?}");
        assert_eq!(answer(counter.park(0, For::Ever)), Answer::Invalid, "{bad:?}");
        assert_eq!(answer(counter.release()), Answer::Invalid, "{bad:?}");
    }
}
