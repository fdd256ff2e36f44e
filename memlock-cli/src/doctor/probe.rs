//! What can only be found out by trying.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::notify::{Reach, WakeAddress};
use memlock_core::store::admin::Verdict::{Bad, Good, Note, Warning};
use memlock_core::store::admin::{Admin, Finding};
use memlock_core::store::recovery::Guard;
use memlock_core::{Answer, Client, Mutex, Report, Wait, Waiter};

use crate::duration::brief;
use crate::exit::{CliError, Status};
use crate::measure::{name_on, quantile};

/// How often a round trip is timed, and for how long at most.
const ROUND_TRIPS: usize = 300;
const ROUND_TRIPS_TIME: Duration = Duration::from_secs(3);
/// How often a waiter is woken.
const WAKE_UPS: usize = 5;
/// How long one of our own locks may be waited for, also on a busy machine: so many `io_timeout`s, and
/// at least so long.
const PATIENCE: (u32, Duration) = (10, Duration::from_secs(15));
pub(super) const UNTRIED: &str = "were not tried, since locks do not work there";
/// For how long the locks are taken that are tried, unless the guard is shorter.
const LEASE: Duration = Duration::from_secs(60);

pub(super) fn round_trips(admin: &mut dyn Admin, timeout: Duration) -> Result<Finding, CliError> {
    let began = Instant::now();
    let mut times = vec![admin.round_trip()?];
    while times.len() < ROUND_TRIPS && began.elapsed() < ROUND_TRIPS_TIME {
        times.push(admin.round_trip()?);
    }
    times.sort_unstable();
    let (half, most) = (quantile(&times, 0.5), quantile(&times, 0.99));
    let said = format!("p50 {}, p99 {}", brief(half), brief(most));
    if most > timeout / 4 {
        let more = format!(
            "{said}, and io_timeout is {}: answers that are late count as lost",
            brief(timeout)
        );
        return Ok(Finding::new("round trip", Warning, more).mend("?io_timeout=… in the URL"));
    }
    Ok(Finding::new("round trip", Good, said))
}

/// Whether a lock and the queue of its waiters can be stored, and a waiter is woken.
pub(super) fn locks(url: &str, client: &Client, place: usize, timeout: Duration) -> Vec<Finding> {
    let name = name_on(client, place, "doctor");
    let guard = client.guarantees().guard.map(Guard::longest_lease);
    let lease = guard.unwrap_or(LEASE).min(LEASE);
    match store(client, &name, lease) {
        Ok(None) => {
            let patience = (timeout * PATIENCE.0).max(PATIENCE.1);
            vec![wake_ups(wake(url, &name, lease, patience))]
        }
        Ok(Some(recovering)) => {
            vec![Finding::new("wake-ups", Note, format!("were not tried. {recovering}"))]
        }
        Err(error) => vec![
            Finding::new("locks", Bad, format!("cannot be stored. {}", error.message)),
            Finding::new("wake-ups", Note, UNTRIED),
        ],
    }
}

/// Takes a lock, and stores a queue for it. The report of a server that gives no new locks yet.
fn store(client: &Client, name: &str, lease: Duration) -> Result<Option<Report>, CliError> {
    let mutex = client.mutex(name, lease)?;
    match mutex.lock_or_report(&Wait::NEVER)? {
        Err(report) if report == Answer::Recovering => Ok(Some(report)),
        // No other program has a lock of this name.
        Err(report) => Err(CliError::new(Status::BUSY, report)),
        Ok(mut lock) => {
            let queue = mutex.check_queue();
            let unlocked = lock.unlock();
            Ok(queue.and(unlocked).map(|_| None)?)
        }
    }
}

fn wake_ups(heard: Result<Heard, CliError>) -> Finding {
    match heard {
        Ok(Heard::At(address, took, Reach::Proven)) => Finding::new(
            "wake-ups",
            Good,
            format!("arrive at {address}, {} after the lock was released", brief(took)),
        ),
        Ok(Heard::At(address, took, _)) => Finding::new(
            "wake-ups",
            Warning,
            format!(
                "do not arrive at {address}: the waiter found the lock {} after it was released",
                brief(took)
            ),
        )
        .mend("let UDP through to that address, or name another one with ?notify=address[:ports] in the URL"),
        Ok(Heard::Off) => Finding::new("wake-ups", Note, "are off: waiters ask the server every 0.3 to 1 second"),
        Err(error) => Finding::new("wake-ups", Bad, error.message),
    }
}

enum Heard {
    /// At which address; the median time from the release until the waiter had the lock; and
    /// whether the waiter heard the last of the messages.
    At(WakeAddress, Duration, Reach),
    Off,
}

fn wake(url: &str, name: &str, lease: Duration, patience: Duration) -> Result<Heard, CliError> {
    // Each client stands in the queue as another process would.
    let client = Client::connect(url)?;
    let waiter = client.mutex(name, lease)?;
    let late =
        |what: &str| CliError::new(Status::BUSY, format!("{what} within {}", brief(patience)));
    let mut times = Vec::new();
    let mut address = None;
    for _ in 0..WAKE_UPS {
        // A client that has handed the lock on would queue for it, without an address if the waiter
        // has the only port, and be seen there.
        let holder = Client::connect(url)?.mutex(name, lease)?;
        let mut lock = holder.lock()?;
        let over = AtomicBool::new(false);
        let (queued, took) = thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let waited = waiter.lock_for(patience);
                over.store(true, Ordering::Relaxed);
                waited.map(|lock| lock.map(|_lock| Instant::now()))
            });
            let queued = in_queue(&holder, &over);
            // It fell asleep a moment after it had joined.
            thread::sleep(Duration::from_millis(5));
            let released = Instant::now();
            let unlocked = lock.unlock();
            let entered = waiting.join().unwrap_or(Ok(None));
            (
                queued,
                unlocked.and_then(|_| {
                    Ok(entered?.map(|entered| entered.saturating_duration_since(released)))
                }),
            )
        });
        let took = took?;
        let queued = queued?
            .ok_or_else(|| late("were not tried, since no waiter came into the queue of a lock"))?;
        times.push(took.ok_or_else(|| {
            late("are late, or not heard: the waiter did not get the lock that was released")
        })?);
        match queued.address {
            Some(at) => address = Some(at),
            None => return Ok(Heard::Off),
        }
    }
    times.sort_unstable();
    Ok(address
        .map_or(Heard::Off, |address| Heard::At(address, quantile(&times, 0.5), client.reach())))
}

/// The waiter in the queue, which shows where it can be woken; `None` if its wait is over first.
fn in_queue(mutex: &Mutex, over: &AtomicBool) -> memlock_core::Result<Option<Waiter>> {
    loop {
        if let Some(&waiter) = mutex.waiters()?.first() {
            return Ok(Some(waiter));
        }
        if over.load(Ordering::Relaxed) {
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(1));
    }
}
