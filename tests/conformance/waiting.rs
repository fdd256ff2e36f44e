//! Waiting: the order of waiters, limits and cancellation, also between processes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::Answer;
use memlock_tests::doors::{Door, For, Held, PermitRequest};
use memlock_tests::launch::until;
use memlock_tests::stopwatch::Stopwatch;
use memlock_tests::{assert_safe, assert_safe_eq};

use crate::bench::{Bench, LEASE, LONG, WOKEN, answer, is_busy, lock, waits, within};

behaviours! {
    a_try_never_waits
    a_wait_ends_at_its_limit_with_nothing_held
    a_waiter_gets_what_comes_free
    waiters_of_several_clients_are_served_in_the_order_of_their_coming
    waiters_for_permits_are_served_by_priority_and_in_order
    as_many_waiters_are_woken_as_there_are_permits
    a_wait_can_be_cancelled_and_leaves_nothing_behind
    cancelling_ends_all_waits_of_its_client_and_no_others
    a_waiter_is_woken_when_a_lock_is_taken_away
    a_waiter_is_woken_when_permits_are_added
    a_waiter_is_woken_by_a_release_in_another_process
    threads_of_several_processes_exclude_each_other
}

fn permits(door: &dyn Door, ask: PermitRequest, wait: For) -> Result<Box<dyn Held>, Answer> {
    let semaphore = door.semaphore(b"s", Some(2), LEASE).unwrap();
    semaphore.acquire(ask, wait).map_err(|no| no.answer)
}

fn a_try_never_waits(bench: &Bench) {
    let (one, two) = (bench.open(), bench.open());
    let held = (lock(&*one, b"m"), permits(&*one, PermitRequest::of(2), For::Never).unwrap());
    within(WOKEN, || {
        let watch = Stopwatch::start();
        is_busy(two.lock(b"m", LEASE, For::Never));
        assert_eq!(permits(&*two, PermitRequest::of(1), For::Never).err(), Some(Answer::Busy));
        watch.elapsed()
    });
    drop(held);
}

fn a_wait_ends_at_its_limit_with_nothing_held(bench: &Bench) {
    let limit = Duration::from_millis(150);
    let (one, two) = (bench.open(), bench.open());
    let held = (lock(&*one, b"m"), permits(&*one, PermitRequest::of(2), For::Never).unwrap());
    for of_permits in [false, true] {
        within(limit + 2 * WOKEN, || {
            let (began, watch) = (Instant::now(), Stopwatch::start());
            let timed_out = if of_permits {
                permits(&*two, PermitRequest::of(1), For::AtMost(limit)).err().unwrap()
            } else {
                answer(two.lock(b"m", LEASE, For::AtMost(limit)))
            };
            assert_eq!(timed_out, Answer::TimedOut);
            assert!(began.elapsed() >= limit, "{:?}", began.elapsed());
            watch.elapsed()
        });
    }
    drop(held);
    assert_eq!(one.owner(b"m").unwrap(), None);
    permits(&*one, PermitRequest::of(2), For::Never).unwrap().release().unwrap();
}

fn a_waiter_gets_what_comes_free(bench: &Bench) {
    let (one, two) = (bench.open(), bench.open_sleeper());
    bench.is_woken(|| gets_what_comes_free(&*one, &*two));
}

fn gets_what_comes_free(one: &dyn Door, two: &dyn Door) -> Duration {
    let held = (lock(one, b"m"), permits(one, PermitRequest::of(2), For::Never).unwrap());
    let released = AtomicBool::new(false);
    thread::scope(|scope| {
        let for_lock = waits(scope, || {
            let held = two.lock(b"m", LEASE, For::Ever).unwrap();
            assert_safe!(released.load(Ordering::SeqCst), "granted twice");
            held.release().unwrap();
        });
        let for_permits = waits(scope, || {
            let held = permits(two, PermitRequest::of(2), For::Ever).unwrap();
            assert_safe!(released.load(Ordering::SeqCst), "granted twice");
            held.release().unwrap();
        });
        assert!(!for_lock.is_finished() && !for_permits.is_finished());
        released.store(true, Ordering::SeqCst);
        let watch = Stopwatch::start();
        held.0.release().unwrap();
        held.1.release().unwrap();
        for_lock.join().unwrap();
        for_permits.join().unwrap();
        watch.elapsed()
    })
}

