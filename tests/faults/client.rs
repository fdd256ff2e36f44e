//! One of the processes of `make faults`, in Rust: `fault-client URL HISTORY SEED [credulous]`. Two
//! threads contend for three mutexes and the permits of two semaphores, insert into a distinct
//! list, and write down what they do, until standard input ends. client.c and client.py do the
//! same.
//!
//! Of the first semaphore no client wants more than one permit, so that none reserves several, and
//! a refusal is due to its holders.
//!
//! A session lasts two seconds by the boot clock and then is another one, and a key is the time in
//! steps of 4 ms, so that all processes insert the same keys at the same time.
//!
//! A `credulous` one is wrong on purpose: it takes no notice of its deadlines, and believes in what
//! it was granted for as long as it likes. The checker has to find it, with locks and with permits.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use memlock_core::clock::{Clock, Moment, SystemClock};
use memlock_core::{
    Client, DistinctList, Error, Extension, Insertion, Lock, Permit, Release, Request, Semaphore,
    SetUp, Wait, Waited,
};

use chance::Chance;

#[path = "../support/churn/chance.rs"]
mod chance;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const NAMES: u64 = 3;
/// Each semaphore's name, how many permits it has, and how many are asked for at most.
const SEMAPHORES: [(&str, u32, u32); 2] = [("p0", 2, 1), ("p1", 4, 3)];
const SESSION: u128 = 2000;
const KEY: u128 = 4;
const SESSION_LIFE: Duration = Duration::from_secs(60);
/// Some hold until so long before their deadline: so much of a lease must be true.
const SHORTLY: Duration = Duration::from_millis(30);
/// A client that fails is not to do nothing but fail.
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
                scope.spawn(move || -> Result<(), Failure> {
                    let lease = Duration::from_secs(1);
                    let open = |(name, permits, _)| client.semaphore(name, permits, lease);
                    let semaphores = SEMAPHORES.into_iter().map(open).collect::<Result<_, _>>()?;
                    let (list, session) = (None, 0);
                    Worker { client, history, number, chance, credulous, semaphores, list, session }
                        .live(stopped)
                })
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
    semaphores: Vec<Semaphore>,
    list: Option<DistinctList>,
    session: u128,
}

