//! Where one thread sleeps until another thread, or a signal handler, wakes it.
//!
//! | state | the sleeping thread | what [`Parker::unpark`] does |
//! | --- | --- | --- |
//! | idle | is awake | notes it, so that the next sleep returns at once: no system call |
//! | parked | sleeps on the state itself, a futex | wakes it |
//! | polling | sleeps on descriptors | leaves it to the caller to make one of them readable |
//!
//! A sleep that was ended is noted, too, and woken again by each further call: the thread that was
//! the first to end it may have been interrupted before it woke the sleeper, by a signal handler
//! that waits for the sleeper.
//!
//! A condition variable would not do: a signal handler may not notify one.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const IDLE: u32 = 0;
/// Set beside the state.
const NOTIFIED: u32 = 1;
const PARKED: u32 = 2;
const POLLING: u32 = 4;

/// For one sleeping thread at a time.
#[derive(Debug, Default)]
pub(crate) struct Parker {
    state: AtomicU32,
}

impl Parker {
    /// Sleeps for this long, or until it is unparked. A signal may end the sleep early.
    pub(crate) fn park(&self, longest: Duration) {
        self.sleep(PARKED, || wait(&self.state, PARKED, longest));
    }

    /// Calls `poll`, which sleeps on descriptors, unless it was unparked meanwhile.
    pub(crate) fn poll(&self, poll: impl FnOnce()) {
        self.sleep(POLLING, poll);
    }

    fn sleep(&self, state: u32, sleep: impl FnOnce()) {
        if self.state.compare_exchange(IDLE, state, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            sleep();
        }
        self.state.store(IDLE, Ordering::SeqCst);
    }

    /// Wakes the thread, or prevents its next sleep. True if the thread is polling: then the caller
    /// has to make one of its descriptors readable. A signal handler may call this.
    #[must_use]
    pub(crate) fn unpark(&self) -> bool {
        let before = self.state.fetch_or(NOTIFIED, Ordering::SeqCst);
        if before & PARKED != 0 {
            wake(&self.state);
        }
        before & POLLING != 0
    }

    /// Returns when a thread sleeps.
    #[cfg(test)]
    pub(crate) fn until_asleep(&self) {
        while self.state.load(Ordering::SeqCst) & (PARKED | POLLING) == 0 {
            std::thread::yield_now();
        }
    }
}

/// The `timespec` of the system call, whose fields are a word each on every machine.
#[repr(C)]
struct Timeout {
    seconds: libc::c_long,
    nanos: libc::c_long,
}

/// Sleeps while `state` has this value. The time in which the host is suspended does not count.
fn wait(state: &AtomicU32, value: u32, longest: Duration) {
    let timeout = Timeout {
        seconds: longest.as_secs().min(i32::MAX as u64) as libc::c_long,
        nanos: longest.subsec_nanos() as libc::c_long,
    };
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the state and the timeout live until the call returns. It writes nothing.
    unsafe { libc::syscall(libc::SYS_futex, state.as_ptr(), operation, value, &raw const timeout) };
}

fn wake(state: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the state is only an address here.
    unsafe { libc::syscall(libc::SYS_futex, state.as_ptr(), operation, 1) };
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn an_unpark_wakes_a_parked_thread_or_prevents_one_sleep() {
        let parker = Parker::default();
        let began = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| parker.park(LONG));
            parker.until_asleep();
            assert!(!parker.unpark());
        });
        // As an unpark that is interrupted before it wakes the thread.
        std::thread::scope(|scope| {
            scope.spawn(|| parker.park(LONG));
            parker.until_asleep();
            std::thread::sleep(Duration::from_millis(20));
            parker.state.fetch_or(NOTIFIED, Ordering::SeqCst);
            assert!(!parker.unpark());
        });
        assert!(!parker.unpark() && !parker.unpark());
        parker.park(LONG);
        assert!(began.elapsed() < LONG);
        let began = Instant::now();
        parker.park(Duration::from_millis(2));
        assert!(began.elapsed() >= Duration::from_millis(2), "two unparks prevent one sleep");
    }

    #[test]
    fn a_polling_thread_is_woken_by_the_caller_of_unpark() {
        let parker = Parker::default();
        let mut polls = 0;
        parker.poll(|| {
            polls += 1;
            assert!(parker.unpark(), "its descriptors have to be made readable");
            assert!(parker.unpark(), "also if another thread is about to do so");
        });
        assert!(!parker.unpark());
        parker.poll(|| polls += 10);
        parker.poll(|| polls += 100);
        assert_eq!(polls, 101);
    }

    /// Two threads that wake each other in turn: a lost wake-up would end the test by its timeout.
    #[test]
    fn no_wake_up_is_lost() {
        let rounds = if cfg!(miri) { 20 } else { 20_000 };
        let parkers = [Parker::default(), Parker::default()];
        let turn = AtomicU32::new(0);
        let began = Instant::now();
        std::thread::scope(|scope| {
            for me in 0..2 {
                let (parkers, turn) = (&parkers, &turn);
                scope.spawn(move || {
                    for _ in 0..rounds {
                        while turn.load(Ordering::SeqCst) as usize != me {
                            parkers[me].park(LONG);
                        }
                        turn.store(1 - me as u32, Ordering::SeqCst);
                        let _ = parkers[1 - me].unpark();
                    }
                });
            }
        });
        assert!(began.elapsed() < LONG);
    }
}
