//! Servers that are silent or lose what is sent, and what waiters leave behind in their queue.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use memlock_core::clock::Clock;
use memlock_core::wait::entries;
use memlock_core::{Client, Permit, Release, Request, Result, Semaphore, Wait, Waited};
use memlock_tests::frozen::Frozen;
use memlock_tests::launch::until;
use memlock_tests::proxy::{Fault, Match, Proxy};
use memlock_tests::url;

use super::{Bench, LEASE, PATIENCE};
use crate::bench::{lost, on_memory};

/// The thread that calls back may be the leader of all threads of its process.
#[test]
fn a_callback_may_release_permits_of_the_semaphore_that_is_waited_for() {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        let bench = Bench::new();
        let proxy = Proxy::start(bench.server.address());
        let client = Client::connect(&format!("{}?io_timeout=5s", proxy.url())).unwrap();
        let (semaphore, witness) = (client.semaphore("s", 2, LEASE).unwrap(), bench.semaphore(2));
        let available = || witness.status().unwrap().unwrap().available;
        drop(witness.acquire().unwrap());
        let held = RefCell::new(Some(semaphore.acquire().unwrap()));
        proxy.inject(Match::Putting, Fault::SwallowReply);
        let releases = || {
            if proxy.hits() > 0
                && let Some(mut permit) = held.take()
            {
                assert_eq!(permit.release().unwrap(), Release::Released);
            }
            false
        };
        let wait = Wait::at_most(3 * PATIENCE).unless(&releases);
        let got = semaphore.acquire_with(Request::default(), &wait).unwrap();
        let Waited::Done(permit) = got else { panic!("{got:?}") };
        assert!(held.take().is_none(), "nobody was asked while the reply was missing");
        assert_eq!(available(), 1);
        drop(permit);
        done.send(available()).unwrap();
    });
    assert_eq!(is_done.recv_timeout(4 * PATIENCE), Ok(2));
}

#[test]
fn what_was_left_behind_on_a_silent_server_does_not_hold_up_a_wait_again_and_again() {
    const MANY: u32 = 40;
    let (clock, silent) = (Frozen::clock(), Arc::new(AtomicBool::new(false)));
    let asked = Arc::new(AtomicU32::new(0));
    let the_clock: Arc<dyn Clock> = Arc::<Frozen>::clone(&clock);
    let (is_silent, counted) = (Arc::clone(&silent), Arc::clone(&asked));
    // Each request that is lost takes a timeout.
    let (client, _) = on_memory(&the_clock, move |server, route, ops| {
        if !is_silent.load(Ordering::SeqCst) {
            return server.run(route, ops);
        }
        counted.fetch_add(1, Ordering::SeqCst);
        clock.advance(Duration::from_millis(100));
        Err(lost())
    });
    let semaphore = client.semaphore("s", MANY, LEASE).unwrap();
    let permits: Vec<Permit> = (0..MANY).map(|_| semaphore.acquire().unwrap()).collect();
    permits.into_iter().for_each(Permit::abandon);
    silent.store(true, Ordering::SeqCst);
    let waited = semaphore.acquire_for(LEASE / 300);
    assert!(!matches!(waited, Ok(Some(_))), "{waited:?}");
    let asked = asked.load(Ordering::SeqCst);
    assert!(asked < MANY / 4, "{asked} requests, each of which costs a timeout");
}

#[test]
fn what_was_left_behind_is_taken_off_at_the_next_contact_however_many_have_failed() {
    let (clock, silent) = (Frozen::clock(), Arc::new(AtomicBool::new(false)));
    let (the_clock, is_silent) = (Arc::<Frozen>::clone(&clock), Arc::clone(&silent));
    let the_clock: Arc<dyn Clock> = the_clock;
    let time = Arc::clone(&clock);
    let (client, _) = on_memory(&the_clock, move |server, route, ops| {
        if !is_silent.load(Ordering::SeqCst) {
            return server.run(route, ops);
        }
        time.advance(Duration::from_millis(100));
        Err(lost())
    });
    let semaphore = client.semaphore("s", 2, LEASE).unwrap();
    semaphore.acquire().unwrap().abandon();
    silent.store(true, Ordering::SeqCst);
    for _ in 0..8 {
        assert!(client.mutex("m", LEASE).unwrap().try_lock().is_err());
        clock.advance(Duration::from_millis(100));
    }
    silent.store(false, Ordering::SeqCst);
    let _ = client.mutex("m", LEASE).unwrap().try_lock().unwrap();
    assert_eq!(semaphore.status().unwrap().unwrap().available, 2);
}

