//! `ForkLocal`: all threads get the first value that is made, and each value that is made is
//! dropped once.
//!
//! A fork cannot be modelled, because shuttle's threads are not real threads. That a child gets a
//! value of its own is tested by the unit tests and `tests/c/fork.c`.

use std::sync::atomic::{AtomicUsize, Ordering};

use shuttle::sync::Arc;
use shuttle::thread;

use super::explore;
use crate::fork::ForkLocal;

/// Counts the values that are alive.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        assert_ne!(self.0.fetch_sub(1, Ordering::Relaxed), 0, "dropped twice");
    }
}

#[test]
fn threads_that_make_it_at_the_same_time_all_get_the_first_one() {
    explore("fork_local", || {
        let alive = Arc::new(AtomicUsize::new(0));
        let local = Arc::new(ForkLocal::<Counted>::new());
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (alive, local) = (Arc::clone(&alive), Arc::clone(&local));
                thread::spawn(move || {
                    let before = local.existing().map(std::ptr::from_ref::<Counted>);
                    let make = || {
                        // Making a value takes a while, in which another thread may make one.
                        thread::yield_now();
                        alive.fetch_add(1, Ordering::Relaxed);
                        Ok::<_, ()>(Counted(Arc::clone(&alive)))
                    };
                    let made = std::ptr::from_ref(local.get_or_try_init(make).unwrap());
                    assert!(before.is_none_or(|before| before == made), "it was replaced");
                    assert_eq!(local.existing().map(std::ptr::from_ref), Some(made));
                    made as usize
                })
            })
            .collect();
        let made: Vec<usize> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(made.iter().all(|&address| address == made[0]), "two values are in use: {made:x?}");
        assert_eq!(alive.load(Ordering::Relaxed), 1, "those made in vain are dropped");
        drop(local);
        assert_eq!(alive.load(Ordering::Relaxed), 0);
    });
}
