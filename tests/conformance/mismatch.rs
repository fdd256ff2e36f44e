//! Semaphores whose handles were opened with another number of permits than the semaphore has, as
//! in a rolling deploy that changes the number.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use memlock_core::{Answer, Mismatch};
use memlock_tests::doors::{Door, For, Held, PermitRequest, Semaphore};
use memlock_tests::stopwatch::Stopwatch;
use memlock_tests::{assert_safe, assert_safe_eq};

use crate::bench::{Bench, LEASE, answer, is_busy, waits};

behaviours! {
    handles_of_any_number_follow_the_semaphores
    no_handle_gets_more_permits_than_the_semaphore_has
    waiters_of_any_number_are_served
    a_waiter_for_more_than_a_smaller_number_is_told_so
    a_handle_that_resizes_gives_the_semaphore_its_number
    a_waiter_is_woken_by_a_handle_that_resizes
    a_handle_that_refuses_wants_its_own_number
    what_was_torn_down_is_set_up_with_the_number_that_was_last_seen
}

fn opened(door: &dyn Door, permits: u32) -> Box<dyn Semaphore> {
    door.semaphore(b"s", Some(permits), LEASE).unwrap()
}

fn opened_with(door: &dyn Door, permits: u32, mismatch: Mismatch) -> Box<dyn Semaphore> {
    door.semaphore_with(b"s", Some(permits), LEASE, mismatch).unwrap()
}

fn acquire(semaphore: &dyn Semaphore, permits: u32) -> Box<dyn Held> {
    semaphore.acquire(PermitRequest::of(permits), For::Never).unwrap()
}

#[track_caller]
fn none_left(semaphore: &dyn Semaphore) {
    is_busy(semaphore.acquire(PermitRequest::of(1), For::Never));
}

#[track_caller]
fn refused(semaphore: &dyn Semaphore, permits: u32, wait: For, said: &[&str]) {
    let no = semaphore.acquire(PermitRequest::of(permits), wait).err().unwrap();
    assert_eq!(no.answer, Answer::Invalid);
    said.iter().for_each(|said| assert!(no.sentence.contains(said), "{said}: {}", no.sentence));
}

fn handles_of_any_number_follow_the_semaphores(bench: &Bench) {
    let (old, new) = (bench.open(), bench.open());
    let (five, eight, three) = (opened(&*old, 5), opened(&*new, 8), opened(&*new, 3));
    assert_eq!(five.set_up(LEASE), Ok(Answer::Ok));
    assert_eq!(eight.set_up(LEASE), Ok(Answer::Exists));
    // Those that use it first by an acquisition.
    for semaphore in [&eight, &three, &opened(&*new, 8), &opened(&*old, 3)] {
        let all = acquire(&**semaphore, 5);
        assert_eq!(five.available(), Ok(0));
        all.release().unwrap();
        assert_eq!(semaphore.permits(), Ok(5));
    }
    // A resize is for all of them, and they know.
    five.resize(6).unwrap();
    for semaphore in [&five, &eight, &three] {
        acquire(&**semaphore, 6).release().unwrap();
    }
    assert_eq!(eight.permits(), Ok(6));
}

fn no_handle_gets_more_permits_than_the_semaphore_has(bench: &Bench) {
    let (old, new) = (bench.open(), bench.open());
    let (two, four) = (opened(&*old, 2), opened(&*new, 4));
    let held = [acquire(&*two, 1), acquire(&*four, 1)];
    none_left(&*four);
    none_left(&*opened(&*new, 4));
    none_left(&*two);
    let said = ["\"s\" ", bench.store.shown, "has 2", "never be available", "memlock resize"];
    for wait in [For::Never, For::Ever] {
        refused(&*four, 3, wait, &said);
        refused(&*opened(&*new, 4), 3, wait, &said);
    }
    held.into_iter().for_each(|held| held.release().unwrap());
    assert_eq!(two.available(), Ok(2));
}

fn waiters_of_any_number_are_served(bench: &Bench) {
    const PERMITS: u32 = 2;
    let two = opened(&*bench.open(), PERMITS);
    let hold = acquire(&*two, PERMITS);
    let inside = AtomicU32::new(0);
    thread::scope(|scope| {
        let waiters = [(5, 1), (1, 2), (9, 1), (1, 1)].map(|(number, permits)| {
            let (door, inside) = (bench.open_sleeper(), &inside);
            waits(scope, move || {
                let semaphore = opened(&*door, number);
                let held = semaphore.acquire(PermitRequest::of(permits), For::Ever).unwrap();
                let now = inside.fetch_add(permits, Ordering::SeqCst) + permits;
                assert_safe!(now <= PERMITS, "{now} are held");
                inside.fetch_sub(permits, Ordering::SeqCst);
                held.release().unwrap();
            })
        });
        assert_safe!(waiters.iter().all(|waiter| !waiter.is_finished()), "granted twice");
        hold.release().unwrap();
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    });
    assert_eq!(two.available(), Ok(PERMITS));
}

