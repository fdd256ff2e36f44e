//! Mutexes: one holder, its lease and its fence.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::Answer;
use memlock_tests::doors::{For, Held, Language, No};
use memlock_tests::stopwatch::Stopwatch;
use memlock_tests::{assert_safe, assert_safe_eq};

use crate::bench::{Bench, LEASE, LONG, WOKEN, answer, granted, is_busy, lock, within};

const DAY: Duration = Duration::from_secs(24 * 3600);

behaviours! {
    a_free_mutex_is_granted_and_a_held_one_is_busy
    unlocking_lets_the_next_one_in
    fences_rise_from_holder_to_holder
    remaining_counts_down_from_the_lease
    extending_renews_the_lease_and_keeps_the_fence
    a_dropped_lock_is_released
    the_owner_can_be_seen_and_forced_out
    a_lock_ends_with_its_lease
    odd_names_are_locks_of_their_own
    impossible_names_and_leases_are_refused
    threads_exclude_each_other
    ; not in Python: a_refusal_names_the_lock_the_server_and_what_happened
}

fn a_free_mutex_is_granted_and_a_held_one_is_busy(bench: &Bench) {
    let (one, two) = (bench.open(), bench.open());
    let held = one.lock(b"m", LEASE, For::Never).unwrap();
    is_busy(two.lock(b"m", LEASE, For::Never));
    is_busy(one.lock(b"m", LEASE, For::Never));
    assert_eq!(answer(two.lock(b"other", LEASE, For::Never)), Answer::Ok);
    held.release().unwrap();
}

fn unlocking_lets_the_next_one_in(bench: &Bench) {
    let (one, two) = (bench.open(), bench.open());
    for _ in 0..3 {
        one.lock(b"m", LEASE, For::Never).unwrap().release().unwrap();
        two.lock(b"m", LEASE, For::Ever).unwrap().release().unwrap();
    }
    assert_eq!(one.owner(b"m").unwrap(), None);
}

fn fences_rise_from_holder_to_holder(bench: &Bench) {
    let (one, two) = (bench.open(), bench.open());
    let mut last = 0;
    for _ in 0..10 {
        for door in [&one, &two] {
            let mut held = door.lock(b"m", LEASE, For::Never).unwrap();
            assert_safe!(held.fence() > last, "{} after {last}", held.fence());
            last = held.fence();
            held.extend(LEASE).unwrap();
            held.release().unwrap();
        }
    }
}

fn remaining_counts_down_from_the_lease(bench: &Bench) {
    let (door, began) = (bench.open(), Instant::now());
    let held = door.lock(b"m", LEASE, For::Never).unwrap();
    let first = held.remaining();
    let least = LEASE - Duration::from_secs(5);
    assert!(first <= LEASE && first + began.elapsed() > least, "{first:?}");
    thread::sleep(Duration::from_millis(20));
    assert!(held.remaining() < first);
    held.release().unwrap();
}

fn extending_renews_the_lease_and_keeps_the_fence(bench: &Bench) {
    let door = bench.open();
    let mut held = door.lock(b"m", LEASE / 10, For::Never).unwrap();
    let fence = held.fence();
    held.extend(LEASE).unwrap();
    assert!(held.remaining() > LEASE / 2);
    assert_eq!(held.fence(), fence);
    assert_eq!(answer(held.extend(Duration::from_millis(999))), Answer::Invalid);
    assert!(held.remaining() > LEASE / 2, "a refused extension changes nothing");
    held.release().unwrap();
    assert_eq!(door.owner(b"m").unwrap(), None);
}

fn a_dropped_lock_is_released(bench: &Bench) {
    let (one, two) = (bench.open(), bench.open());
    drop(one.lock(b"m", LEASE, For::Never).unwrap());
    assert_eq!(answer(two.lock(b"m", LEASE, For::Never)), Answer::Ok);
}

fn the_owner_can_be_seen_and_forced_out(bench: &Bench) {
    let (one, two) = (bench.open(), bench.open());
    assert_eq!(two.owner(b"m").unwrap(), None);
    let held = one.lock(b"m", LEASE, For::Never).unwrap();
    let owner = two.owner(b"m").unwrap().unwrap();
    assert_eq!(owner.pid, one.process());
    assert!(owner.since > 1_700_000_000);
    assert_eq!(answer(two.force_unlock(b"m", "00000000000000000000000000000000")), Answer::NotHeld);
    is_busy(one.lock(b"m", LEASE, For::Never));
    two.force_unlock(b"m", &owner.token).unwrap();
    let next = two.lock(b"m", LEASE, For::Never).unwrap();
    assert_eq!(
        answer(two.force_unlock(b"m", &owner.token)),
        Answer::NotHeld,
        "a later holder is never touched"
    );
    assert_eq!(answer(held.release()), Answer::Lost);
    next.release().unwrap();
}

fn a_lock_ends_with_its_lease(bench: &Bench) {
    within(bench.longest_exclusion() + WOKEN, || ends_with_its_lease(bench));
}

