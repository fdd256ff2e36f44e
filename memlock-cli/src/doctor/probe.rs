//! What can only be found out by trying.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::notify::Reach;
use memlock_core::store::Address;
use memlock_core::{Client, Mutex};

use super::Finding;
use super::Verdict::{Bad, Good, Note, Warning};
use crate::duration::{self, brief};
use crate::exit::{CliError, Status};
use crate::memcached_text::{MemcachedText, Stats, name_on, quantile};

/// How often a round trip is timed, and for how long at most.
const ROUND_TRIPS: usize = 300;
const ROUND_TRIPS_TIME: Duration = Duration::from_secs(3);
/// A clock that is further off is wrong. Its ticks are seconds, and may be almost two late.
const OFF: f64 = 5.0;
/// How often a bell is rung.
const RINGS: usize = 5;
/// How long one of our own locks may be waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// `stats`, and by how many seconds the server's clock is before ours.
pub(super) fn stats_and_clock(
    memcached_text: &mut MemcachedText,
) -> Result<(Stats, f64), CliError> {
    let before = duration::unix_now();
    let stats = memcached_text.stats("stats")?;
    let ours = (before + duration::unix_now()).as_secs_f64() / 2.0;
    // It shows whole seconds, and the last one that has begun.
    let theirs =
        stats.get("time").and_then(|time| time.parse::<u64>().ok()).unwrap_or(0) as f64 + 0.5;
    Ok((stats, theirs - ours))
}

pub(super) fn clock(skew: f64) -> Finding {
    if skew.abs() < OFF {
        return Finding::new("clock", Good, "agrees with ours");
    }
    let skewed = Duration::try_from_secs_f64(skew.abs()).unwrap_or(Duration::MAX);
    let (by, way) = (brief(skewed), if skew > 0.0 { "ahead of" } else { "behind" });
    Finding::new(
        "clock",
        Note,
        format!(
            "is {by} {way} ours: leases do not mind; but fences fall if it is set back before a restart"
        ),
    )
}

pub(super) fn round_trips(
    memcached_text: &mut MemcachedText,
    server: &Address,
) -> Result<Finding, CliError> {
    let began = Instant::now();
    let mut times = vec![memcached_text.round_trip()?];
    while times.len() < ROUND_TRIPS && began.elapsed() < ROUND_TRIPS_TIME {
        times.push(memcached_text.round_trip()?);
    }
    times.sort_unstable();
    let (half, most) = (quantile(&times, 0.5), quantile(&times, 0.99));
    let said = format!("p50 {}, p99 {}", brief(half), brief(most));
    if most > server.io_timeout / 4 {
        let more = format!(
            "{said}, and io_timeout is {}: answers that are late count as lost",
            brief(server.io_timeout)
        );
        return Ok(Finding::new("round trip", Warning, more).mend("?io_timeout=… in the URL"));
    }
    Ok(Finding::new("round trip", Good, said))
}

/// Rings a bell of our own: two clients, of which one waits for what the other gives back.
pub(super) fn bells(url: &str, client: &Client, place: usize) -> Finding {
    match ring(url, &name_on(client, place, "doctor")) {
        Ok(Heard::At(address, took, Reach::Proven)) => Finding::new(
            "bells",
            Good,
            format!("are heard at {address}, {} after the lock was given back", brief(took)),
        ),
        Ok(Heard::At(address, took, _)) => Finding::new(
            "bells",
            Warning,
            format!(
                "are not heard at {address}: who waits found the lock {} after it was given back",
                brief(took)
            ),
        )
        .mend("let UDP through to that address, or name another one with ?bell=address[:ports] in the URL"),
        Ok(Heard::NoBell) => Finding::new("bells", Note, "are off: who waits looks every 0.3 to 1 second"),
        Err(trouble) => Finding::new("bells", Bad, trouble.message),
    }
}

enum Heard {
    /// Where the bell is; how long after the release its owner had the lock, in the middle of
    /// several times; and whether it heard the last of them.
    At(std::net::SocketAddr, Duration, Reach),
    NoBell,
}

fn ring(url: &str, name: &str) -> Result<Heard, CliError> {
    let lease = Duration::from_secs(10);
    // Each client stands in the queue as another process would.
    let client = Client::connect(url)?;
    let waiter = client.mutex(name, lease)?;
    let mut times = Vec::new();
    let mut address = None;
    for _ in 0..RINGS {
        // One that has handed it on before would queue for it, without a bell if the waiter has the
        // only port, and be seen there.
        let holder = Client::connect(url)?.mutex(name, lease)?;
        let mut lock = holder.lock()?;
        let over = AtomicBool::new(false);
        let (bell, took) = thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let waited = waiter.lock_for(PATIENCE);
                over.store(true, Ordering::Relaxed);
                waited.map(|lock| lock.map(|_lock| Instant::now()))
            });
            let bell = bell_of(&holder, &over);
            // It fell asleep a moment after it had joined.
            thread::sleep(Duration::from_millis(5));
            let released = Instant::now();
            let unlocked = lock.unlock();
            let entered = waiting.join().unwrap_or(Ok(None));
            (
                bell,
                unlocked.and_then(|_| {
                    Ok(entered?.map(|entered| entered.saturating_duration_since(released)))
                }),
            )
        });
        let took = took?.ok_or_else(|| {
            CliError::new(Status::BUSY, "the lock that is passed on as a test was not given back")
        })?;
        times.push(took);
        match bell? {
            Some(at) => address = Some(at),
            None => return Ok(Heard::NoBell),
        }
    }
    times.sort_unstable();
    Ok(address
        .map_or(Heard::NoBell, |address| Heard::At(address, quantile(&times, 0.5), client.reach())))
}

/// Where the one who waits can be rung.
fn bell_of(mutex: &Mutex, over: &AtomicBool) -> memlock_core::Result<Option<std::net::SocketAddr>> {
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