/// The priorities and permits of the waiters in the queue.
fn queue(bench: &Bench) -> Vec<(i64, u32)> {
    let queue = bench.server.plain().get("semaphore:s%wait").unwrap_or_default();
    entries::waiters(&queue).map(|entry| (entry.priority, entry.permits)).collect()
}

/// Waits for so many permits in a thread of its own, until all waits of the client are cancelled.
fn waits<'a>(
    scope: &'a Scope<'a, '_>,
    semaphore: &'a Semaphore,
    priority: i64,
    permits: u32,
) -> ScopedJoinHandle<'a, Result<()>> {
    let request = Request { permits, priority, ..Request::default() };
    scope.spawn(move || semaphore.acquire_with(request, &Wait::at_most(3 * PATIENCE)).map(drop))
}

/// It may have been for more permits, or of a higher priority: then others would wait behind an
/// entry without a waiter.
#[test]
fn a_wait_does_not_stand_where_an_earlier_one_of_its_client_could_not_leave_the_queue() {
    let bench = Bench::new();
    let _held = bench.semaphore(5).acquire().unwrap();
    let client = Client::connect(&url::with(&bench.server.url(), "io_timeout=5s")).unwrap();
    let semaphore = client.semaphore("s", 5, LEASE).unwrap();
    thread::scope(|scope| {
        let first = waits(scope, &semaphore, 7, 5);
        until("the first one waits", || queue(&bench) == [(7, 5)]);
        bench.server.pause();
        client.cancel_waits();
        let _ = first.join().unwrap();
        bench.server.resume();
        assert_eq!(queue(&bench), [(7, 5)], "it could not leave the queue");
        let _second = waits(scope, &semaphore, -3, 5);
        until("the second one waits", || queue(&bench) == [(-3, 5)]);
        client.cancel_waits();
    });
    assert_eq!(queue(&bench), []);
}

/// The first attempt to take the line off fails as that of the earlier wait did.
#[test]
fn a_wait_through_an_outage_takes_off_what_an_earlier_one_left_behind() {
    let bench = Bench::new();
    let _held: Vec<Permit> = (0..5).map(|_| bench.semaphore(5).acquire().unwrap()).collect();
    let proxy = Proxy::start(bench.server.address());
    let client = Client::connect(&url::patient(&proxy.url())).unwrap();
    let semaphore = client.semaphore("s", 5, LEASE).unwrap();
    let lost = Arc::new(AtomicU32::new(0));
    thread::scope(|scope| {
        let first = waits(scope, &semaphore, 7, 5);
        until("the first one waits", || queue(&bench) == [(7, 5)]);
        let counts = Arc::clone(&lost);
        proxy.decide(move |burst| {
            let is_of_the_queue = burst.windows(5).any(|part| part == b"%wait");
            is_of_the_queue.then(|| {
                counts.fetch_add(1, Ordering::SeqCst);
                Fault::CutRequestAfter(0)
            })
        });
        client.cancel_waits();
        let _ = first.join().unwrap();
        let before = lost.load(Ordering::SeqCst);
        let _second = waits(scope, &semaphore, -3, 1);
        // By then it has tried to take that line off, and to join.
        until("two more are lost", || lost.load(Ordering::SeqCst) > before + 1);
        proxy.clear_rules();
        until("the second one waits", || queue(&bench) == [(-3, 1)]);
        client.cancel_waits();
    });
    assert_eq!(queue(&bench), []);
}
