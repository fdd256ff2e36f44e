//! Semaphores: their permits, the number of them, and what becomes of a holder's.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::Answer;
use memlock_tests::doors::{Door, For, Held, PermitRequest, Semaphore};
use memlock_tests::stopwatch::Stopwatch;
use memlock_tests::{assert_safe, assert_safe_eq};

use crate::bench::{Bench, LEASE, LONG, WOKEN, answer, granted, is_busy, within};

behaviours! {
    no_more_permits_are_held_than_there_are
    several_permits_are_acquired_together_or_not_at_all
    what_is_never_available_is_refused_at_once
    without_a_number_a_semaphore_has_as_many_as_was_set_up
    what_nobody_has_set_up_is_not_found
    it_is_set_up_once_and_torn_down_for_everybody
    resizing_is_for_everybody_and_takes_no_permit_away
    holders_can_be_seen
    extending_counts_from_now_and_may_shorten
    permits_of_a_semaphore_that_was_torn_down_are_lost
    a_dropped_permit_is_released
    permits_of_an_ended_lease_come_back
    permits_of_a_killed_process_come_back
    impossible_names_and_leases_are_refused
    threads_and_clients_never_hold_more_permits_than_there_are
}

fn semaphore(door: &dyn Door, permits: u32) -> Box<dyn Semaphore> {
    door.semaphore(b"s", Some(permits), LEASE).unwrap()
}

fn acquire(semaphore: &dyn Semaphore, permits: u32) -> Box<dyn Held> {
    semaphore.acquire(PermitRequest::of(permits), For::Never).unwrap()
}

fn attempt(semaphore: &dyn Semaphore, permits: u32) -> Answer {
    answer(semaphore.acquire(PermitRequest::of(permits), For::Never))
}

#[track_caller]
fn none_left(semaphore: &dyn Semaphore, permits: u32) {
    is_busy(semaphore.acquire(PermitRequest::of(permits), For::Never));
}

fn available(semaphore: &dyn Semaphore) -> u32 {
    semaphore.available().unwrap()
}

fn no_more_permits_are_held_than_there_are(bench: &Bench) {
    let [one, two] = [bench.open(), bench.open()].map(|door| semaphore(&*door, 3));
    let mut held = [&one, &two, &one].map(|it| acquire(&**it, 1)).into_iter();
    none_left(&*one, 1);
    none_left(&*two, 1);
    assert_eq!(available(&*two), 0);
    held.next().unwrap().release().unwrap();
    assert_eq!(available(&*one), 1);
    let again = acquire(&*two, 1);
    none_left(&*one, 1);
    held.for_each(|held| held.release().unwrap());
    assert_eq!(available(&*one), 2);
    again.release().unwrap();
    assert_eq!(available(&*one), 3);
}

fn several_permits_are_acquired_together_or_not_at_all(bench: &Bench) {
    let [five, same] = [bench.open(), bench.open()].map(|door| semaphore(&*door, 5));
    let four = acquire(&*five, 4);
    none_left(&*same, 2);
    assert_eq!(available(&*five), 1);
    let one = acquire(&*same, 1);
    four.release().unwrap();
    assert_eq!(available(&*five), 4, "all of them come back");
    none_left(&*five, 5);
    one.release().unwrap();
    acquire(&*five, 5).release().unwrap();
}

fn what_is_never_available_is_refused_at_once(bench: &Bench) {
    let five = semaphore(&*bench.open(), 5);
    for (permits, said) in [(0, "at least one"), (6, "never be available")] {
        let no = five.acquire(PermitRequest::of(permits), For::Ever).err().unwrap();
        assert_eq!(no.answer, Answer::Invalid);
        assert!(no.sentence.contains(said), "{}", no.sentence);
    }
}

