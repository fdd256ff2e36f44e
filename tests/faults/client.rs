//! One of the processes of `make faults`, in Rust: `fault-client URL HISTORY SEED [credulous]`. Two
//! threads contend for three mutexes and the permits of two semaphores, insert into a distinct
//! list, and write down what they do as [`memlock_tests::history`] says, until standard input ends.
//! client.c and client.py do the same.
//!
//! Of the first semaphore no client wants more than one permit, so that none reserves several, and
//! a refusal is due to its holders.
//!
//! A session lasts two seconds by the boot clock and then is another one, and a key is the time in
//! steps of 4 ms, so that all processes insert the same keys at the same time.
//!
//! A `credulous` one is wrong on purpose: it takes no notice of its deadlines, and believes in what
//! it was granted for as long as it likes. The checker has to find it, with locks and with permits.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use memlock_core::clock::{Clock, Moment, SystemClock};
use memlock_core::{
    Answer, Client, DistinctList, Error, Extension, Lock, Permit, Request, Result as Answered,
    Semaphore, Wait, Waited,
};
use memlock_tests::chance::Chance;
use memlock_tests::history::{Op, Writer};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const NAMES: u64 = 3;
/// Each semaphore's name, how many permits it has, and how many are asked for at most.
const SEMAPHORES: [(&str, u32, u32); 2] = [("p0", 2, 1), ("p1", 4, 3)];
const SESSION: Duration = Duration::from_secs(2);
const KEY: Duration = Duration::from_millis(4);
const SESSION_LIFE: Duration = Duration::from_secs(60);
/// Some hold until so long before their deadline: so much of a lease must be true.
const SHORTLY: Duration = Duration::from_millis(30);
/// A client that fails is not to do nothing but fail.
const AFTER_FAILURE: Duration = Duration::from_millis(10);
/// For how long a credulous one believes in a lock, whatever it asked for.
const CREDULITY: Duration = Duration::from_secs(5);

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (url, history, seed, credulous) = match args.as_slice() {
        [url, history, seed] => (url, history, seed, false),
        [url, history, seed, word] if word == "credulous" => (url, history, seed, true),
        _ => return Err("fault-client URL HISTORY SEED [credulous]".into()),
    };
    let client = Client::connect(url)?;
    let history = Writer::open(history)?;
    let mut chance = Chance(seed.parse()?);
    let stopped = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|number| {
                let chance = Chance(chance.number());
                let (client, history) = (&client, history.of_thread(number));
                let stopped = &stopped;
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
    history: Writer,
    number: u64,
    chance: Chance,
    credulous: bool,
    semaphores: Vec<Semaphore>,
    list: Option<DistinctList>,
    session: u64,
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

    fn call(&self, op: &Op, name: &str) -> Result<(), Failure> {
        self.history.call(op, name)?;
        Ok(())
    }

    fn done(&self, answer: Answer, first: u64, second: Duration) -> Result<(), Failure> {
        Ok(self.history.done(answer, first, second)?)
    }

    fn failed(&self, error: &Error, second: Duration) -> Result<(), Failure> {
        self.history.failed(error.kind().answer(), &error.to_string(), second)?;
        thread::sleep(AFTER_FAILURE);
        Ok(())
    }

    fn contend(&mut self) -> Result<(), Failure> {
        let name = format!("m{}", self.chance.below(NAMES));
        let (lease, wait) = self.lease_and_wait();
        let mutex = self.client.mutex(&name, lease)?;
        self.call(&Op::Lock { lease, wait: Some(wait) }, &name)?;
        match mutex.lock_with(&Wait::at_most(wait)).map(Waited::into_result) {
            Ok(Ok(lock)) => {
                self.done(Answer::Ok, lock.fence(), self.believed(lock.deadline()))?;
                self.hold(&name, lock, lease)
            }
            Ok(Err(answer)) => self.done(answer, 0, Duration::ZERO),
            Err(error) => self.failed(&error, Duration::ZERO),
        }
    }

    fn lease_and_wait(&mut self) -> (Duration, Duration) {
        let lease =
            Duration::from_millis(1000 + if self.credulous { 0 } else { self.chance.below(1000) });
        let wait = if self.chance.below(10) < 4 { 0 } else { 50 + self.chance.below(1450) };
        (lease, Duration::from_millis(wait))
    }

    fn hold(&mut self, name: &str, mut lock: Lock, lease: Duration) -> Result<(), Failure> {
        if self.believed(lock.deadline()) > now() {
            self.history.enter()?;
            match self.chance.below(1000) {
                _ if self.credulous => thread::sleep(CREDULITY),
                0 => thread::sleep(lease + Duration::from_millis(self.chance.below(2500))),
                1..5 => thread::sleep(lock.remaining().saturating_sub(SHORTLY)),
                5..12 => self.extend(name, &mut lock, lease)?,
                12..28 => thread::sleep(self.chance.millis(20, 120)),
                _ => thread::sleep(Duration::from_millis(self.chance.below(3))),
            }
            self.history.leave()?;
        }
        for _ in 0..2 {
            self.call(&Op::Unlock, name)?;
            match lock.unlock() {
                Ok(released) => return self.done(released.into(), 0, Duration::ZERO),
                Err(error) => self.failed(&error, Duration::ZERO)?,
            }
        }
        lock.abandon();
        Ok(())
    }

    fn extend(&mut self, name: &str, lock: &mut Lock, lease: Duration) -> Result<(), Failure> {
        self.call(&Op::Extend { lease }, name)?;
        let extended = lock.extend(lease);
        self.extended(extended, lock.deadline())
    }

    fn extended(&mut self, extended: Answered<Extension>, until: Moment) -> Result<(), Failure> {
        match extended {
            Ok(extension) => {
                self.done(extension.into(), 0, self.believed(until))?;
                if extension == Extension::Extended {
                    thread::sleep(Duration::from_millis(self.chance.below(200)));
                }
                Ok(())
            }
            Err(error) => self.failed(&error, self.believed(until)),
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
        let (lease, wait) = self.lease_and_wait();
        let permits = if self.credulous { most } else { 1 + self.chance.below(most.into()) as u32 };
        let priority = self.chance.below(3) as i64 - 1;
        let request = Request { permits, priority, ..Request::default() };
        let semaphore = self.semaphores[place].with_lease(lease)?;
        self.call(&Op::Acquire { lease, wait: Some(wait), permits, priority }, name)?;
        match semaphore.acquire_with(request, &Wait::at_most(wait)).map(Waited::into_result) {
            Ok(Ok(permit)) => {
                self.done(Answer::Ok, permit.permits().into(), self.believed(permit.deadline()))?;
                self.use_permits(name, permit, lease)
            }
            Ok(Err(answer)) => self.done(answer, 0, Duration::ZERO),
            Err(error) => self.failed(&error, Duration::ZERO),
        }
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
            self.call(&Op::Release, name)?;
            match permit.release() {
                Ok(released) => {
                    self.done(released.into(), 0, Duration::ZERO)?;
                    if !again {
                        return Ok(());
                    }
                }
                Err(error) => self.failed(&error, Duration::ZERO)?,
            }
        }
        permit.abandon();
        Ok(())
    }

    fn prolong(&mut self, name: &str, permit: &mut Permit, lease: Duration) -> Result<(), Failure> {
        self.call(&Op::Prolong { lease }, name)?;
        let extended = permit.extend(lease);
        self.extended(extended, permit.deadline())
    }

    fn insert(&mut self) -> Result<(), Failure> {
        let now = now();
        let count = |step: Duration| (now.as_millis() / step.as_millis()) as u64;
        let (session, key) = (count(SESSION), count(KEY));
        let name = format!("s{session}");
        if self.session != session {
            (self.session, self.list) = (session, None);
        }
        let mut list = match self.list.take() {
            Some(list) => list,
            None => {
                let mut list = self.client.distinct_list(&name)?;
                self.call(&Op::SetUp, &name)?;
                match list.set_up(SESSION_LIFE) {
                    Ok(set_up) => self.done(set_up.into(), 0, Duration::ZERO)?,
                    Err(error) => return self.failed(&error, Duration::ZERO),
                }
                list
            }
        };
        self.call(&Op::Insert { key }, &name)?;
        match list.insert(key.to_string()) {
            Ok(Some(insertion)) => self.done(insertion.into(), insertion.id(), Duration::ZERO)?,
            Ok(None) => return self.done(Answer::NotFound, 0, Duration::ZERO),
            Err(error) => self.failed(&error, Duration::ZERO)?,
        }
        self.list = Some(list);
        Ok(())
    }
}

fn now() -> Duration {
    SystemClock.now().since_boot()
}
