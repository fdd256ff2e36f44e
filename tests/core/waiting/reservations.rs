//! Reservations: a lock that is kept for a waiter which may not hear that it is woken.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use memlock_core::clock::SystemClock;
use memlock_core::notify::WakeAddress;
use memlock_core::store::Op;
use memlock_core::wait::entries::{self, Request};
use memlock_core::wait_id::WaitId;

use memlock_tests::frozen::Frozen;

use super::bench::{Bench, Fate, LEASE, gets, lock, unlock, until, waiter};

/// A waiter that is in the queue, and that no releaser wakes.
const DEAD: WaitId = WaitId(7);

fn reserved_for(bench: &Bench) -> Option<WaitId> {
    let value = bench.server.plain().get("lock:m")?;
    memlock_core::OwnerRecord::parse(&value)?.reserved_for
}

/// The lock is reserved for a dead waiter now, and for three seconds from a moment after the one
/// that is returned.
fn reserve(bench: &Bench, line: &[u8]) -> Instant {
    let clock = Frozen::clock();
    let holder = lock(&bench.hooked(Arc::<Frozen>::clone(&clock), |_| Fate::Done));
    // Before a short hold it would be passed over some times.
    clock.advance(Duration::from_millis(400));
    // The holder knows of the queue by its record.
    bench.append(line);
    bench.server.plain().command("append lock:m 0 0 6\r\n rings");
    let began = Instant::now();
    unlock(holder);
    began
}

#[test]
fn the_lock_is_reserved_for_a_waiter_that_cannot_be_woken_or_does_not_hear_all() {
    let nowhere = WakeAddress::parse(b"192.0.2.1:9");
    for line in [
        entries::line(None, DEAD, Request::default()),
        entries::unproven_line(nowhere, DEAD, Request::default()),
    ] {
        until(|| is_reserved_for(&line));
    }
}

/// True if that is certain; false if the reservation may have run out meanwhile on a busy machine.
fn is_reserved_for(line: &[u8]) -> bool {
    let bench = Bench::new();
    let began = reserve(&bench, line);
    let reserved = reserved_for(&bench);
    assert!(bench.waiters().is_empty(), "its turn has come");
    let other = bench.client().mutex("m", LEASE).unwrap().try_lock().unwrap();
    let is_certain = began.elapsed() < Duration::from_secs(3);
    assert!(!is_certain || reserved == Some(DEAD), "{reserved:?}");
    assert!(!is_certain || other.is_none(), "no other client can have it");
    is_certain
}

#[test]
fn nothing_is_reserved_for_a_waiter_that_hears_what_is_sent_to_it() {
    let bench = Bench::new();
    reserve(&bench, &entries::line(WakeAddress::parse(b"192.0.2.1:9"), DEAD, Request::default()));
    assert_eq!(reserved_for(&bench), None);
    unlock(lock(&bench.client()));
}

#[test]
fn what_is_reserved_for_a_dead_waiter_is_free_after_three_seconds() {
    let bench = Bench::new();
    reserve(&bench, &entries::line(None, DEAD, Request::default()));
    let said = bench.server.plain().command("mg lock:m t");
    // On a busy machine it may be over by now.
    let seconds: u64 = said.strip_prefix("HD t").map_or(0, |seconds| seconds.parse().unwrap());
    assert!(seconds <= 5, "three, and two for the server's clock: {seconds}");
    unlock(gets(&waiter(&bench.client())));
    until(|| bench.entries().is_empty());
}

/// A waiter that was woken in vain, and asked to come so much later, by a releaser that has not
/// taken it off the queue yet. Gives whether it has joined the queue again when it has its turn,
/// and how often.
fn joins_again_when_woken_in_vain(after: Duration) -> (bool, usize) {
    let (bench, looks, joins) =
        (Bench::new(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counted = [Arc::clone(&looks), Arc::clone(&joins)];
    let client = bench.hooked(Arc::new(SystemClock), move |op| {
        match op {
            Op::Get { key, .. } if key.as_str().ends_with("%wait") => {
                counted[0].fetch_add(1, Ordering::SeqCst)
            }
            Op::Prepend { key, .. } if key.as_str().ends_with("%wait") => {
                counted[1].fetch_add(1, Ordering::SeqCst)
            }
            _ => 0,
        };
        Fate::Done
    });
    let (holder, waiter) = bench.waited_for(&client);
    let queue = bench.entries();
    let line = entries::waiters(&queue).next().unwrap();
    let before = looks.load(Ordering::SeqCst);
    let wake = format!("memlock/1 {} {}", line.id, after.as_micros());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.send_to(wake.as_bytes(), line.address.unwrap().socket()).unwrap();
    until(|| looks.load(Ordering::SeqCst) > before);
    let is_off = || !bench.waiters().contains(&line.id);
    if after < WATCH {
        until(|| is_off() && bench.waiters().len() == 1);
    }
    let joined = is_off();
    unlock(holder);
    unlock(gets(&waiter));
    (joined, joins.load(Ordering::SeqCst))
}

/// A waiter that is to watch over a reservation is asked to come so much later.
const WATCH: Duration = Duration::from_millis(25);

#[test]
fn a_waiter_woken_in_vain_does_not_rely_on_an_entry_that_is_about_to_be_removed() {
    for after in [Duration::ZERO, Duration::from_millis(2), Duration::from_millis(20)] {
        assert_eq!(joins_again_when_woken_in_vain(after), (true, 1), "{after:?}");
    }
}

#[test]
fn a_waiter_that_watches_over_a_reservation_keeps_its_place() {
    assert_eq!(joins_again_when_woken_in_vain(WATCH), (false, 0));
}