fn without_a_number_a_semaphore_has_as_many_as_was_set_up(bench: &Bench) {
    let (one, two) = (bench.open(), bench.open());
    let any = two.semaphore(b"s", None, LEASE).unwrap();
    assert_eq!(answer(any.acquire(PermitRequest::of(1), For::Ever)), Answer::NotFound);
    // The first one to acquire sets it up.
    let held = acquire(&*semaphore(&*one, 2), 1);
    acquire(&*any, 1).release().unwrap();
    none_left(&*any, 2);
    assert_eq!(attempt(&*any, 3), Answer::Invalid);
    held.release().unwrap();
    acquire(&*any, 2).release().unwrap();
}

fn what_nobody_has_set_up_is_not_found(bench: &Bench) {
    let any = bench.open().semaphore(b"nowhere", None, LEASE).unwrap();
    for wait in [For::Never, For::Ever, LONG] {
        let no = any.acquire(PermitRequest::of(1), wait).err().unwrap();
        assert_eq!(no.answer, Answer::NotFound);
        let said = format!("\"nowhere\" {}", bench.store.shown);
        assert!(no.sentence.contains(&said), "{}", no.sentence);
    }
    assert_eq!(answer(any.set_up(LEASE)), Answer::NotFound);
    assert_eq!(answer(any.tear_down()), Answer::NotFound);
    assert_eq!(answer(any.resize(4)), Answer::NotFound);
    assert_eq!(answer(any.available()), Answer::NotFound);
}

fn it_is_set_up_once_and_torn_down_for_everybody(bench: &Bench) {
    let (one, two) = (bench.open(), bench.open());
    let (known, any) = (semaphore(&*one, 2), one.semaphore(b"s", None, LEASE).unwrap());
    assert_eq!(known.set_up(LEASE), Ok(Answer::Ok));
    assert_eq!(known.set_up(LEASE), Ok(Answer::Exists));
    assert_eq!(any.set_up(LEASE), Ok(Answer::Exists));
    for life in [Duration::ZERO, Duration::from_millis(999), Duration::from_secs(u64::MAX / 2)] {
        assert_eq!(answer(known.set_up(life)), Answer::Invalid);
    }
    let held = acquire(&*any, 1);
    acquire(&*any, 1).release().unwrap();
    two.semaphore(b"s", None, LEASE).unwrap().tear_down().unwrap();
    assert_eq!(answer(known.tear_down()), Answer::NotFound);
    assert_eq!(attempt(&*any, 1), Answer::NotFound, "although it was used by the same client");
    assert_eq!(answer(any.available()), Answer::NotFound);
    assert_eq!(answer(held.release()), Answer::Lost);
    assert_eq!(attempt(&*any, 1), Answer::NotFound);
    // A handle that knows the number sets it up anew.
    acquire(&*known, 2).release().unwrap();
}

fn resizing_is_for_everybody_and_takes_no_permit_away(bench: &Bench) {
    let (one, two) = (bench.open(), bench.open());
    let (three, any) = (semaphore(&*one, 3), two.semaphore(b"s", None, LEASE).unwrap());
    assert_eq!(answer(three.resize(2)), Answer::NotFound, "nobody has set it up");
    let (held, other) = (acquire(&*three, 2), acquire(&*three, 1));
    any.resize(5).unwrap();
    // Handles that were opened before follow.
    acquire(&*three, 2).release().unwrap();
    // So do those that are opened afterwards, with whatever number.
    acquire(&*semaphore(&*two, 3), 2).release().unwrap();
    three.resize(2).unwrap();
    assert_eq!(available(&*any), 0);
    assert!(!held.remaining().is_zero() && !other.remaining().is_zero());
    other.release().unwrap();
    none_left(&*any, 1);
    held.release().unwrap();
    assert_eq!(available(&*any), 2);
    any.resize(u32::MAX).unwrap();
    assert_eq!(available(&*three), u32::MAX);
    assert_eq!(answer(any.resize(0)), Answer::Invalid);
}