fn a_waiter_for_more_than_a_smaller_number_is_told_so(bench: &Bench) {
    let (one, two) = (bench.open(), bench.open());
    let (five, eight) = (opened(&*one, 5), opened(&*two, 8));
    let held = acquire(&*five, 1);
    thread::scope(|scope| {
        let waiter = waits(scope, || eight.acquire(PermitRequest::of(5), For::Ever).err().unwrap());
        five.resize(3).unwrap();
        let no = waiter.join().unwrap();
        assert_eq!(no.answer, Answer::Invalid);
        assert!(no.sentence.contains("it has 3"), "{}", no.sentence);
    });
    // It has left no place in the queue that others would have to wait behind.
    acquire(&*five, 2).release().unwrap();
    held.release().unwrap();
}

fn a_handle_that_resizes_gives_the_semaphore_its_number(bench: &Bench) {
    let (old, new) = (bench.open(), bench.open());
    let five = opened(&*old, 5);
    let held = [acquire(&*five, 3), acquire(&*five, 2)];
    // Upwards, by an acquisition.
    let eight = opened_with(&*new, 8, Mismatch::Resize);
    acquire(&*eight, 3).release().unwrap();
    assert_eq!(five.permits(), Ok(8));
    // At the first use only: a later resize stays.
    five.resize(6).unwrap();
    acquire(&*eight, 1).release().unwrap();
    assert_eq!(five.permits(), Ok(6));
    // Downwards, by a set-up: no holder loses its permits, and none are granted before they fit.
    let three = opened_with(&*new, 3, Mismatch::Resize);
    assert_eq!(three.set_up(LEASE), Ok(Answer::Exists));
    assert_eq!(five.permits(), Ok(3));
    let [many, few] = held;
    assert!(!many.remaining().is_zero() && !few.remaining().is_zero());
    none_left(&*five);
    few.release().unwrap();
    none_left(&*three);
    many.release().unwrap();
    acquire(&*eight, 3).release().unwrap();
    // More than its own number are as impossible as with any other handle.
    refused(&*opened_with(&*new, 2, Mismatch::Resize), 3, For::Ever, &["has 2"]);
    assert_eq!(five.permits(), Ok(2));
    // A semaphore that is not there is set up.
    five.tear_down().unwrap();
    acquire(&*opened_with(&*new, 7, Mismatch::Resize), 1).release().unwrap();
    assert_eq!(five.permits(), Ok(7));
}

fn a_waiter_is_woken_by_a_handle_that_resizes(bench: &Bench) {
    let (old, new, sleeper) = (bench.open(), bench.open(), bench.open_sleeper());
    let one = opened(&*old, 1);
    let held = acquire(&*one, 1);
    bench.is_woken(|| {
        one.resize(1).unwrap();
        thread::scope(|scope| {
            let waiter = waits(scope, || {
                opened(&*sleeper, 1).acquire(PermitRequest::of(1), For::Ever).unwrap()
            });
            let watch = Stopwatch::start();
            let three = opened_with(&*new, 3, Mismatch::Resize);
            assert_eq!(three.set_up(LEASE), Ok(Answer::Exists));
            waiter.join().unwrap().release().unwrap();
            watch.elapsed()
        })
    });
    held.release().unwrap();
}

fn a_handle_that_refuses_wants_its_own_number(bench: &Bench) {
    let (one, two) = (bench.open(), bench.open());
    let three = opened_with(&*one, 3, Mismatch::Refuse);
    acquire(&*three, 1).release().unwrap();
    let four = opened_with(&*two, 4, Mismatch::Refuse);
    let said = ["\"s\" ", bench.store.shown, "has 3 permits, and was opened with 4", "resize"];
    for wait in [For::Never, For::Ever] {
        refused(&*four, 1, wait, &said);
    }
    assert_eq!(answer(four.set_up(LEASE)), Answer::Invalid);
    assert_eq!(four.permits(), Ok(3));
    assert_safe_eq!(four.available(), Ok(3), "it was refused, and holds a permit");
    acquire(&*opened_with(&*two, 3, Mismatch::Refuse), 1).release().unwrap();
    four.resize(4).unwrap();
    acquire(&*four, 4).release().unwrap();
    // The one that knew it before follows.
    acquire(&*three, 4).release().unwrap();
}

fn what_was_torn_down_is_set_up_with_the_number_that_was_last_seen(bench: &Bench) {
    let (one, two) = (bench.open(), bench.open());
    let (five, eight) = (opened(&*one, 5), opened(&*two, 8));
    let gone = || one.semaphore(b"s", None, LEASE).unwrap().tear_down().unwrap();
    acquire(&*five, 1).release().unwrap();
    acquire(&*eight, 1).release().unwrap();
    gone();
    acquire(&*eight, 1).release().unwrap();
    assert_eq!(five.permits(), Ok(5));
    gone();
    acquire(&*opened(&*two, 8), 1).release().unwrap();
    assert_eq!(five.permits(), Ok(8));
}
