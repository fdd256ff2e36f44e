//! Model tests: shuttle runs small programs of several threads, each thousands of times, and
//! decides at every step which thread goes on. `make sanitize` builds them, with `--cfg shuttle`.
//!
//! | model | what of memlock is in it |
//! | --- | --- |
//! | `local_queue` | the local waiters alone; nothing in it looks by the clock, so a wake-up that is lost is a deadlock |
//! | `fork_local` | `ForkLocal` |
//!
//! Shuttle knows no weak memory: each step is seen by all at once. Miri and ThreadSanitizer look
//! for what that hides.
// All of this is tests, though clippy does not see that.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod fork_local;
mod local_queue;

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};

/// Runs the program under as many schedules as `MEMLOCK_SCHEDULES` says: half of them random, the
/// others with few changes of thread (PCT), which finds what takes a thread that is held up for
/// long. A failure prints the schedule.
fn explore(name: &str, program: fn()) {
    let count = std::env::var("MEMLOCK_SCHEDULES").map_or(1000, |count| count.parse().unwrap());
    let began = std::time::Instant::now();
    let mut ran = run(RandomScheduler::new(count / 2), program);
    for depth in [2, 3, 5] {
        ran += run(PctScheduler::new(depth, count / 6), program);
    }
    eprintln!("{name}: {ran} schedules in {:.1} s", began.elapsed().as_secs_f32());
}

fn run(scheduler: impl Scheduler + 'static, program: fn()) -> usize {
    let mut config = Config::new();
    config.stack_size = 256 * 1024;
    config.max_steps = shuttle::MaxSteps::FailAfter(100_000);
    // That its atomics are all sequentially consistent is said above.
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(program)
}
