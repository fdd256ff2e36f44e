//! What is logged about handles that were opened with another number of permits, and what they cost.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use log::LevelFilter;
use memlock_core::{Client, Mismatch, Request, Semaphore, Wait};
use memlock_tests::cost::usual_cost;
use memlock_tests::listener::Listener;

use super::{Bench, LEASE};

/// What was logged about the semaphore of this name.
fn warnings(name: &str) -> Vec<String> {
    let heard = Listener::at(LevelFilter::Warn).heard();
    heard.iter().filter(|text| text.contains(name)).cloned().collect()
}

fn uses(semaphore: &Semaphore) {
    drop(semaphore.acquire().unwrap());
}

#[test]
fn a_mismatch_is_logged_once_for_each_client_and_semaphore() {
    let name = "logged once";
    let bench = Bench::new();
    let opened = |client: &Client, permits| client.semaphore(name, permits, LEASE).unwrap();
    assert!(warnings(name).is_empty());
    let (one, two) = (bench.client(), bench.client());
    for permits in [5, 5] {
        uses(&opened(&one, permits));
    }
    // By a handle that never differs, by those that say what to do, and by reads.
    uses(&one.open_semaphore(name, LEASE).unwrap());
    assert!(opened(&two, 8).with_mismatch(Mismatch::Refuse).acquire().is_err());
    assert!(opened(&two, 8).status().unwrap().is_some());
    assert_eq!(warnings(name), [""; 0]);
    for _ in 0..3 {
        let eight = opened(&two, 8);
        assert_eq!(eight.report_mismatch(), None, "it is not known yet");
        uses(&eight);
        uses(&eight.with_lease(LEASE).unwrap());
        assert_eq!(eight.report_mismatch().as_slice(), warnings(name));
    }
    let text = format!(
        "The semaphore \"logged once\" on memcached at {} has 5 permits, and was opened with 8: 5 \
         applies. Change it for all programs with `memlock resize`.",
        bench.server.address()
    );
    assert_eq!(warnings(name), std::slice::from_ref(&text));
    let _ = opened(&one, 8).set_up(LEASE).unwrap();
    assert_eq!(warnings(name), [text.clone(), text], "it is another client");
    // Those that resize it, or were there before, go on without a word.
    let five = opened(&one, 5);
    uses(&five);
    uses(&opened(&one, 3).with_mismatch(Mismatch::Resize));
    uses(&five);
    assert_eq!(five.report_mismatch().unwrap().matches("has 3 permits").count(), 1);
    five.resize(4).unwrap();
    assert_eq!(warnings(name).len(), 2);
}

/// One of them resizes the semaphore, while the others have read its old number.
#[test]
fn threads_that_share_a_handle_that_resizes_get_what_it_asks_for() {
    const THREADS: usize = 8;
    let bench = Bench::new();
    let (old, new) = (bench.client(), bench.client());
    for round in 0..20 {
        let name = format!("shared {round}");
        let _ = old.semaphore(&name, 5, LEASE).unwrap().set_up(LEASE).unwrap();
        let eight = new.semaphore(&name, 8, LEASE).unwrap().with_mismatch(Mismatch::Resize);
        let request = Request { permits: 6, ..Request::default() };
        let (start, held) = (Barrier::new(THREADS), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    start.wait();
                    let tried = eight.acquire_with(request, &Wait::NEVER).unwrap();
                    held.fetch_add(usize::from(tried.done().is_some()), Ordering::SeqCst);
                });
            }
        });
        assert!(held.into_inner() > 0);
        assert_eq!(eight.status().unwrap().unwrap().permits, 8);
    }
}

#[test]
fn a_mismatch_costs_no_further_round_trip() {
    let bench = Bench::new();
    let _ = bench.semaphore(5).set_up(LEASE).unwrap();
    let client = bench.client();
    let number_of_commands = |permits| {
        usual_cost(|| {
            let semaphore = client.semaphore("s", permits, LEASE).unwrap();
            let before = bench.server.commands();
            drop(semaphore.acquire().unwrap());
            bench.server.commands() - before
        })
    };
    assert_eq!(number_of_commands(8), number_of_commands(5));
}
