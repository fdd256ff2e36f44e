//! One of the processes of the churn test: `churner URL HISTORY SEED` waits, holds and releases in
//! one to four threads until its standard input ends, and then ends properly. It may be killed at
//! any time.
//!
//! Each key is closed to new waiters for a part of the time: the remaining waiters then depend on
//! wake-ups, and on their own inspections, without a newcomer that takes a free lock.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::lease::MIN_LEASE;
use memlock_core::{Client, Mutex, Wait, Waited};
use memlock_tests::chance::Chance;

use event::{Event, KEYS, What, name};

mod event;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Every key is open to new waiters for the first part of a round, and the next one opens a fifth
/// of it later.
const ROUND: Duration = Duration::from_secs(20);
const OPEN: Duration = Duration::from_secs(13);

/// What the threads of this process share.
struct Churner {
    client: Client,
    history: File,
    waits: AtomicU64,
    stopped: AtomicBool,
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, history, seed] = args.as_slice() else {
        return Err("churner URL HISTORY SEED".into());
    };
    let churner = Churner {
        client: Client::connect(url)?,
        history: OpenOptions::new().create(true).append(true).open(history)?,
        waits: AtomicU64::new(0),
        stopped: AtomicBool::new(false),
    };
    let churner = Arc::new(churner);
    let mut chance = Chance(seed.parse()?);
    let threads = if chance.below(10) < 7 { 1 } else { 2 + chance.below(3) };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                let (churner, chance) = (Arc::clone(&churner), Chance(chance.number()));
                scope.spawn(move || churn(&churner, chance))
            })
            .collect();
        std::io::stdin().read_to_end(&mut Vec::new())?;
        churner.stopped.store(true, Ordering::Relaxed);
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a thread panicked")?)
    })
}

/// The life of one thread.
fn churn(churner: &Arc<Churner>, mut chance: Chance) -> Result<(), Failure> {
    let mutexes: Vec<Mutex> = (0..KEYS)
        .map(|key| churner.client.mutex(name(key), MIN_LEASE))
        .collect::<Result<_, _>>()?;
    while !churner.stopped.load(Ordering::Relaxed) {
        let key = chance.below(KEYS as u64) as usize;
        if is_open(key) {
            once(churner, &mutexes[key], key, &mut chance)?;
        }
        thread::sleep(chance.millis(0, 20));
    }
    Ok(())
}

/// Waits once, and holds and releases what was acquired.
fn once(
    churner: &Arc<Churner>,
    mutex: &Mutex,
    key: usize,
    chance: &mut Chance,
) -> Result<(), Failure> {
    let wait = churner.waits.fetch_add(1, Ordering::Relaxed);
    let tell = |what: What| churner.tell(wait, what);
    let cancel = Arc::new(churner.client.cancel_handle());
    let kind = chance.below(10);
    let limit = match kind {
        0..3 => Some(chance.millis(1, 50)),
        3..6 => Some(chance.millis(50, 5000)),
        _ => None,
    };
    tell(What::Began { key, limit })?;
    if kind >= 8 {
        let (churner, cancel) = (Arc::clone(churner), Arc::clone(&cancel));
        // Some while the waiter still asks for the first time.
        let moment = if kind == 8 { chance.millis(0, 3) } else { chance.millis(0, 200) };
        thread::spawn(move || {
            thread::sleep(moment);
            if churner.tell(wait, What::Cancelled).is_ok() {
                cancel.cancel();
            }
        });
    }
    let forever = Wait::FOREVER;
    let waiting = limit.map_or(forever, Wait::at_most).unless_cancelled(&cancel);
    let mut lock = match mutex.lock_with(&waiting) {
        Ok(Waited::Done(lock)) => lock,
        Ok(other) => return tell(What::Ended(format!("{other:?}"))),
        Err(error) => return tell(What::Ended(format!("error: {error}"))),
    };
    tell(What::Entered { fence: lock.fence(), deadline: lock.deadline().since_boot() })?;
    thread::sleep(chance.millis(0, 5));
    tell(What::Leaving)?;
    let answer = lock
        .unlock()
        .map_or_else(|error| format!("error: {error}"), |answer| format!("{answer:?}"));
    tell(What::Left(answer))
}

/// Whether new waiters may come to a key.
fn is_open(key: usize) -> bool {
    let now = SystemClock.now().since_boot() + ROUND * key as u32 / KEYS as u32;
    now.as_millis() % ROUND.as_millis() < OPEN.as_millis()
}

impl Churner {
    /// Writes down what happens now.
    fn tell(&self, wait: u64, what: What) -> Result<(), Failure> {
        let event = Event { at: SystemClock.now().since_boot(), wait, what }.write();
        Ok((&self.history).write_all(event.as_bytes())?)
    }
}