fn holders_can_be_seen(bench: &Bench) {
    let (one, two) = (bench.open(), bench.open());
    let six = semaphore(&*one, 6);
    assert_eq!(six.set_up(LEASE), Ok(Answer::Ok));
    assert_eq!(six.holders(), Ok(Vec::new()));
    let began = Instant::now();
    let held = [1, 2, 3].map(|permits| acquire(&*six, permits));
    let mut holders = two.semaphore(b"s", None, LEASE).unwrap().holders().unwrap();
    holders.sort_by_key(|holder| holder.permits);
    assert_eq!(holders.iter().map(|holder| holder.permits).collect::<Vec<_>>(), [1, 2, 3]);
    for holder in &holders {
        assert_eq!(holder.pid, one.process());
        assert!(!holder.host.is_empty() && holder.since > 1_700_000_000);
        let least = LEASE - Duration::from_secs(5);
        assert!(holder.remaining + began.elapsed() > least, "{holder:?}");
        assert!(holder.remaining < LEASE + bench.store.slack, "{holder:?}");
    }
    let tokens: Vec<&str> = holders.iter().map(|holder| holder.token.as_str()).collect();
    assert!(tokens[0] != tokens[1] && tokens[1] != tokens[2] && tokens[0] != tokens[2]);
    held.into_iter().for_each(|held| held.release().unwrap());
    assert_eq!(six.holders(), Ok(Vec::new()));
}

fn extending_counts_from_now_and_may_shorten(bench: &Bench) {
    let mut held = acquire(&*semaphore(&*bench.open(), 1), 1);
    held.extend(2 * LEASE).unwrap();
    assert!(held.remaining() > LEASE && held.remaining() <= 2 * LEASE);
    held.extend(LEASE / 2).unwrap();
    assert!(held.remaining() <= LEASE / 2);
    for lease in [Duration::ZERO, Duration::from_millis(999), Duration::from_secs(u64::MAX / 2)] {
        assert_eq!(answer(held.extend(lease)), Answer::Invalid);
    }
    held.extend(LEASE).unwrap();
    assert!(held.remaining() > LEASE / 2);
    held.release().unwrap();
}

fn permits_of_a_semaphore_that_was_torn_down_are_lost(bench: &Bench) {
    let two = semaphore(&*bench.open(), 2);
    let (released, mut extended) = (acquire(&*two, 1), acquire(&*two, 1));
    semaphore(&*bench.open(), 2).tear_down().unwrap();
    // Those of the semaphore that comes after it are left alone.
    let later = acquire(&*two, 2);
    assert_eq!(answer(released.release()), Answer::Lost);
    assert_safe_eq!(available(&*two), 0, "another holder's permits were released");
    assert_eq!(answer(extended.extend(LEASE)), Answer::Lost);
    assert!(extended.remaining().is_zero());
    assert_eq!(answer(extended.release()), Answer::Lost);
    assert_safe_eq!(available(&*two), 0, "another holder's permits were released");
    later.release().unwrap();
    assert_eq!(available(&*two), 2);
}

fn a_dropped_permit_is_released(bench: &Bench) {
    let two = semaphore(&*bench.open(), 2);
    drop(acquire(&*two, 2));
    assert_eq!(available(&*two), 2);
}

fn permits_of_an_ended_lease_come_back(bench: &Bench) {
    within(bench.longest_exclusion() + 2 * WOKEN, || ended_lease_comes_back(bench));
}

fn ended_lease_comes_back(bench: &Bench) -> Duration {
    let lease = bench.store.shortest_lease;
    let (one, two) = (bench.open(), bench.open());
    let brief = one.semaphore(b"s", Some(3), lease).unwrap();
    let (began, watch, mut held) = granted(|| {
        let (began, watch) = (Instant::now(), Stopwatch::start());
        Ok((began, watch, brief.acquire(PermitRequest::of(2), For::Never)?))
    });
    let other = acquire(&*semaphore(&*one, 3), 1);
    let next = semaphore(&*two, 3).acquire(PermitRequest::of(2), LONG).unwrap();
    let (over, counted) = (began.elapsed(), watch.elapsed());
    assert_safe!(over >= lease - Duration::from_millis(10), "granted twice after {over:?}");
    assert!(held.remaining().is_zero());
    assert_eq!(answer(held.extend(LEASE)), Answer::Lost);
    assert_eq!(answer(held.release()), Answer::Lost);
    none_left(&*brief, 1);
    next.release().unwrap();
    other.release().unwrap();
    assert_eq!(available(&*brief), 3);
    counted
}

