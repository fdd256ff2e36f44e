//! What only semaphores on a memcached have, beyond `tests/conformance/semaphore.rs`.

use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::{ErrorKind, Extension, Release, Request, Wait};
use memlock_tests::assert_safe;
use memlock_tests::cost::usual_cost;

use super::{Bench, LEASE};

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
fn a_holder_is_known_by_its_token() {
    let bench = Bench::new();
    let held = bench.semaphore(4).acquire().unwrap();
    let status = bench.semaphore(4).status().unwrap().unwrap();
    let [holder] = &status.holders[..] else { panic!("{status:?}") };
    assert_eq!((holder.token, holder.permits, holder.pid), (held.token(), 1, std::process::id()));
    // The server keeps it for at least as long as the holder relies on it. By its own clock, which
    // shows whole seconds, that is at most three seconds longer.
    assert!(holder.remaining >= held.remaining(), "{holder:?}");
    assert!(holder.remaining <= LEASE + Duration::from_secs(3), "{holder:?}");
}

/// The server counts commands, and each command of ours that needs an answer first is a round trip
/// of its own.
#[test]
fn what_it_costs_does_not_depend_on_the_number_of_permits() {
    let bench = Bench::new();
    for permits in [1, 100, 1_000_000] {
        let semaphore = bench.client().semaphore(permits.to_string(), permits, LEASE).unwrap();
        (0..3).for_each(|_| drop(semaphore.acquire().unwrap()));
        let cost = usual_cost(|| {
            let before = bench.server.commands();
            drop(semaphore.acquire().unwrap());
            bench.server.commands() - before
        });
        assert_eq!(cost, 5, "{permits}: a write and a read; a write, the queue and a read");
    }
}

/// Writes a semaphore with so many permits, of which so many holders hold one each.
fn hold_one_each(bench: &Bench, permits: u32, holders: u32) -> String {
    let unix = SystemClock.unix_seconds();
    let mut item = format!("memlock-semaphore/1 {:032x} {permits} {} 86400 1\n", 1, unix + 86_400);
    for holder in 1..=holders {
        item += &format!(
            "{holder:032x} 1 {} a-host-name-of-thirty-two-letters 4194304 {unix}\n",
            unix + 600
        );
    }
    // The server's time is computed from its expiry, so that has to be true.
    let expires = u32::try_from(unix + 86_400).unwrap();
    assert!(bench.server.plain().set("semaphore:s", &item, expires));
    item
}

#[test]
fn ten_thousand_can_hold_one_each_and_a_refusal_of_more_says_so() {
    let bench = Bench::new();
    let item = hold_one_each(&bench, 10_000, 9_999);
    let semaphore = bench.semaphore(10_000);
    let mut last = semaphore.try_acquire().unwrap().unwrap();
    assert_safe!(semaphore.try_acquire().unwrap().is_none(), "more holders than permits");
    let status = bench.semaphore(10_000).status().unwrap().unwrap();
    assert_eq!((status.available, status.holders.len()), (0, 10_000));
    assert_eq!(last.extend(LEASE).unwrap(), Extension::Extended);
    assert_eq!(last.release().unwrap(), Release::Released);
    assert_eq!(bench.server.plain().get("semaphore:s").unwrap().len(), item.len());

    hold_one_each(&bench, 10_002, 10_000);
    let semaphore = bench.semaphore(10_002);
    let subject = format!("semaphore \"s\" on memcached at {}", bench.server.address());
    let limit = "(it has 10000 concurrent holders, the highest number possible).";
    let has = "has 2 of 10002 permits available, but cannot have another holder";
    let late = "Timed out after 20 ms waiting for a permit of the";
    for (wait, said) in [
        (Wait::NEVER, format!("The {subject} {has} {limit}")),
        (Wait::at_most(Duration::from_millis(20)), format!("{late} {subject} {limit}")),
    ] {
        let report = semaphore.acquire_or_report(Request::default(), &wait).unwrap().unwrap_err();
        assert_eq!(report.to_string(), said);
    }
}
