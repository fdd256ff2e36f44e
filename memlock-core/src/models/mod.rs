//! Model tests: shuttle runs small programs of several threads, each thousands of times, and
//! decides at every step which thread continues. `make sanitize` builds them, with `--cfg shuttle`.
//!
//! | model | parts of memlock in it |
//! | --- | --- |
//! | `local_queue` | the local waiters alone; nothing in it depends on a clock, so a lost wake-up is a deadlock |
//! | `worker` | the threads that carry out calls, and calls in progress; jobs are those of the model |
//! | `fork_local` | `ForkLocal` |
//!
//! Shuttle does not model weak memory: each step is visible to all threads at once. Miri and
//! ThreadSanitizer look for the errors that this hides.
// All of this is test code, which clippy does not recognize.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::print_stderr)]

mod fork_local;
mod listener;
mod local_queue;
mod worker;

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};

/// Runs the program under `MEMLOCK_SCHEDULES` schedules: half of them random, the others with few
/// changes of thread (PCT), which find errors that need a long delay of one thread. A failure
/// prints the schedule.
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
    // The module's documentation says that all atomics are sequentially consistent.
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(program)
}
