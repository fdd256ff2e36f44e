//! A worker of the rate limit, in Rust: at most three of all workers are in the section.
//!
//! ```text
//! rate-limit-worker URL REPORT TURNS
//! ```
//!
//! The report gets a line `in <time>` after each grant and `out <time>` before each release, in
//! nanoseconds of the boot clock. With `RATE_LIMIT_DIES=1` in its environment, the worker stays in
//! the section until it is killed; its permit becomes available when its lease ends.

#![allow(clippy::print_stderr, reason = "a program writes to its standard streams")]

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::{Client, Release};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const PERMITS: u32 = 3;
/// A dead worker's permit is free after this.
const LEASE: Duration = Duration::from_secs(60);
/// The same for the worker that is to be killed.
const BRIEF_LEASE: Duration = Duration::from_secs(2);
const STAY: Duration = Duration::from_millis(20);

/// Without buffering: a killed worker cannot flush.
fn say(report: &mut File, what: &str) -> Result<()> {
    writeln!(report, "{what} {}", SystemClock.now().since_boot().as_nanos())?;
    Ok(())
}

fn dies() -> bool {
    std::env::var("RATE_LIMIT_DIES").is_ok_and(|value| value == "1")
}

fn stay() {
    while dies() {
        std::thread::park();
    }
    std::thread::sleep(STAY);
}

fn work(arguments: &[String]) -> Result<()> {
    let [url, report, turns] = arguments else {
        return Err("usage: rate-limit-worker URL REPORT TURNS".into());
    };
    let mut report = File::create(report)?;
    let lease = if dies() { BRIEF_LEASE } else { LEASE };
    let section = Client::connect(url)?.semaphore("section", PERMITS, lease)?;

    for _ in 0..turns.parse()? {
        let mut permit = section.acquire()?;
        say(&mut report, "in")?;
        stay();
        say(&mut report, "out")?;
        // The destructor would release it, too, but without a report.
        match permit.release()? {
            Release::Released => {}
            other => return Err(format!("the permit was not ours to the end: {other:?}").into()),
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match work(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("worker.rs: {error}");
            ExitCode::FAILURE
        }
    }
}