/// Has these asks wait, one after the other and each with a client of its own, for what `hold`
/// holds, and gives the order in which they got it. Each releases after the release before it is
/// done: of two that are under way, the second may wake a waiter too many.
fn order_of_service<A: Copy + Send + Sync, const N: usize>(
    bench: &Bench,
    hold: Box<dyn Held>,
    asks: [A; N],
    acquire: impl Fn(&dyn Door, A) -> Box<dyn Held> + Sync,
) -> Vec<usize> {
    let (served, released) = (std::sync::Mutex::new(Vec::new()), AtomicUsize::new(0));
    let release = |held: Box<dyn Held>| {
        held.release().unwrap();
        released.fetch_add(1, Ordering::SeqCst);
    };
    thread::scope(|scope| {
        for (number, ask) in asks.into_iter().enumerate() {
            let door = bench.open_sleeper();
            let (served, acquire, release, released) = (&served, &acquire, &release, &released);
            let _ = waits(scope, move || {
                let held = acquire(&*door, ask);
                let turn = {
                    let mut served = served.lock().unwrap();
                    served.push(number);
                    served.len()
                };
                until("those before have released", || released.load(Ordering::SeqCst) == turn);
                release(held);
            });
        }
        release(hold);
    });
    served.into_inner().unwrap()
}

/// On a busy machine a waiter that looks by itself may find what another one is being woken for.
fn comes_in_order(bench: &Bench, wanted: &[usize], attempt: impl FnMut(usize) -> Vec<usize>) {
    let attempts = (0..bench.attempts()).map(attempt);
    let orders: Vec<_> = attempts.take_while(|order| order != wanted).collect();
    assert!(orders.len() < bench.attempts(), "never {wanted:?}, but {orders:?}");
}

fn waiters_of_several_clients_are_served_in_the_order_of_their_coming(bench: &Bench) {
    let holder = bench.open();
    comes_in_order(bench, &[0, 1, 2, 3], |turn| {
        let name = format!("m{turn}");
        let hold = lock(&*holder, name.as_bytes());
        order_of_service(bench, hold, [(); 4], |door, ()| {
            door.lock(name.as_bytes(), LEASE, LONG).unwrap()
        })
    });
}

fn waiters_for_permits_are_served_by_priority_and_in_order(bench: &Bench) {
    let holder = bench.open();
    comes_in_order(bench, &[4, 1, 3, 0, 2], |turn| {
        let name = format!("s{turn}");
        let acquire = |door: &dyn Door, priority| {
            let one = door.semaphore(name.as_bytes(), Some(1), LEASE).unwrap();
            one.acquire(PermitRequest { ages: false, ..PermitRequest::at(priority) }, LONG).unwrap()
        };
        let hold = acquire(&*holder, 0);
        order_of_service(bench, hold, [-5, 0, -5, 0, i64::MAX], acquire)
    });
}

fn as_many_waiters_are_woken_as_there_are_permits(bench: &Bench) {
    let holder = bench.open();
    bench.is_woken(|| {
        let held = permits(&*holder, PermitRequest::of(2), For::Never).unwrap();
        thread::scope(|scope| {
            let waiters = [bench.open_sleeper(), bench.open_sleeper()].map(|door| {
                waits(scope, move || permits(&*door, PermitRequest::of(1), LONG).unwrap())
            });
            let watch = Stopwatch::start();
            held.release().unwrap();
            // Both hold one at the same time.
            let both = waiters.map(|waiter| waiter.join().unwrap());
            let took = watch.elapsed();
            both.into_iter().for_each(|held| held.release().unwrap());
            took
        })
    });
}

fn a_wait_can_be_cancelled_and_leaves_nothing_behind(bench: &Bench) {
    let (one, two) = (bench.open(), bench.open_sleeper());
    let held = (lock(&*one, b"m"), permits(&*one, PermitRequest::of(2), For::Never).unwrap());
    let ask = PermitRequest { permits: 2, ..PermitRequest::at(7) };
    let cancel = || {
        thread::scope(|scope| {
            let for_lock = waits(scope, || two.lock(b"m", LEASE, For::Ever).err().unwrap().answer);
            let for_permits = waits(scope, || permits(&*two, ask, For::Ever).err().unwrap());
            let watch = Stopwatch::start();
            two.cancel_waits();
            assert_eq!(for_lock.join().unwrap(), Answer::Interrupted);
            assert_eq!(for_permits.join().unwrap(), Answer::Interrupted);
            watch.elapsed()
        })
    };
    bench.is_woken(cancel);
    held.0.release().unwrap();
    held.1.release().unwrap();
    assert_eq!(one.owner(b"m").unwrap(), None);
    // No place in the queue is left that others would have to wait behind.
    permits(&*one, PermitRequest::of(1), For::Never).unwrap().release().unwrap();
    // What was cancelled is the wait, not the client.
    two.lock(b"m", LEASE, For::Ever).unwrap().release().unwrap();
    permits(&*two, PermitRequest::of(2), For::Ever).unwrap().release().unwrap();
}

