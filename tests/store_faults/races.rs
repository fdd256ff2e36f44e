//! Many holders, one after another, as fast as they can.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use memlock_core::Release;
use memlock_tests::{assert_safe, assert_safe_eq};

use crate::{Bench, LEASE, PATIENCE};

const THREADS: usize = 8;
const ROUNDS: usize = 24;

/// A number that is drawn before the server has locked the row is no fence: the next holder may have
/// drawn a smaller one. Each thread has a client of its own, as processes have.
pub(crate) fn fences_rise_in_the_order_of_holding(bench: &Bench) {
    let (inside, fences) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let client = bench.client();
                let mutex = client.mutex("m", LEASE).unwrap();
                for _ in 0..ROUNDS {
                    let mut lock = mutex.lock_for(PATIENCE).unwrap().unwrap();
                    assert_safe_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "granted twice");
                    fences.lock().unwrap().push(lock.fence());
                    assert_safe_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1, "granted twice");
                    assert_eq!(lock.unlock().unwrap(), Release::Released);
                }
            });
        }
    });
    let fences = fences.into_inner().unwrap();
    assert_eq!(fences.len(), THREADS * ROUNDS);
    let falls: Vec<_> = fences.windows(2).filter(|two| two[0] >= two[1]).collect();
    assert_safe!(falls.is_empty(), "{falls:?}");
}

/// The same without a wait: the attempts of all threads hit the server together.
pub(crate) fn of_many_attempts_one_is_granted(bench: &Bench) {
    let (inside, granted, last) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let client = bench.client();
                let mutex = client.mutex("m", LEASE).unwrap();
                for _ in 0..25 * ROUNDS {
                    let Some(mut lock) = mutex.try_lock().unwrap() else { continue };
                    assert_safe_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "granted twice");
                    granted.fetch_add(1, Ordering::SeqCst);
                    let before = last.swap(lock.fence(), Ordering::SeqCst);
                    assert_safe!(before < lock.fence(), "{} after {before}", lock.fence());
                    thread::yield_now();
                    assert_safe_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1, "granted twice");
                    assert_eq!(lock.unlock().unwrap(), Release::Released);
                }
            });
        }
    });
    assert!(granted.into_inner() > 0);
}
