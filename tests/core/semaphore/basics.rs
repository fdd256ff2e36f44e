//! The answers to one caller after another, beyond what all languages and stores have in common:
//! see `tests/conformance/semaphore.rs`.

use std::thread;
use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::{ErrorKind, Extension, Permit, Release, Request, Semaphore, Wait, Waited};
use memlock_tests::cost::usual_cost;
use memlock_tests::{assert_safe, assert_safe_eq};

use super::{Bench, LEASE};

fn take(semaphore: &Semaphore, permits: u32) -> Option<Permit> {
    let request = Request { permits, ..Request::default() };
    semaphore.acquire_with(request, &Wait::NEVER).unwrap().done()
}

fn available(semaphore: &Semaphore) -> u32 {
    semaphore.status().unwrap().unwrap().available
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
    assert_safe_eq!(available(&semaphore), 1, "permits that are left");
}

#[test]
fn what_was_taken_away_is_lost_and_another_ones_stays() {
    let bench = Bench::new();
    let semaphore = bench.semaphore(2);
    let mut mine = semaphore.acquire().unwrap();
    let item = bench.server.plain().get("semaphore:s").unwrap();
    assert!(item.starts_with(b"memlock-semaphore/1 "), "{item:?}");
    bench.server.plain().delete("semaphore:s");
    let theirs = bench.semaphore(2).try_acquire().unwrap().unwrap();
    assert_eq!(mine.extend(LEASE).unwrap(), Extension::Lost);
    assert_eq!(mine.release().unwrap(), Release::Lost);
    assert_safe_eq!(available(&semaphore), 1, "permits that are left");
    drop(theirs);
    assert_eq!(available(&semaphore), 2);
}

#[test]
fn resizing_gives_the_number_that_there_was() {
    let bench = Bench::new();
    let semaphore = bench.semaphore(3);
    assert!(semaphore.resize(2).unwrap().is_none());
    drop(semaphore.acquire().unwrap());
    assert_eq!(semaphore.resize(5).unwrap(), Some(3));
    assert_eq!(semaphore.resize(2).unwrap(), Some(5));
    assert_eq!(semaphore.status().unwrap().unwrap().permits, 2);
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
    assert_eq!(held.permits(), 3);
    let status = bench.semaphore(4).status().unwrap().unwrap();
    assert_eq!((status.permits, status.available, status.holders.len()), (4, 1, 1));
    let holder = &status.holders[0];
    assert_eq!((holder.token, holder.permits, holder.pid), (held.token(), 3, std::process::id()));
    assert!(!holder.host.is_empty() && holder.since > 1_700_000_000);
    // The server keeps them for at least as long as the holder relies on them, by its own clock.
    assert!(holder.remaining >= held.remaining() && holder.remaining < 2 * LEASE, "{holder:?}");
}

#[test]
fn a_wait_ends_at_its_limit_with_nothing_held() {
    let bench = Bench::new();
    let semaphore = bench.semaphore(1);
    let held = semaphore.acquire().unwrap();
    assert_safe!(
        bench.semaphore(1).acquire_for(Duration::from_millis(200)).unwrap().is_none(),
        "more holders than permits"
    );
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

impl Bench {
    /// Writes a semaphore with so many permits, of which so many holders hold one each.
    fn hold_one_each(&self, permits: u32, holders: u32) -> String {
        let unix = SystemClock.unix_seconds();
        let mut item =
            format!("memlock-semaphore/1 {:032x} {permits} {} 86400 1\n", 1, unix + 86_400);
        for holder in 1..=holders {
            item += &format!(
                "{holder:032x} 1 {} a-host-name-of-thirty-two-letters 4194304 {unix}\n",
                unix + 600
            );
        }
        // The server's time is computed from its expiry, so that has to be true.
        let expires = u32::try_from(unix + 86_400).unwrap();
        assert!(self.server.plain().set("semaphore:s", &item, expires));
        item
    }
}

#[test]
fn ten_thousand_can_hold_one_each() {
    let bench = Bench::new();
    let item = bench.hold_one_each(10_000, 9_999);
    let semaphore = bench.semaphore(10_000);
    let mut last = semaphore.try_acquire().unwrap().unwrap();
    assert_safe!(semaphore.try_acquire().unwrap().is_none(), "more holders than permits");
    let status = bench.semaphore(10_000).status().unwrap().unwrap();
    assert_eq!((status.available, status.holders.len()), (0, 10_000));
    assert_eq!(last.extend(LEASE).unwrap(), Extension::Extended);
    assert_eq!(last.release().unwrap(), Release::Released);
    assert_eq!(bench.server.plain().get("semaphore:s").unwrap().len(), item.len());
    assert_eq!(available(&semaphore), 1);
}

#[test]
fn a_refusal_says_when_ten_thousand_hold_and_permits_are_left() {
    let bench = Bench::new();
    bench.hold_one_each(10_002, 10_000);
    let semaphore = bench.semaphore(10_002);
    let subject = format!("semaphore \"s\" on memcached at {}", bench.server.address());
    let limit = "(it has 10000 concurrent holders, the highest number possible).";
    for (wait, said) in [
        (
            Wait::NEVER,
            format!(
                "The {subject} has 2 of 10002 permits available, but cannot have another holder {limit}"
            ),
        ),
        (
            Wait::at_most(Duration::from_millis(20)),
            format!("Timed out after 20 ms waiting for a permit of the {subject} {limit}"),
        ),
    ] {
        let report = semaphore.acquire_or_report(Request::default(), &wait).unwrap().unwrap_err();
        assert_eq!(report.to_string(), said);
    }
}

#[test]
fn nobody_is_kept_out_by_those_who_write_as_fast_as_they_can() {
    let bench = Bench::new();
    thread::scope(|scope| {
        for _ in 0..4 {
            let semaphore = bench.semaphore(100);
            scope.spawn(move || {
                for _ in 0..500 {
                    let mut permit = semaphore.acquire().unwrap();
                    assert_eq!(permit.release().unwrap(), Release::Released);
                }
            });
        }
    });
    assert_eq!(available(&bench.semaphore(100)), 100);
}
