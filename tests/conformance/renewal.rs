//! Leases that are renewed: for as long as they are wanted, no longer, and a loss is reported once.

use std::time::{Duration, Instant};
use std::{iter, thread};

use memlock_core::{Answer, Loss, Notice};
use memlock_tests::assert_safe;
use memlock_tests::doors::{Door, For, PermitRequest, Renewed};
use memlock_tests::launch::until;

use crate::bench::{ATTEMPTS, Bench, LEASE, LONG, PATIENCE, answer, is_busy, lock};

behaviours! {
    what_is_renewed_outlives_its_lease_and_ends_with_its_release
    what_is_dropped_is_renewed_no_more
    a_lock_that_was_taken_away_is_reported_once
    permits_that_were_taken_away_are_reported_once
    a_check_finds_a_loss_and_takes_nothing_back
    a_program_that_hangs_holds_nothing_for_ever
}

const PERMITS: Option<u32> = Some(3);

/// A renewed lock, and two permits of three.
fn renewed(door: &dyn Door, lease: Duration, max_hold: Option<Duration>) -> [Box<dyn Renewed>; 2] {
    let semaphore = door.semaphore(b"s", PERMITS, lease).unwrap();
    let lock = door.lock_renewed(b"m", lease, max_hold).unwrap();
    [lock, semaphore.acquire_renewed(2, max_hold).unwrap()]
}

fn take_away(door: &dyn Door) {
    let owner = door.owner(b"m").unwrap().unwrap();
    door.force_unlock(b"m", &owner.token).unwrap();
    door.semaphore(b"s", None, LEASE).unwrap().tear_down().unwrap();
}

/// That there is this loss, and no news of it after that.
fn is_reported_once(renewed: &dyn Renewed, loss: Loss) {
    let losses = || {
        let notices = renewed.notices();
        notices.iter().filter(|notice| matches!(notice, Notice::Lost(_))).copied().collect()
    };
    until("it tells of the loss", || !renewed.notices().is_empty() && !Vec::is_empty(&losses()));
    assert!(!renewed.is_held());
    assert_eq!(renewed.lost(), Some(loss));
    assert_eq!(renewed.wait_lost(PATIENCE), Some(loss));
    assert_eq!(renewed.check(), Ok(false));
    // For as long as it takes to be notified again.
    thread::sleep(Duration::from_millis(400));
    assert_eq!(losses(), [Notice::Lost(loss)]);
}

fn what_is_renewed_outlives_its_lease_and_ends_with_its_release(bench: &Bench) {
    let is_renewed = || outlives_its_lease(bench);
    assert!(iter::repeat_with(is_renewed).take(ATTEMPTS).any(|outlives| outlives), "never in time");
}

/// False if the machine did not run the renewal for most of the lease, and its holders know that.
fn outlives_its_lease(bench: &Bench) -> bool {
    let lease = bench.short_lease();
    let (one, two) = (bench.open(), bench.open());
    let semaphore = two.semaphore(b"s", PERMITS, LEASE).unwrap();
    let [lock, permits] = renewed(&*one, lease, None);
    // By then it would have come free without a renewal.
    let limit = For::AtMost(lease + bench.store.slack + Duration::from_millis(200));
    let refused = thread::scope(|scope| {
        let of_permits = scope.spawn(|| answer(semaphore.acquire(PermitRequest::of(2), limit)));
        [answer(two.lock(b"m", LEASE, limit)), of_permits.join().unwrap()]
    });
    for (held, refused) in [&lock, &permits].into_iter().zip(refused) {
        if held.is_held() {
            assert_safe!(refused != Answer::Ok, "granted to a second holder");
            assert_eq!(refused, Answer::TimedOut);
        } else {
            let lost = held.wait_lost(PATIENCE);
            assert_eq!(lost, Some(Loss::Expired), "{refused:?}, {:?}", held.notices());
        }
    }
    let seen = [&lock, &permits].map(|held| {
        let losses = held.notices().iter().any(|notice| matches!(notice, Notice::Lost(_)));
        (held.check(), held.lost(), held.wait_lost(Duration::from_millis(1)), losses)
    });
    let outlives = lock.is_held() && permits.is_held();
    for seen in seen.into_iter().filter(|_| outlives) {
        assert_eq!(seen, (Ok(true), None, None, false));
    }
    let released = [answer(lock.release()), answer(permits.release())];
    assert!(!outlives || released == [Answer::Ok; 2], "{released:?}");
    let again = if outlives { For::Never } else { LONG };
    two.lock(b"m", LEASE, again).unwrap().release().unwrap();
    semaphore.acquire(PermitRequest::of(3), again).unwrap().release().unwrap();
    outlives
}