fn permits_of_a_killed_process_come_back(bench: &Bench) {
    if bench.is_of_one_process() {
        return;
    }
    let longest = bench.short_lease() + bench.store.slack;
    within(longest + 2 * WOKEN, || killed_process_leaves_permits(bench));
}

fn killed_process_leaves_permits(bench: &Bench) -> Duration {
    let lease = bench.short_lease();
    let (elsewhere, process) = bench.elsewhere();
    let theirs = elsewhere.semaphore(b"s", Some(2), lease).unwrap();
    let ours = semaphore(&*bench.open(), 2);
    let (began, watch) = (Instant::now(), Stopwatch::start());
    let held = acquire(&*theirs, 2);
    assert_eq!(attempt(&*ours, 1), Answer::Busy);
    assert_eq!(ours.holders().unwrap()[0].pid, process.process());
    process.kill();
    let next = ours.acquire(PermitRequest::of(1), LONG).unwrap();
    let (over, counted) = (began.elapsed(), watch.elapsed());
    assert_safe!(over >= lease - Duration::from_millis(10), "granted twice after {over:?}");
    assert_eq!(available(&*ours), 1);
    next.release().unwrap();
    drop(held);
    counted
}

fn impossible_names_and_leases_are_refused(bench: &Bench) {
    let door = bench.open();
    let long = vec![b'x'; 64 * 1024 + 1];
    for name in [&b""[..], &long] {
        for permits in [None, Some(1)] {
            assert_eq!(answer(door.semaphore(name, permits, LEASE)), Answer::Invalid);
        }
    }
    for lease in [Duration::ZERO, Duration::from_millis(999), Duration::from_secs(u64::MAX / 2)] {
        for permits in [None, Some(1)] {
            assert_eq!(answer(door.semaphore(b"s", permits, lease)), Answer::Invalid, "{lease:?}");
        }
    }
    for days in [1, 29, 31, 366] {
        let (lease, began) = (Duration::from_secs(days * 24 * 3600), Instant::now());
        let held = acquire(&*door.semaphore(b"s", Some(1), lease).unwrap(), 1);
        let left = held.remaining();
        let least = lease - Duration::from_secs(5);
        assert!(left + began.elapsed() > least && left <= lease, "{left:?}");
        held.release().unwrap();
    }
    let odd: [&[u8]; 3] = [b"a b\r\n", b"\xff\xfe", &long[1..]];
    for name in odd {
        acquire(&*door.semaphore(name, Some(1), LEASE).unwrap(), 1).release().unwrap();
    }
}

fn threads_and_clients_never_hold_more_permits_than_there_are(bench: &Bench) {
    const PERMITS: u32 = 4;
    let shared = bench.open();
    let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        for number in 0..8 {
            let own = bench.open();
            let door = if number % 2 == 0 { &shared } else { &own };
            let semaphore = semaphore(&**door, PERMITS);
            let (inside, most) = (&inside, &most);
            scope.spawn(move || {
                for turn in 0..8 {
                    let permits = 1 + (number + turn) % 3;
                    let held = semaphore.acquire(PermitRequest::of(permits), LONG).unwrap();
                    let now = inside.fetch_add(permits, Ordering::SeqCst) + permits;
                    most.fetch_max(now, Ordering::SeqCst);
                    assert_safe!(now <= PERMITS, "{now} are held");
                    thread::sleep(Duration::from_micros(500));
                    inside.fetch_sub(permits, Ordering::SeqCst);
                    held.release().unwrap();
                }
            });
        }
    });
    assert!(most.into_inner() > 1, "no thread met another");
    assert_eq!(available(&*semaphore(&*shared, PERMITS)), PERMITS);
}