fn ends_with_its_lease(bench: &Bench) -> Duration {
    let lease = bench.store.shortest_lease;
    let (one, two) = (bench.open(), bench.open());
    let (began, watch, mut held) = granted(|| {
        let (began, watch) = (Instant::now(), Stopwatch::start());
        Ok((began, watch, one.lock(b"m", lease, For::Never)?))
    });
    let next = two.lock(b"m", LEASE, LONG).unwrap();
    let (over, counted) = (began.elapsed(), watch.elapsed());
    assert_safe!(over >= lease - Duration::from_millis(10), "granted twice after {over:?}");
    assert!(held.remaining().is_zero());
    assert_safe!(next.fence() > held.fence(), "the fence did not rise");
    assert_eq!(answer(held.extend(LEASE)), Answer::Lost);
    let no = held.release().unwrap_err();
    assert_eq!(no.answer, Answer::Lost);
    let said = match bench.language {
        Language::Python => [": lost, because the lease expired", " meanwhile."],
        _ => ["was lost: its lease of ", " ago."],
    };
    let as_said = no.sentence.contains(said[0]) && no.sentence.ends_with(said[1]);
    assert!(as_said, "{}", no.sentence);
    next.release().unwrap();
    counted
}

/// In Python most of these are a plain `False`, and the others are in `test_messages.py`.
fn a_refusal_names_the_lock_the_server_and_what_happened(bench: &Bench) {
    let sentence = |no: No| {
        let named = no.sentence.replacen("The lock", "the lock", 1);
        let lock = format!("the lock \"it \\\"is\\\"\" {}", bench.store.shown);
        assert!(named.contains(&lock) && named.ends_with('.'), "{named}");
        no.sentence
    };
    let (one, two, name) = (bench.open(), bench.open(), b"it \"is\"");
    let refused = |wait| two.lock(name, LEASE, wait).err().map(sentence).unwrap();
    let mut held = lock(&*one, name);
    let busy = refused(For::Never);
    assert!(busy.contains("is held by another holder"), "{busy}");
    let late = refused(For::AtMost(Duration::from_millis(120)));
    assert!(late.starts_with("Timed out after 120 ms waiting for the lock"), "{late}");
    assert!(late.contains(&format!(", process {}).", one.process())), "{late}");
    let token = two.owner(name).unwrap().unwrap().token;
    two.force_unlock(name, &token).unwrap();
    for lost in [
        sentence(two.force_unlock(name, &token).unwrap_err()),
        sentence(held.extend(LEASE).unwrap_err()),
        sentence(held.release().unwrap_err()),
    ] {
        let (gone, none) = ("was lost: before its lease of 300 s was over", "is not held");
        assert!(lost.contains(gone) || lost.contains(none), "{lost}");
    }
}

fn odd_names_are_locks_of_their_own(bench: &Bench) {
    let door = bench.open();
    let long = vec![b'x'; 64 * 1024];
    let names: [&[u8]; 15] = [
        b"a b",
        b"a%20b",
        b"a\r\ndelete lock:victim\r\n",
        b"\xff\xfe",
        b"%",
        b"\x01",
        "ü".as_bytes(),
        // What a collation or a pattern takes for the same.
        b"name",
        b"Name",
        b"name ",
        "n\u{e4}me".as_bytes(),
        b"na_me",
        b"na%me",
        &long,
        &long[1..],
    ];
    let victim = door.lock(b"victim", LEASE, For::Never).unwrap();
    let all: Vec<Box<dyn Held>> =
        names.iter().map(|name| door.lock(name, LEASE, For::Never).unwrap()).collect();
    for name in names {
        is_busy(door.lock(name, LEASE, For::Never));
    }
    all.into_iter().for_each(|held| held.release().unwrap());
    victim.release().unwrap();
}

fn impossible_names_and_leases_are_refused(bench: &Bench) {
    let door = bench.open();
    let long = vec![b'x'; 64 * 1024 + 1];
    for name in [&b""[..], &long] {
        assert_eq!(answer(door.lock(name, LEASE, For::Never)), Answer::Invalid);
        assert_eq!(answer(door.owner(name)), Answer::Invalid);
    }
    for lease in
        [Duration::ZERO, Duration::from_millis(999), 367 * DAY, Duration::from_secs(u64::MAX / 2)]
    {
        assert_eq!(answer(door.lock(b"m", lease, For::Never)), Answer::Invalid, "{lease:?}");
    }
    // The shortest one, which may have ended before the reply is here.
    assert_ne!(answer(door.lock(b"brief", Duration::from_secs(1), For::Never)), Answer::Invalid);
    for lease in [29 * DAY, 30 * DAY, 31 * DAY, 366 * DAY] {
        let held = door.lock(b"m", lease, For::Never).unwrap();
        assert_eq!(answer(door.lock(b"m", LEASE, For::Never)), Answer::Busy, "{lease:?}");
        held.release().unwrap();
    }
}

fn threads_exclude_each_other(bench: &Bench) {
    let door = bench.open();
    let (inside, rounds) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let held = door.lock(b"m", LEASE, For::Ever).unwrap();
                    assert_safe_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "holders at once");
                    rounds.fetch_add(1, Ordering::SeqCst);
                    assert_safe_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1, "holders at once");
                    held.release().unwrap();
                }
            });
        }
    });
    assert_eq!(rounds.into_inner(), 160);
}
