//! A process of its own for the tests that kill, stop or fork one.
//!
//! `holder URL lock NAME LEASE_MS` locks, prints `held <boot clock in ns> <fence>`, and then holds
//! until a line comes in: `unlock` unlocks and prints the result; the end of input ends it without
//! unlocking.

use std::io::{BufRead, Write};
use std::time::Duration;

use memlock_core::Client;
use memlock_core::clock::{Clock, SystemClock};

#[allow(clippy::print_stdout)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, what, name, lease] = args.as_slice() else {
        return Err("holder URL lock NAME LEASE_MS".into());
    };
    if what != "lock" {
        return Err("it can only lock".into());
    }
    let client = Client::connect(url)?;
    let lease = Duration::from_millis(lease.parse()?);
    let mutex = client.mutex(name, lease)?;
    // Dial beforehand, so that the time of the request is that of the lock.
    mutex.owner()?;
    let before = SystemClock.now().since_boot().as_nanos();
    let mut lock = mutex.lock()?;
    println!("held {before} {}", lock.fence());
    std::io::stdout().flush()?;
    for line in std::io::stdin().lock().lines() {
        if line? == "unlock" {
            println!("{:?}", lock.unlock()?);
            return Ok(());
        }
    }
    std::process::exit(0);
}
