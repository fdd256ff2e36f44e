//! One of the processes of `make chaos`, in Rust: `chaos-client URL HISTORY SEED`. It contends for
//! two mutexes, and writes down what it does as [`memlock_tests::history`] says, until standard
//! input ends. client.c and client.py do the same.
//!
//! Most holds are brief. Some are extended for longer than several leases, so that servers come and
//! go under them; some are used until shortly before their end, and some are overslept.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use memlock_core::clock::Moment;
use memlock_core::{Client, Extension, Lock, Wait, Waited};
use memlock_tests::chance::Chance;
use memlock_tests::history::answer::{LOST, OK};
use memlock_tests::history::{Op, Writer, answer};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const NAMES: u64 = 2;
const SHORTLY: Duration = Duration::from_millis(30);
const AFTER_FAILURE: Duration = Duration::from_millis(10);

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, history, seed] = args.as_slice() else {
        return Err("chaos-client URL HISTORY SEED".into());
    };
    let (client, history) = (Client::connect(url)?, Writer::open(history)?);
    let stopped = AtomicBool::new(false);
    let worker = Worker { client: &client, history, chance: Chance(seed.parse()?) };
    thread::scope(|scope| {
        let working = scope.spawn(|| worker.live(&stopped));
        std::io::stdin().read_to_end(&mut Vec::new())?;
        stopped.store(true, Ordering::Relaxed);
        working.join().map_err(|_| "the thread panicked")?
    })
}

struct Worker<'a> {
    client: &'a Client,
    history: Writer,
    chance: Chance,
}

impl Worker<'_> {
    fn live(mut self, stopped: &AtomicBool) -> Result<(), Failure> {
        while !stopped.load(Ordering::Relaxed) {
            self.contend()?;
            thread::sleep(Duration::from_millis(self.chance.below(20)));
        }
        Ok(())
    }

    fn contend(&mut self) -> Result<(), Failure> {
        let name = format!("m{}", self.chance.below(NAMES));
        let lease = Duration::from_millis(1000 + self.chance.below(3000));
        let wait = match self.chance.below(10) {
            0..3 => Duration::ZERO,
            _ => Duration::from_millis(50 + self.chance.below(3000)),
        };
        let mutex = self.client.mutex(&name, lease)?;
        self.history.call(&Op::Lock { lease, wait: Some(wait) }, &name)?;
        match mutex.lock_with(&Wait::at_most(wait)) {
            Ok(Waited::Done(lock)) => {
                self.history.done(OK, lock.fence(), deadline(&lock))?;
                self.hold(lock, &name, lease)
            }
            Ok(refused) => Ok(self.history.done(answer::refusal(&refused), 0, Duration::ZERO)?),
            Err(error) => {
                self.history.failed(&error, Duration::ZERO)?;
                thread::sleep(AFTER_FAILURE);
                Ok(())
            }
        }
    }

    fn hold(&mut self, mut lock: Lock, name: &str, lease: Duration) -> Result<(), Failure> {
        if !lock.remaining().is_zero() {
            self.history.enter()?;
            match self.chance.below(1000) {
                0..4 => thread::sleep(lease + Duration::from_millis(self.chance.below(2500))),
                4..14 => thread::sleep(lock.remaining().saturating_sub(SHORTLY)),
                14..54 => self.extend(&mut lock, name, lease)?,
                _ => thread::sleep(Duration::from_millis(self.chance.below(20))),
            }
            self.history.leave()?;
        }
        for _ in 0..3 {
            self.history.call(&Op::Unlock, name)?;
            match lock.unlock() {
                Ok(released) => {
                    self.history.done(answer::release(released), 0, Duration::ZERO)?;
                    break;
                }
                Err(error) => self.history.failed(&error, Duration::ZERO)?,
            }
        }
        lock.abandon();
        Ok(())
    }

    /// Holds on for up to 8 s.
    fn extend(&mut self, lock: &mut Lock, name: &str, lease: Duration) -> Result<(), Failure> {
        for _ in 0..1 + self.chance.below(16) {
            let pause = lease.as_millis() as u64 / 6;
            thread::sleep(Duration::from_millis(self.chance.below(pause)));
            if lock.remaining().is_zero() {
                return Ok(());
            }
            self.history.call(&Op::Extend { lease }, name)?;
            match lock.extend(lease) {
                Ok(Extension::Extended) => self.history.done(OK, 0, deadline(lock))?,
                Ok(_) => return Ok(self.history.done(LOST, 0, Duration::ZERO)?),
                Err(error) => self.history.failed(&error, deadline(lock))?,
            }
        }
        Ok(())
    }
}

/// On the boot clock; 0 if it is over.
fn deadline(lock: &Lock) -> Duration {
    let until: Moment = lock.deadline();
    if lock.remaining().is_zero() { Duration::ZERO } else { until.since_boot() }
}
