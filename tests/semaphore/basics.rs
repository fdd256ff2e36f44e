//! What one caller after another is told.

use std::thread;
use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::{
    ErrorKind, Extension, Permit, Release, Request, Semaphore, SetUp, Wait, Waited,
};
use memlock_tests::cost::usual_cost;

use super::{Bench, LEASE};

fn take(semaphore: &Semaphore, permits: u32) -> Option<Permit> {
    let request = Request { permits, ..Request::default() };
    semaphore.acquire_with(request, &Wait::NEVER).unwrap().done()
}

fn available(semaphore: &Semaphore) -> u32 {
    semaphore.status().unwrap().unwrap().available
}

#[test]
fn no_more_permits_are_out_than_there_are() {
    let bench = Bench::new();
    let [one, two] = [bench.semaphore(3), bench.semaphore(3)];
    let mut held: Vec<Permit> =
        [&one, &two, &one].iter().map(|it| it.try_acquire().unwrap().unwrap()).collect();
    assert!(one.try_acquire().unwrap().is_none());
    assert!(two.try_acquire().unwrap().is_none());
    assert_eq!(available(&two), 0);
    assert_eq!(held.remove(0).release().unwrap(), Release::Released);
    assert_eq!(available(&one), 1);
    let again = two.try_acquire().unwrap();
    assert!(again.is_some());
    assert!(one.try_acquire().unwrap().is_none());
    drop(held);
    assert_eq!(available(&one), 2);
}

