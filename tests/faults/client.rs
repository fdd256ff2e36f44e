//! One of the processes of `make faults`, in Rust: `fault-client URL HISTORY SEED [credulous]`. Two threads contend for
//! three mutexes and insert into a distinct list, and write down what they do, until standard input ends. client.c and
//! client.py do the same.
//!
//! A session lasts two seconds by the boot clock and then is another one, and a key is the time in steps of 4 ms, so that
//! all processes insert the same keys at the same time.
//!
//! A `credulous` one is wrong on purpose: it takes no notice of its deadline, and believes in what it was granted for as
//! long as it likes. The checker has to find it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::{Client, DistinctList, Error, Extension, Insertion, Lock, Release, SetUp, Wait, Waited};

use chance::Chance;

#[path = "../support/churn/chance.rs"]
mod chance;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const NAMES: u64 = 3;
const SESSION: u128 = 2000;
const KEY: u128 = 4;
const SESSION_LIFE: Duration = Duration::from_secs(60);
/// Some hold until so long before their deadline: so much of a lease must be true.
const SHORTLY: Duration = Duration::from_millis(30);
/// Whoever fails is not to do nothing but fail.
const AFTER_FAILURE: Duration = Duration::from_millis(10);
/// For how long a credulous one believes in a lock, whatever it asked for.
const CREDULITY: Duration = Duration::from_secs(5);

const OK: i32 = 0;
const BUSY: i32 = 1;
const TIMED_OUT: i32 = 2;
const DUPLICATE: i32 = 3;
const EXISTS: i32 = 4;
const NOT_HELD: i32 = 5;
const LOST: i32 = 6;
const NOT_FOUND: i32 = 7;
const INTERRUPTED: i32 = 8;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (url, history, seed, credulous) = match args.as_slice() {
        [url, history, seed] => (url, history, seed, false),
        [url, history, seed, word] if word == "credulous" => (url, history, seed, true),
        _ => return Err("fault-client URL HISTORY SEED [credulous]".into()),
    };
    let client = Client::connect(url)?;
    let history = OpenOptions::new().create(true).append(true).open(history)?;
    let mut chance = Chance(seed.parse()?);
    let stopped = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|number| {
                let chance = Chance(chance.number());
                let (client, history, stopped) = (&client, &history, &stopped);
                let mut worker =
                    Worker { client, history, number, chance, credulous, list: None, session: 0 };
                scope.spawn(move || worker.live(stopped))
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
    history: &'a File,
    number: u64,
    chance: Chance,
    credulous: bool,
    list: Option<DistinctList>,
    session: u128,
}

