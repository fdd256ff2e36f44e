//! One of the processes of the churn test: `churner URL HISTORY SEED` waits, holds and releases in
//! one to four threads until its standard input ends, and then ends properly. It may be killed at
//! any time. It writes its history as [`memlock_tests::history`] says.
//!
//! Each key is closed to new waiters for a part of the time: the remaining waiters then depend on
//! wake-ups, and on their own inspections, without a newcomer that takes a free lock.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::lease::MIN_LEASE;
use memlock_core::{Answer, Client, Error, Mutex, Wait, Waited};
use memlock_tests::chance::Chance;
use memlock_tests::history::{Op, Writer};

use keys::{KEYS, name};

mod keys;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Every key is open to new waiters for the first part of a round, and the next one opens a fifth
/// of it later.
const ROUND: Duration = Duration::from_secs(20);
const OPEN: Duration = Duration::from_secs(13);

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, history, seed] = args.as_slice() else {
        return Err("churner URL HISTORY SEED".into());
    };
    let client = Client::connect(url)?;
    let history = Writer::open(history)?;
    let stopped = AtomicBool::new(false);
    let mut chance = Chance(seed.parse()?);
    let threads = if chance.below(10) < 7 { 1 } else { 2 + chance.below(3) };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|number| {
                let (client, stopped) = (&client, &stopped);
                let (history, chance) = (history.of_thread(number), Chance(chance.number()));
                scope.spawn(move || Worker { client, history, chance }.churn(stopped))
            })
            .collect();
        std::io::stdin().read_to_end(&mut Vec::new())?;
        stopped.store(true, Ordering::Relaxed);
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a thread panicked")?)
    })
}

/// One thread.
struct Worker<'a> {
    client: &'a Client,
    history: Writer,
    chance: Chance,
}

impl Worker<'_> {
    fn churn(&mut self, stopped: &AtomicBool) -> Result<(), Failure> {
        let mutexes: Vec<Mutex> = (0..KEYS)
            .map(|key| self.client.mutex(name(key), MIN_LEASE))
            .collect::<Result<_, _>>()?;
        while !stopped.load(Ordering::Relaxed) {
            let key = self.chance.below(KEYS as u64) as usize;
            if is_open(key) {
                self.once(&mutexes[key], &name(key))?;
            }
            thread::sleep(self.chance.millis(0, 20));
        }
        Ok(())
    }

    /// Waits once, and holds and releases what was acquired.
    fn once(&mut self, mutex: &Mutex, name: &str) -> Result<(), Failure> {
        let cancel = Arc::new(self.client.cancel_handle());
        let kind = self.chance.below(10);
        // In whole milliseconds, as the history has them.
        let limit = match kind {
            0..3 => Some(1 + self.chance.below(49)),
            3..6 => Some(50 + self.chance.below(4950)),
            _ => None,
        };
        let limit = limit.map(Duration::from_millis);
        let began = self.history.call(&Op::Lock { lease: MIN_LEASE, wait: limit }, name)?;
        if kind >= 8 {
            let (history, cancel) = (self.history.clone(), Arc::clone(&cancel));
            // Some while the waiter still asks for the first time.
            let most = if kind == 8 { 3 } else { 200 };
            let moment = self.chance.millis(0, most);
            thread::spawn(move || {
                thread::sleep(moment);
                if history.cancel(began).is_ok() {
                    cancel.cancel();
                }
            });
        }
        let waiting = limit.map_or(Wait::FOREVER, Wait::at_most).unless_cancelled(&cancel);
        let mut lock = match mutex.lock_with(&waiting).map(Waited::into_result) {
            Ok(Ok(lock)) => lock,
            Ok(Err(answer)) => return Ok(self.history.done(answer, 0, Duration::ZERO)?),
            Err(error) => return self.failed(&error),
        };
        self.history.done(Answer::Ok, lock.fence(), lock.deadline().since_boot())?;
        let time = self.chance.millis(0, 5);
        if lock.remaining().is_zero() {
            thread::sleep(time);
        } else {
            self.history.enter()?;
            thread::sleep(time);
            self.history.leave()?;
        }
        self.history.call(&Op::Unlock, name)?;
        match lock.unlock() {
            Ok(released) => self.history.done(released.into(), 0, Duration::ZERO)?,
            Err(error) => self.failed(&error)?,
        }
        Ok(())
    }

    fn failed(&self, error: &Error) -> Result<(), Failure> {
        let answer = error.kind().answer();
        Ok(self.history.failed(answer, &error.to_string(), Duration::ZERO)?)
    }
}

/// Whether new waiters may come to a key.
fn is_open(key: usize) -> bool {
    let now = SystemClock.now().since_boot() + ROUND * key as u32 / KEYS as u32;
    now.as_millis() % ROUND.as_millis() < OPEN.as_millis()
}
