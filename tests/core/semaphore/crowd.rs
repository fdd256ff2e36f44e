//! Many threads of a few processes on one semaphore: they write its record together, and not one
//! against the other.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::{Notice, Release, RenewOptions, Semaphore};
use memlock_tests::assert_safe;

use super::{Bench, PATIENCE};

const PROCESSES: u32 = 3;
const THREADS: u32 = 50;
const HOLDS: u32 = 10;

/// Has each of these semaphores, which are as of other processes, used by many threads. Gives the
/// longest that any waited for a permit.
fn crowd(
    semaphores: &[Semaphore],
    inside: &AtomicU32,
    most: u32,
    goes_on: impl Fn(u32) -> bool + Sync,
) -> Duration {
    let goes_on = &goes_on;
    thread::scope(|scope| {
        let crowd: Vec<_> = semaphores
            .iter()
            .flat_map(|semaphore| (0..THREADS).map(move |_| semaphore))
            .map(|semaphore| {
                scope.spawn(move || {
                    let mut longest = Duration::ZERO;
                    for hold in 0.. {
                        if !goes_on(hold) {
                            break;
                        }
                        let began = Instant::now();
                        let mut permit = semaphore.acquire().unwrap();
                        longest = longest.max(began.elapsed());
                        assert_safe!(
                            inside.fetch_add(1, Ordering::SeqCst) < most,
                            "more than {most} hold one"
                        );
                        thread::sleep(Duration::from_millis(2));
                        inside.fetch_sub(1, Ordering::SeqCst);
                        assert_eq!(permit.release().unwrap(), Release::Released);
                    }
                    longest
                })
            })
            .collect();
        crowd.into_iter().map(|thread| thread.join().unwrap()).max().unwrap_or_default()
    })
}

/// The server is asked how often it was written to, which does not depend on how fast the machine
/// is.
fn costs(permits: u32) -> (f64, Duration) {
    let bench = Bench::new();
    let semaphores: Vec<Semaphore> = (0..PROCESSES).map(|_| bench.semaphore(permits)).collect();
    drop(semaphores[0].acquire().unwrap());
    let (before, inside) = (bench.server.commands(), AtomicU32::new(0));
    let longest = crowd(&semaphores, &inside, permits, |hold| hold < HOLDS);
    let commands = bench.server.commands() - before;
    let status = semaphores[0].status().unwrap().unwrap();
    assert_eq!(status.available, permits, "{status:?}");
    (commands as f64 / f64::from(PROCESSES * THREADS * HOLDS), longest)
}

#[test]
fn threads_that_need_not_wait_for_a_permit_do_not_wait_for_each_other() {
    let (commands, longest) = costs(1000);
    assert!(commands < 5.0, "{commands} commands for each hold");
    assert!(longest < PATIENCE / 4, "{longest:?} for one permit");
}

#[test]
fn threads_that_wait_for_permits_of_their_own_process_leave_the_queue_alone() {
    let (commands, longest) = costs(60);
    assert!(commands < 10.0, "{commands} commands for each hold");
    assert!(longest < PATIENCE / 2, "{longest:?} for one permit");
}

#[test]
fn what_is_kept_of_a_semaphore_that_many_write_is_renewed_in_time() {
    let bench = Bench::new();
    let client = bench.client();
    let lease = Duration::from_secs(9);
    let permit = client.semaphore("s", 1000, lease).unwrap().acquire().unwrap();
    let at_risk = std::sync::Arc::new(AtomicBool::new(false));
    let told = std::sync::Arc::clone(&at_risk);
    let tell = move |notice: Notice| {
        eprintln!("{notice:?}");
        told.store(true, Ordering::SeqCst);
    };
    let kept =
        permit.renew(RenewOptions { max_hold: None, on_notice: Some(Box::new(tell)) }).unwrap();
    // Of the same process, and of another one.
    let semaphores = [client.semaphore("s", 1000, super::LEASE).unwrap(), bench.semaphore(1000)];
    let (began, inside) = (Instant::now(), AtomicU32::new(0));
    let renewed = AtomicU32::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut before = kept.remaining();
            while renewed.load(Ordering::SeqCst) < 2 && began.elapsed() < 3 * PATIENCE {
                thread::sleep(Duration::from_millis(20));
                let now = kept.remaining();
                if now > before {
                    renewed.fetch_add(1, Ordering::SeqCst);
                }
                before = now;
            }
            // Enough is enough, renewed or not.
            renewed.fetch_add(10, Ordering::SeqCst);
        });
        crowd(&semaphores, &inside, 1000, |_| renewed.load(Ordering::SeqCst) < 10);
    });
    assert_eq!(renewed.load(Ordering::SeqCst), 12, "it was renewed twice");
    assert!(!at_risk.load(Ordering::SeqCst), "and in time");
    assert_eq!(kept.release().unwrap(), Release::Released);
}