fn what_is_dropped_is_renewed_no_more(bench: &Bench) {
    let (one, two) = (bench.open(), bench.open());
    drop(renewed(&*one, LEASE, None));
    lock(&*two, b"m").release().unwrap();
    assert_eq!(two.semaphore(b"s", PERMITS, LEASE).unwrap().available(), Ok(3));
}

fn a_lock_that_was_taken_away_is_reported_once(bench: &Bench) {
    let (one, two) = (bench.open(), bench.open());
    let [held, _permits] = renewed(&*one, bench.short_lease(), None);
    take_away(&*two);
    let next = lock(&*two, b"m");
    is_reported_once(&*held, Loss::Gone);
    assert_eq!(answer(held.release()), Answer::Lost);
    is_busy(one.lock(b"m", LEASE, For::Never));
    next.release().unwrap();
}

fn permits_that_were_taken_away_are_reported_once(bench: &Bench) {
    let (one, two) = (bench.open(), bench.open());
    let [_lock, held] = renewed(&*one, bench.short_lease(), None);
    take_away(&*two);
    let semaphore = two.semaphore(b"s", PERMITS, LEASE).unwrap();
    let next = semaphore.acquire(PermitRequest::of(3), For::Never).unwrap();
    is_reported_once(&*held, Loss::Gone);
    assert_eq!(answer(held.release()), Answer::Lost);
    assert_eq!(semaphore.available(), Ok(0), "the next one's stay");
    next.release().unwrap();
}

/// Their leases are long, so that no renewal finds it first.
fn a_check_finds_a_loss_and_takes_nothing_back(bench: &Bench) {
    let (one, two) = (bench.open(), bench.open());
    let all = renewed(&*one, LEASE, None);
    take_away(&*two);
    for held in all {
        assert!(held.is_held(), "nobody has looked yet");
        assert_eq!(held.check(), Ok(false));
        assert_eq!((held.is_held(), held.lost()), (false, Some(Loss::Gone)));
        assert_eq!(answer(held.release()), Answer::Lost);
    }
    assert_eq!(two.owner(b"m").unwrap(), None);
}

fn a_program_that_hangs_holds_nothing_for_ever(bench: &Bench) {
    let lease = bench.short_lease();
    let (one, two) = (bench.open(), bench.open());
    let (began, longest) = (Instant::now(), lease / 10);
    let [held, permits] = renewed(&*one, lease, Some(longest));
    for held in [&held, &permits] {
        assert_eq!(held.wait_lost(PATIENCE), Some(Loss::MaxHold));
        assert!(began.elapsed() >= longest, "{:?}", began.elapsed());
        until("it is held too long", || {
            held.notices().last() == Some(&Notice::Lost(Loss::MaxHold))
        });
        let notices = held.notices();
        let is_warned = matches!(notices[..], [.., Notice::AtRisk(left), _] if left <= lease);
        assert!(is_warned, "{notices:?}");
    }
    two.lock(b"m", LEASE, LONG).unwrap().release().unwrap();
    let semaphore = two.semaphore(b"s", PERMITS, LEASE).unwrap();
    semaphore.acquire(PermitRequest::of(2), LONG).unwrap().release().unwrap();
    for released in [held.release(), permits.release()] {
        let no = released.unwrap_err();
        assert_eq!(no.answer, Answer::Lost, "{}", no.sentence);
    }
}