impl Worker<'_> {
    fn live(&mut self, stopped: &AtomicBool) -> Result<(), Failure> {
        while !stopped.load(Ordering::Relaxed) {
            if self.chance.below(4) == 0 {
                self.insert()?;
            } else {
                self.contend()?;
            }
            thread::sleep(Duration::from_millis(self.chance.below(3)));
        }
        Ok(())
    }

    /// One write, so that a kill costs no more than the end of a line.
    fn say(&self, text: &str) -> Result<(), Failure> {
        let mut history = self.history;
        let line = format!("{} {} {text}\n", now().as_nanos(), self.number);
        Ok(history.write_all(line.as_bytes())?)
    }

    fn call(&self, op: &str, name: &str, first: u128, second: u128) -> Result<(), Failure> {
        self.say(&format!("call {op} {name} {first} {second}"))
    }

    fn done(&self, answer: i32, first: u64, second: Duration) -> Result<(), Failure> {
        self.say(&format!("done {answer} {first} {} ", second.as_nanos()))
    }

    fn failed(&self, error: &Error, second: Duration) -> Result<(), Failure> {
        let said = error.to_string().replace('\n', " ");
        self.say(&format!("done {} 0 {} {said}", error.kind().answer().code(), second.as_nanos()))?;
        thread::sleep(AFTER_FAILURE);
        Ok(())
    }

    fn contend(&mut self) -> Result<(), Failure> {
        let name = format!("m{}", self.chance.below(NAMES));
        let lease = Duration::from_millis(1000 + if self.credulous { 0 } else { self.chance.below(1000) });
        let millis = if self.chance.below(10) < 4 { 0 } else { 50 + self.chance.below(1450) };
        let wait = Wait::at_most(Duration::from_millis(millis));
        let mutex = self.client.mutex(&name, lease)?;
        self.call("lock", &name, lease.as_millis(), millis.into())?;
        let answer = match mutex.lock_with(&wait) {
            Ok(Waited::Done(lock)) => {
                self.done(OK, lock.fence(), self.deadline(&lock))?;
                return self.hold(&name, lock, lease);
            }
            Ok(Waited::Busy) => BUSY,
            Ok(Waited::TimedOut) => TIMED_OUT,
            Ok(_) => INTERRUPTED,
            Err(error) => return self.failed(&error, Duration::ZERO),
        };
        self.done(answer, 0, Duration::ZERO)
    }

    fn hold(&mut self, name: &str, mut lock: Lock, lease: Duration) -> Result<(), Failure> {
        if self.deadline(&lock) > now() {
            self.say("enter")?;
            match self.chance.below(1000) {
                _ if self.credulous => thread::sleep(CREDULITY),
                0 => thread::sleep(lease + Duration::from_millis(self.chance.below(2500))),
                1..5 => thread::sleep(lock.remaining().saturating_sub(SHORTLY)),
                5..12 => self.extend(name, &mut lock, lease)?,
                12..28 => thread::sleep(self.chance.millis(20, 120)),
                _ => thread::sleep(Duration::from_millis(self.chance.below(3))),
            }
            self.say("leave")?;
        }
        for _ in 0..2 {
            self.call("unlock", name, 0, 0)?;
            match lock.unlock() {
                Ok(Release::Released) => return self.done(OK, 0, Duration::ZERO),
                Ok(Release::Lost) => return self.done(LOST, 0, Duration::ZERO),
                Ok(Release::NotHeld) => return self.done(NOT_HELD, 0, Duration::ZERO),
                Err(error) => self.failed(&error, Duration::ZERO)?,
            }
        }
        lock.abandon();
        Ok(())
    }

    fn extend(&mut self, name: &str, lock: &mut Lock, lease: Duration) -> Result<(), Failure> {
        self.call("extend", name, lease.as_millis(), 0)?;
        match lock.extend(lease) {
            Ok(Extension::Extended) => {
                self.done(OK, 0, self.deadline(lock))?;
                thread::sleep(Duration::from_millis(self.chance.below(200)));
                Ok(())
            }
            Ok(Extension::Lost) => self.done(LOST, 0, self.deadline(lock)),
            Ok(Extension::NotHeld) => self.done(NOT_HELD, 0, self.deadline(lock)),
            Err(error) => self.failed(&error, self.deadline(lock)),
        }
    }

    /// Until when this process believes that the lock is its own.
    fn deadline(&self, lock: &Lock) -> Duration {
        if self.credulous { now() + CREDULITY } else { lock.deadline().since_boot() }
    }

    fn insert(&mut self) -> Result<(), Failure> {
        let millis = now().as_millis();
        let (session, key) = (millis / SESSION, millis / KEY);
        let name = format!("s{session}");
        if self.session != session {
            (self.session, self.list) = (session, None);
        }
        let mut list = match self.list.take() {
            Some(list) => list,
            None => {
                let mut list = self.client.distinct_list(&name)?;
                self.call("setup", &name, 0, 0)?;
                match list.set_up(SESSION_LIFE) {
                    Ok(SetUp::Created) => self.done(OK, 0, Duration::ZERO)?,
                    Ok(SetUp::Joined) => self.done(EXISTS, 0, Duration::ZERO)?,
                    Err(error) => return self.failed(&error, Duration::ZERO),
                }
                list
            }
        };
        self.call("insert", &name, key, 0)?;
        match list.insert(key.to_string()) {
            Ok(Some(Insertion::First(id))) => self.done(OK, id, Duration::ZERO)?,
            Ok(Some(Insertion::Duplicate(id))) => self.done(DUPLICATE, id, Duration::ZERO)?,
            Ok(None) => return self.done(NOT_FOUND, 0, Duration::ZERO),
            Err(error) => self.failed(&error, Duration::ZERO)?,
        }
        self.list = Some(list);
        Ok(())
    }
}

fn now() -> Duration {
    SystemClock.now().since_boot()
}
