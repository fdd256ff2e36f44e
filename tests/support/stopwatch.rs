//! A stopwatch for upper bounds: it does not count the time for which the machine did not run us.
//!
//! An upper bound on elapsed time holds on a machine that has time for the test. On a busy machine,
//! a thread that sleeps for 5 ms may wake up after 50 ms or after a second, and so may the threads
//! that are measured. The stopwatch is such a thread: it sleeps for a tick, again and again, and
//! counts no more than two ticks for each sleep. On an idle machine this is the elapsed time, on a
//! busy machine it is less.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};

use crate::wire::lock;

/// How long each sleep is to last.
const TICK: Duration = Duration::from_millis(5);

/// A stopwatch that runs from its start until it is dropped.
#[derive(Debug)]
pub struct Stopwatch {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    marks: Mutex<Marks>,
    over: AtomicBool,
}

/// The counted time at each tick of a stopwatch.
#[derive(Clone, Debug, Default)]
pub struct Marks(Vec<Mark>);

#[derive(Clone, Copy, Debug)]
struct Mark {
    /// On the boot clock.
    at: Duration,
    counted: Duration,
}

impl Stopwatch {
    /// Starts counting.
    pub fn start() -> Stopwatch {
        let shared = Arc::new(Shared::default());
        lock(&shared.marks).0.push(Mark { at: now(), counted: Duration::ZERO });
        let counting = Arc::clone(&shared);
        thread::spawn(move || {
            while !counting.over.load(Ordering::Relaxed) {
                thread::sleep(TICK);
                lock(&counting.marks).add(now());
            }
        });
        Stopwatch { shared }
    }

    /// The counted time so far: at most the elapsed time.
    pub fn elapsed(&self) -> Duration {
        lock(&self.shared.marks).0.last().map_or(Duration::ZERO, |mark| mark.counted)
    }

    /// Stops it, and returns the counted time at each tick.
    pub fn stop(self) -> Marks {
        lock(&self.shared.marks).clone()
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
    }
}

impl Marks {
    /// The counted time between two moments of the boot clock. Time before the start and after the
    /// stop is counted in full.
    pub fn between(&self, from: Duration, to: Duration) -> Duration {
        let (Some(first), Some(last)) = (self.0.first(), self.0.last()) else {
            return to.saturating_sub(from);
        };
        let outside = to.saturating_sub(from.max(last.at)) + first.at.min(to).saturating_sub(from);
        outside + self.counted(to).saturating_sub(self.counted(from))
    }

    /// Those of a stopwatch that ticked at these moments.
    #[cfg(test)]
    pub(crate) fn of_ticks(moments: impl IntoIterator<Item = Duration>) -> Marks {
        let mut marks = Marks::default();
        moments.into_iter().for_each(|at| marks.add(at));
        marks
    }

    fn add(&mut self, at: Duration) {
        let last = self.0.last().copied().unwrap_or(Mark { at, counted: Duration::ZERO });
        let counted = last.counted + at.saturating_sub(last.at).min(2 * TICK);
        self.0.push(Mark { at, counted });
    }

    /// The counted time at the last tick before this moment.
    fn counted(&self, at: Duration) -> Duration {
        let after = self.0.partition_point(|mark| mark.at <= at);
        after.checked_sub(1).map_or(Duration::ZERO, |place| self.0[place].counted)
    }
}

fn now() -> Duration {
    SystemClock.now().since_boot()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_no_more_than_the_elapsed_time() {
        let (began, watch) = (now(), Stopwatch::start());
        while watch.elapsed() < Duration::from_millis(100) {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(now() - began >= Duration::from_millis(100));
        let marks = watch.stop();
        assert!(marks.between(began, now()) >= Duration::from_millis(100));
    }

    #[test]
    fn a_sleep_that_is_too_long_counts_for_two_ticks() {
        let millis = Duration::from_millis;
        let marks = Marks::of_ticks([1000, 1005, 1011, 3011, 3016].map(millis));
        assert_eq!(marks.between(millis(1000), millis(3016)), millis(5 + 6 + 10 + 5));
        assert_eq!(marks.between(millis(1011), millis(2000)), Duration::ZERO);
        // Before the start and after the stop.
        assert_eq!(marks.between(millis(900), millis(1005)), millis(105));
        assert_eq!(marks.between(millis(3016), millis(4000)), millis(984));
        assert_eq!(marks.between(millis(10), millis(20)), millis(10));
        assert_eq!(Marks::default().between(millis(3), millis(5)), millis(2));
    }
}