impl Worker<'_> {
    fn live(&mut self, stopped: &AtomicBool) -> Result<(), Failure> {
        while !stopped.load(Ordering::Relaxed) {
            match self.chance.below(6) {
                // Relying on something takes long, so each of its threads relies on one thing.
                _ if self.credulous && self.number == 0 => self.contend()?,
                _ if self.credulous => self.contend_for_permits()?,
                0 => self.insert()?,
                1..3 => self.contend_for_permits()?,
                _ => self.contend()?,
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
        let (lease, millis) = self.lease_and_wait();
        let wait = Wait::at_most(Duration::from_millis(millis));
        let mutex = self.client.mutex(&name, lease)?;
        self.call("lock", &name, lease.as_millis(), millis.into())?;
        let answer = match mutex.lock_with(&wait) {
            Ok(Waited::Done(lock)) => {
                self.done(OK, lock.fence(), self.believed(lock.deadline()))?;
                return self.hold(&name, lock, lease);
            }
            Ok(other) => refusal(&other),
            Err(error) => return self.failed(&error, Duration::ZERO),
        };
        self.done(answer, 0, Duration::ZERO)
    }

    fn lease_and_wait(&mut self) -> (Duration, u64) {
        let lease =
            Duration::from_millis(1000 + if self.credulous { 0 } else { self.chance.below(1000) });
        (lease, if self.chance.below(10) < 4 { 0 } else { 50 + self.chance.below(1450) })
    }

    fn hold(&mut self, name: &str, mut lock: Lock, lease: Duration) -> Result<(), Failure> {
        if self.believed(lock.deadline()) > now() {
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
                self.done(OK, 0, self.believed(lock.deadline()))?;
                thread::sleep(Duration::from_millis(self.chance.below(200)));
                Ok(())
            }
            Ok(Extension::Lost) => self.done(LOST, 0, self.believed(lock.deadline())),
            Ok(Extension::NotHeld) => self.done(NOT_HELD, 0, self.believed(lock.deadline())),
            Err(error) => self.failed(&error, self.believed(lock.deadline())),
        }
    }

    /// Until when this process believes in what is its own until this moment.
    fn believed(&self, deadline: Moment) -> Duration {
        if self.credulous { now() + CREDULITY } else { deadline.since_boot() }
    }

    fn contend_for_permits(&mut self) -> Result<(), Failure> {
        let place =
            if self.credulous { 1 } else { self.chance.below(SEMAPHORES.len() as u64) as usize };
        let (name, _, most) = SEMAPHORES[place];
        let (lease, millis) = self.lease_and_wait();
        let wait = Wait::at_most(Duration::from_millis(millis));
        let permits = if self.credulous { most } else { 1 + self.chance.below(most.into()) as u32 };
        let request =
            Request { permits, priority: self.chance.below(3) as i64 - 1, ..Request::default() };
        let semaphore = self.semaphores[place].with_lease(lease)?;
        let (ms, priority) = (lease.as_millis(), request.priority);
        self.say(&format!("call acquire {name} {ms} {millis} {permits} {priority}"))?;
        let answer = match semaphore.acquire_with(request, &wait) {
            Ok(Waited::Done(permit)) => {
                self.done(OK, permit.permits().into(), self.believed(permit.deadline()))?;
                return self.use_permits(name, permit, lease);
            }
            Ok(other) => refusal(&other),
            Err(error) => return self.failed(&error, Duration::ZERO),
        };
        self.done(answer, 0, Duration::ZERO)
    }

    fn use_permits(
        &mut self,
        name: &str,
        mut permit: Permit,
        lease: Duration,
    ) -> Result<(), Failure> {
        if self.believed(permit.deadline()) > now() {
            match self.chance.below(1000) {
                _ if self.credulous => thread::sleep(CREDULITY),
                0 => thread::sleep(lease + Duration::from_millis(self.chance.below(2500))),
                1..5 => thread::sleep(permit.remaining().saturating_sub(SHORTLY)),
                5..15 => self.prolong(name, &mut permit, lease)?,
                15..300 => thread::sleep(self.chance.millis(5, 40)),
                // So that some stand in its queue.
                300..600 if name == SEMAPHORES[0].0 => thread::sleep(self.chance.millis(40, 120)),
                _ => thread::sleep(Duration::from_millis(self.chance.below(3))),
            }
        }
        // Some release what they have released.
        let again = self.chance.below(16) == 0;
        for _ in 0..2 {
            self.call("release", name, 0, 0)?;
            let answer = match permit.release() {
                Ok(Release::Released) => OK,
                Ok(Release::Lost) => LOST,
                Ok(Release::NotHeld) => NOT_HELD,
                Err(error) => {
                    self.failed(&error, Duration::ZERO)?;
                    continue;
                }
            };
            self.done(answer, 0, Duration::ZERO)?;
            if !again {
                return Ok(());
            }
        }
        permit.abandon();
        Ok(())
    }

    fn prolong(&mut self, name: &str, permit: &mut Permit, lease: Duration) -> Result<(), Failure> {
        self.call("prolong", name, lease.as_millis(), 0)?;
        match permit.extend(lease) {
            Ok(Extension::Extended) => {
                self.done(OK, 0, self.believed(permit.deadline()))?;
                thread::sleep(Duration::from_millis(self.chance.below(200)));
                Ok(())
            }
            Ok(Extension::Lost) => self.done(LOST, 0, self.believed(permit.deadline())),
            Ok(Extension::NotHeld) => self.done(NOT_HELD, 0, self.believed(permit.deadline())),
            Err(error) => self.failed(&error, self.believed(permit.deadline())),
        }
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

fn refusal<T>(waited: &Waited<T>) -> i32 {
    match waited {
        Waited::Busy => BUSY,
        Waited::TimedOut => TIMED_OUT,
        _ => INTERRUPTED,
    }
}

fn now() -> Duration {
    SystemClock.now().since_boot()
}
