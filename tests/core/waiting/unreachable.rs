//! Waiting without listeners: slower, bounded, and bearable for the server.
//!
//! Time is the subject here; the bounds leave room for a busy machine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::wait::entries;
use memlock_core::{Client, Wait, Waited};
use memlock_tests::server::Memcached;
use memlock_tests::stopwatch::Stopwatch;
use memlock_tests::url;

use super::bench::{LEASE, PATIENCE, unlock, until};

/// Wake-ups are switched off; or all are sent to an address without a host (one that is reserved
/// for documentation).
const DEAF: [&str; 2] = ["notify=off", "notify=192.0.2.1"];

/// How long after the release a waiter has it, for holders that release after so many milliseconds;
/// in their order.
fn latencies(parameter: &str, holds: &[u64]) -> Vec<Duration> {
    let server = Memcached::start();
    let url = url::with(&server.url(), parameter);
    let (done, measured) = mpsc::channel();
    let watch = &Stopwatch::start();
    thread::scope(|scope| {
        for hold in holds {
            let (url, done) = (&url, done.clone());
            scope.spawn(move || {
                let name = format!("m{hold}");
                let [holder, waiter] = [0, 1].map(|_| Client::connect(url).unwrap());
                let held = holder.mutex(&name, LEASE).unwrap().lock().unwrap();
                let entered = scope.spawn(move || {
                    let lock = waiter.mutex(&name, LEASE).unwrap().lock().unwrap();
                    let entered = watch.elapsed();
                    unlock(lock);
                    entered
                });
                thread::sleep(Duration::from_millis(*hold));
                let freed = watch.elapsed();
                unlock(held);
                done.send(entered.join().unwrap().saturating_sub(freed)).unwrap();
            });
        }
    });
    drop(done);
    let mut latencies: Vec<Duration> = measured.iter().collect();
    latencies.sort();
    latencies
}

#[test]
#[ignore = "real time: make prove"]
fn without_wake_ups_a_short_wait_ends_soon_and_a_long_one_somewhat_later() {
    for parameter in DEAF {
        let short: Vec<u64> = (1..30).map(|step| step * 37).collect();
        let long: Vec<u64> = (0..10).map(|step| 3000 + step * 137).collect();
        for (holds, typical, longest) in [(short, 300, 450), (long, 1050, 1200)] {
            let latencies = latencies(parameter, &holds);
            let nine_in_ten = latencies[latencies.len() * 9 / 10];
            assert!(nine_in_ten <= Duration::from_millis(typical), "{parameter}: {latencies:?}");
            assert!(
                latencies[latencies.len() - 1] <= Duration::from_millis(longest),
                "{parameter}: {latencies:?}"
            );
        }
    }
}

#[test]
fn without_wake_ups_a_waiter_asks_the_server_less_than_four_times_a_second_after_the_first() {
    const WAITERS: usize = 8;
    for parameter in DEAF {
        let server = Memcached::start();
        let url = url::with(&server.url(), parameter);
        let holder = Client::connect(&url).unwrap();
        let held = holder.mutex("m", LEASE).unwrap().lock().unwrap();
        let clients = [(); WAITERS].map(|()| Client::connect(&url).unwrap());
        let (commands, during) = thread::scope(|scope| {
            for client in &clients {
                scope.spawn(move || {
                    let mutex = client.mutex("m", LEASE).unwrap();
                    let waited = mutex.lock_with(&Wait::at_most(3 * PATIENCE)).unwrap();
                    assert!(matches!(waited, Waited::Interrupted));
                });
            }
            until(|| {
                let queue = server.plain().get("lock:m%wait").unwrap_or_default();
                entries::waiters(&queue).count() == WAITERS
            });
            thread::sleep(Duration::from_millis(1500));
            let (began, before) = (Instant::now(), server.commands());
            thread::sleep(Duration::from_secs(3));
            let counted = (server.commands() - before, began.elapsed());
            clients.iter().for_each(Client::cancel_waits);
            counted
        });
        assert!(
            commands as f64 <= WAITERS as f64 * 4.0 * during.as_secs_f64(),
            "{parameter}: {commands} commands in {during:?}"
        );
        unlock(held);
    }
}

#[test]
fn a_waiter_without_a_listener_is_not_starved_by_those_with_one() {
    let server = Memcached::start();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mutex = Client::connect(&server.url()).unwrap().mutex("m", LEASE).unwrap();
                while !stop.load(Ordering::SeqCst) {
                    let held = mutex.lock().unwrap();
                    thread::sleep(Duration::from_millis(2));
                    unlock(held);
                }
            });
        }
        let unreachable = Client::connect(&url::with(&server.url(), "notify=off")).unwrap();
        let mutex = unreachable.mutex("m", LEASE).unwrap();
        let waits = [(); 5].map(|()| mutex.lock_for(PATIENCE).unwrap().map(unlock));
        stop.store(true, Ordering::SeqCst);
        assert!(waits.iter().all(Option::is_some), "it was starved: {waits:?}");
    });
}
