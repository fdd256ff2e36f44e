//! What can only be found out by trying.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::notify::{Reach, WakeAddress};
use memlock_core::store::admin::Verdict::{Bad, Good, Note, Warning};
use memlock_core::store::admin::{Admin, Finding};
use memlock_core::store::recovery::Guard;
use memlock_core::{Answer, Client, Mutex, Report, Wait};

use crate::duration::brief;
use crate::exit::{CliError, Status};
use crate::measure::{name_on, quantile};

/// How often a round trip is timed, and for how long at most.
const ROUND_TRIPS: usize = 300;
const ROUND_TRIPS_TIME: Duration = Duration::from_secs(3);
/// How often a waiter is woken.
const WAKE_UPS: usize = 5;
/// How long one of our own locks may be waited for, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
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

/// Wakes a waiter of our own: two clients, of which one waits for what the other releases.
pub(super) fn wake_ups(url: &str, client: &Client, place: usize) -> Finding {
    match wake(url, client, &name_on(client, place, "doctor")) {
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
        Ok(Heard::Recovering(report)) => {
            Finding::new("wake-ups", Note, format!("were not tried. {report}"))
        }
        Ok(Heard::Off) => Finding::new("wake-ups", Note, "are off: waiters ask the server every 0.3 to 1 second"),
        Err(error) => Finding::new("wake-ups", Bad, error.message),
    }
}

enum Heard {
    /// At which address; the median time from the release until the waiter had the lock; and
    /// whether the waiter heard the last of the messages.
    At(WakeAddress, Duration, Reach),
    Off,
    /// The server gives no new locks yet.
    Recovering(Report),
}

fn wake(url: &str, client: &Client, name: &str) -> Result<Heard, CliError> {
    let guard = client.guarantees().guard.map(Guard::longest_lease);
    let lease = guard.unwrap_or(LEASE).min(LEASE);
    // A server that recovers gives nothing to try with.
    match client.mutex(name, lease)?.lock_or_report(&Wait::NEVER)? {
        Err(report) if report == Answer::Recovering => return Ok(Heard::Recovering(report)),
        Ok(mut lock) => _ = lock.unlock()?,
        Err(_) => {}
    }
    // Each client stands in the queue as another process would.
    let client = Client::connect(url)?;
    let waiter = client.mutex(name, lease)?;
    let mut times = Vec::new();
    let mut address = None;
    for _ in 0..WAKE_UPS {
        // A client that has handed the lock on would queue for it, without an address if the waiter
        // has the only port, and be seen there.
        let holder = Client::connect(url)?.mutex(name, lease)?;
        let mut lock = holder.lock()?;
        let over = AtomicBool::new(false);
        let (heard_at, took) = thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let waited = waiter.lock_for(PATIENCE);
                over.store(true, Ordering::Relaxed);
                waited.map(|lock| lock.map(|_lock| Instant::now()))
            });
            let heard_at = address_of(&holder, &over);
            // It fell asleep a moment after it had joined.
            thread::sleep(Duration::from_millis(5));
            let released = Instant::now();
            let unlocked = lock.unlock();
            let entered = waiting.join().unwrap_or(Ok(None));
            (
                heard_at,
                unlocked.and_then(|_| {
                    Ok(entered?.map(|entered| entered.saturating_duration_since(released)))
                }),
            )
        });
        let took = took?.ok_or_else(|| {
            CliError::new(Status::BUSY, "the lock that is passed on as a test was not given back")
        })?;
        times.push(took);
        match heard_at? {
            Some(at) => address = Some(at),
            None => return Ok(Heard::Off),
        }
    }
    times.sort_unstable();
    Ok(address
        .map_or(Heard::Off, |address| Heard::At(address, quantile(&times, 0.5), client.reach())))
}

/// The address at which the waiter can be woken.
fn address_of(mutex: &Mutex, over: &AtomicBool) -> memlock_core::Result<Option<WakeAddress>> {
    loop {
        if let Some(waiter) = mutex.waiters()?.first() {
            return Ok(waiter.address);
        }
        if over.load(Ordering::Relaxed) {
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(1));
    }
}