#[test]
fn several_are_taken_together_or_not_at_all() {
    let bench = Bench::new();
    let semaphore = bench.semaphore(5);
    let four = take(&semaphore, 4).unwrap();
    assert_eq!(four.permits(), 4);
    assert!(take(&semaphore, 2).is_none());
    assert_eq!(available(&semaphore), 1);
    let one = take(&bench.semaphore(5), 1).unwrap();
    drop(four);
    assert!(take(&semaphore, 5).is_none());
    drop(one);
    assert!(take(&semaphore, 5).is_some());
    for (permits, said) in [(0, "at least one"), (6, "never be available")] {
        let request = Request { permits, ..Request::default() };
        let error = semaphore.acquire_with(request, &Wait::FOREVER).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[test]
fn releasing_twice_inflates_nothing() {
    let bench = Bench::new();
    let semaphore = bench.semaphore(2);
    let mut first = semaphore.acquire().unwrap();
    let _second = semaphore.acquire().unwrap();
    assert_eq!(first.release().unwrap(), Release::Released);
    assert_eq!(first.release().unwrap(), Release::NotHeld);
    assert_eq!(first.extend(LEASE).unwrap(), Extension::NotHeld);
    drop(first);
    assert_eq!(available(&semaphore), 1);
}

#[test]
fn what_was_taken_away_is_lost_and_another_ones_stays() {
    let bench = Bench::new();
    let semaphore = bench.semaphore(2);
    let mut mine = semaphore.acquire().unwrap();
    bench.server.plain().delete("semaphore:s");
    let theirs = bench.semaphore(2).try_acquire().unwrap().unwrap();
    assert_eq!(mine.extend(LEASE).unwrap(), Extension::Lost);
    assert_eq!(mine.release().unwrap(), Release::Lost);
    assert_eq!(available(&semaphore), 1);
    drop(theirs);
    assert_eq!(available(&semaphore), 2);
}

#[test]
fn the_number_of_permits_is_shared() {
    let bench = Bench::new();
    let semaphore = bench.semaphore(3);
    drop(semaphore.acquire().unwrap());
    let error = bench.semaphore(4).acquire().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(
        error.to_string().contains("semaphore:s has 3 permits, and was opened with 4"),
        "{error}"
    );
    let open = bench.client().open_semaphore("s", LEASE).unwrap();
    assert_eq!(open.resize(5).unwrap(), Some(3));
    // Those who had opened it follow.
    let held = take(&semaphore, 5).unwrap();
    assert_eq!(bench.semaphore(3).acquire().unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(bench.semaphore(5).status().unwrap().unwrap().permits, 5);
    // Fewer than are held: they drain.
    assert_eq!(semaphore.resize(2).unwrap(), Some(5));
    assert_eq!((available(&semaphore), semaphore.status().unwrap().unwrap().permits), (0, 2));
    drop(held);
    assert_eq!(available(&open), 2);
    assert!(bench.client().semaphore("other", 1, LEASE).unwrap().resize(2).unwrap().is_none());
}

#[test]
fn it_is_set_up_once_and_torn_down_for_everybody() {
    let bench = Bench::new();
    let (semaphore, open) =
        (bench.semaphore(2), bench.client().open_semaphore("s", LEASE).unwrap());
    assert_eq!(open.acquire().unwrap_err().kind(), ErrorKind::NotFound);
    assert!(open.status().unwrap().is_none());
    assert_eq!(open.set_up(LEASE).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(semaphore.set_up(LEASE).unwrap(), SetUp::Created);
    assert_eq!(semaphore.set_up(LEASE).unwrap(), SetUp::Joined);
    assert_eq!(bench.semaphore(3).set_up(LEASE).unwrap_err().kind(), ErrorKind::Invalid);
    let remaining = bench.server.plain().get("semaphore:s").unwrap();
    assert!(remaining.starts_with(b"memlock-semaphore/1 "), "{remaining:?}");
    let (mut held, other) =
        (open.acquire().unwrap(), bench.client().open_semaphore("s", LEASE).unwrap());
    drop(other.acquire().unwrap());
    assert!(open.tear_down().unwrap());
    assert_eq!(other.try_acquire().unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!semaphore.tear_down().unwrap());
    assert_eq!(held.release().unwrap(), Release::Lost);
    assert_eq!(open.try_acquire().unwrap_err().kind(), ErrorKind::NotFound);
    assert!(semaphore.try_acquire().unwrap().is_some(), "who knows how many there are sets it up");
}

#[test]
fn what_somebody_else_tore_down_is_not_found_by_who_used_it_before() {
    let bench = Bench::new();
    let open = bench.client().open_semaphore("s", LEASE).unwrap();
    assert_eq!(bench.semaphore(2).set_up(LEASE).unwrap(), SetUp::Created);
    drop(open.acquire().unwrap());
    assert!(bench.semaphore(2).tear_down().unwrap());
    assert_eq!(open.try_acquire().unwrap_err().kind(), ErrorKind::NotFound);
    assert!(open.status().unwrap().is_none());
}

#[test]
fn another_programs_item_is_left_alone() {
    let bench = Bench::new();
    bench.server.plain().set("semaphore:s", "3", 0);
    let error = bench.semaphore(3).acquire().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol);
    assert!(error.to_string().contains("another program"), "{error}");
    assert_eq!(bench.server.plain().get("semaphore:s").unwrap(), b"3");
}

#[test]
fn holders_are_known_by_name() {
    let bench = Bench::new();
    let semaphore = bench.semaphore(4);
    let held = take(&semaphore, 3).unwrap();
    let status = bench.semaphore(4).status().unwrap().unwrap();
    assert_eq!((status.permits, status.available, status.holders.len()), (4, 1, 1));
    let holder = &status.holders[0];
    assert_eq!((holder.token, holder.permits, holder.pid), (held.token(), 3, std::process::id()));
    assert!(!holder.host.is_empty() && holder.since > 1_700_000_000);
    assert!(
        holder.remaining > Duration::from_secs(25) && holder.remaining <= Duration::from_secs(32)
    );
}

#[test]
fn a_wait_ends_at_its_limit_with_nothing_held() {
    let bench = Bench::new();
    let semaphore = bench.semaphore(1);
    let held = semaphore.acquire().unwrap();
    assert!(bench.semaphore(1).acquire_for(Duration::from_millis(200)).unwrap().is_none());
    let request = Request::default();
    let cancel = semaphore.acquire_with(request, &Wait::at_most(Duration::from_millis(50)));
    assert!(matches!(cancel.unwrap(), Waited::TimedOut));
    drop(held);
    assert_eq!(available(&semaphore), 1);
    let queue = bench.server.plain().get("semaphore:s%wait");
    assert!(queue.is_none_or(|queue| queue.is_empty()));
}

/// The server counts commands, and each command of ours that needs an answer first is a round trip
/// of its own.
#[test]
fn what_it_costs_does_not_depend_on_the_number_of_permits() {
    let mut costs = Vec::new();
    for permits in [1, 100, 10_000, 1_000_000] {
        let bench = Bench::new();
        let semaphore = bench.semaphore(permits);
        for _ in 0..3 {
            drop(semaphore.acquire().unwrap());
        }
        let cost = usual_cost(|| {
            let before = bench.server.commands();
            drop(semaphore.acquire().unwrap());
            bench.server.commands() - before
        });
        costs.push((permits, cost));
    }
    assert!(costs.iter().all(|(_, cost)| *cost == costs[0].1), "{costs:?}");
    assert_eq!(costs[0].1, 5, "a write and a read; a write, the queue and a read");
}

#[test]
fn ten_thousand_can_hold_one_each() {
    let bench = Bench::new();
    let unix = SystemClock.unix_seconds();
    let mut item = format!("memlock-semaphore/1 {:032x} 10000 {} 86400 1\n", 1, unix + 86_400);
    for holder in 1..10_000 {
        item += &format!(
            "{holder:032x} 1 {} a-host-name-of-thirty-two-letters 4194304 {unix}\n",
            unix + 600
        );
    }
    // Its expiry is what the server's time is told by, so it has to be true.
    let expires = u32::try_from(unix + 86_400).unwrap();
    assert!(bench.server.plain().set("semaphore:s", &item, expires));
    let semaphore = bench.semaphore(10_000);
    let mut last = semaphore.try_acquire().unwrap().unwrap();
    assert!(semaphore.try_acquire().unwrap().is_none());
    let status = bench.semaphore(10_000).status().unwrap().unwrap();
    assert_eq!((status.available, status.holders.len()), (0, 10_000));
    assert_eq!(last.extend(LEASE).unwrap(), Extension::Extended);
    assert_eq!(last.release().unwrap(), Release::Released);
    assert_eq!(bench.server.plain().get("semaphore:s").unwrap().len(), item.len());
    assert_eq!(available(&semaphore), 1);
}

#[test]
fn nobody_is_kept_out_by_those_who_write_as_fast_as_they_can() {
    let bench = Bench::new();
    thread::scope(|scope| {
        for _ in 0..4 {
            let semaphore = bench.semaphore(100);
            scope.spawn(move || {
                for _ in 0..3000 {
                    let mut permit = semaphore.acquire().unwrap();
                    assert_eq!(permit.release().unwrap(), Release::Released);
                }
            });
        }
    });
    assert_eq!(available(&bench.semaphore(100)), 100);
}