fn cancelling_ends_all_waits_of_its_client_and_no_others(bench: &Bench) {
    let (one, two, three) = (bench.open(), bench.open_sleeper(), bench.open_sleeper());
    let held = lock(&*one, b"m");
    let wait = |door: &dyn Door| door.lock(b"m", LEASE, For::Ever).map(drop);
    thread::scope(|scope| {
        let cancelled = [(); 3].map(|()| waits(scope, || answer(wait(&*two))));
        let goes_on = waits(scope, || answer(wait(&*three)));
        two.cancel_waits();
        for waiter in cancelled {
            assert_eq!(waiter.join().unwrap(), Answer::Interrupted);
        }
        assert!(!goes_on.is_finished());
        held.release().unwrap();
        assert_eq!(goes_on.join().unwrap(), Answer::Ok);
    });
}

fn a_waiter_is_woken_when_a_lock_is_taken_away(bench: &Bench) {
    let (one, two) = (bench.open(), bench.open_sleeper());
    bench.is_woken(|| {
        let held = lock(&*one, b"m");
        let took = thread::scope(|scope| {
            let waiter = waits(scope, || two.lock(b"m", LEASE, For::Ever).unwrap());
            let owner = one.owner(b"m").unwrap().unwrap();
            let watch = Stopwatch::start();
            one.force_unlock(b"m", &owner.token).unwrap();
            waiter.join().unwrap().release().unwrap();
            watch.elapsed()
        });
        assert_eq!(answer(held.release()), Answer::Lost);
        took
    });
}

fn a_waiter_is_woken_when_permits_are_added(bench: &Bench) {
    let (one, two) = (bench.open(), bench.open_sleeper());
    let held = permits(&*one, PermitRequest::of(2), For::Never).unwrap();
    let semaphore = one.semaphore(b"s", None, LEASE).unwrap();
    bench.is_woken(|| {
        semaphore.resize(2).unwrap();
        thread::scope(|scope| {
            let waiter = waits(scope, || permits(&*two, PermitRequest::of(1), For::Ever).unwrap());
            let watch = Stopwatch::start();
            semaphore.resize(3).unwrap();
            waiter.join().unwrap().release().unwrap();
            watch.elapsed()
        })
    });
    held.release().unwrap();
}

fn a_waiter_is_woken_by_a_release_in_another_process(bench: &Bench) {
    if bench.is_of_one_process() {
        return;
    }
    let (ours, (theirs, _driver)) = (bench.open_sleeper(), bench.elsewhere());
    within(WOKEN, || is_woken_by(&*ours, &*theirs));
    bench.is_woken(|| is_woken_by(&*theirs, &*ours));
}

fn is_woken_by(holder: &dyn Door, other: &dyn Door) -> Duration {
    let held = (lock(holder, b"m"), permits(holder, PermitRequest::of(2), For::Never).unwrap());
    is_busy(other.lock(b"m", LEASE, For::Never));
    let owner = other.owner(b"m").unwrap().unwrap();
    assert_eq!(owner.pid, holder.process());
    thread::scope(|scope| {
        let for_lock = waits(scope, || other.lock(b"m", LEASE, For::Ever).unwrap());
        let for_permits = waits(scope, || permits(other, PermitRequest::of(2), For::Ever).unwrap());
        let (fence, watch) = (held.0.fence(), Stopwatch::start());
        held.0.release().unwrap();
        held.1.release().unwrap();
        let next = for_lock.join().unwrap();
        assert_safe!(next.fence() > fence, "the fence did not rise");
        next.release().unwrap();
        for_permits.join().unwrap().release().unwrap();
        watch.elapsed()
    })
}

fn threads_of_several_processes_exclude_each_other(bench: &Bench) {
    const TURNS: usize = 12;
    if bench.is_of_one_process() {
        return;
    }
    let (ours, (theirs, _driver)) = (bench.open(), bench.elsewhere());
    let (inside, last) = (AtomicUsize::new(0), std::sync::Mutex::new(0));
    let ended = AtomicUsize::new(0);
    thread::scope(|scope| {
        for door in [&ours, &theirs, &ours, &theirs] {
            let (inside, last, ended) = (&inside, &last, &ended);
            scope.spawn(move || {
                for _ in 0..TURNS {
                    let held = door.lock(b"m", LEASE, LONG).unwrap();
                    assert_safe_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "granted twice");
                    let fence = held.fence();
                    let before = std::mem::replace(&mut *last.lock().unwrap(), fence);
                    assert_safe!(fence > before, "{fence} after {before}");
                    assert_safe_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1, "granted twice");
                    held.release().unwrap();
                }
                ended.fetch_add(1, Ordering::SeqCst);
            });
        }
        until("all threads have ended", || ended.load(Ordering::SeqCst) == 4);
    });
    assert_eq!(ours.owner(b"m").unwrap(), None);
}
