//! One of the processes of `make faults`: `fault-client URL HISTORY SEED rust|c|credulous`. It
//! contends for three mutexes and the permits of two semaphores, inserts into a distinct list, and
//! writes down what it does as [`memlock_tests::history`] says, until standard input ends: in two
//! threads in Rust, and in one by the C functions. client.py does the same.
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

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::{Answer, Client, Error, Lock, Permit, Request, Wait};
use memlock_tests::chance::Chance;
use memlock_tests::doors::{Door, For, Held, Language, List, No, PermitRequest};
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
    let [url, history, seed, kind] = args.as_slice() else {
        return Err("fault-client URL HISTORY SEED rust|c|credulous".into());
    };
    let (language, threads) = if kind == "c" { (Language::C, 1) } else { (Language::Rust, 2) };
    let client = (language == Language::Rust).then(|| Client::connect(url)).transpose()?;
    let door = language.open_here(url).ok_or("it is called in this process")?;
    let history = Writer::open(history)?;
    let mut chance = Chance(seed.parse()?);
    let stopped = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|number| {
                let mut worker = Worker {
                    client: client.as_ref(),
                    door: &*door,
                    history: history.of_thread(number),
                    number,
                    chance: Chance(chance.number()),
                    credulous: kind == "credulous",
                    list: None,
                    session: 0,
                };
                let stopped = &stopped;
                scope.spawn(move || worker.live(stopped))
            })
            .collect();
        std::io::stdin().read_to_end(&mut Vec::new())?;
        stopped.store(true, Ordering::Relaxed);
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a thread panicked")?)
    })
}

/// An answer other than the one that was asked for, and its sentence.
struct Refused(Answer, String);

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused(error.kind().answer(), error.to_string())
    }
}

impl From<Answer> for Refused {
    fn from(answer: Answer) -> Refused {
        Refused(answer, String::new())
    }
}

impl From<No> for Refused {
    fn from(no: No) -> Refused {
        Refused(no.answer, no.sentence)
    }
}

/// What was granted.
#[expect(clippy::large_enum_variant, reason = "a thread has one")]
enum Granted {
    Lock(Lock),
    Permit(Permit),
    /// Either by the C functions, until it is released.
    InC(Option<Box<dyn Held>>),
}

impl Granted {
    /// Until when it is certainly held: in C rather too early than too late.
    fn deadline(&self) -> Duration {
        let before = now();
        match self {
            Granted::Lock(lock) => lock.deadline().since_boot(),
            Granted::Permit(permit) => permit.deadline().since_boot(),
            Granted::InC(held) => {
                before + held.as_ref().map_or(Duration::ZERO, |it| it.remaining())
            }
        }
    }

    fn extend(&mut self, lease: Duration) -> Result<Answer, Refused> {
        Ok(match self {
            Granted::Lock(lock) => lock.extend(lease)?.into(),
            Granted::Permit(permit) => permit.extend(lease)?.into(),
            Granted::InC(Some(held)) => held.extend(lease).map(|()| Answer::Ok)?,
            Granted::InC(None) => Answer::NotHeld,
        })
    }

    fn release(&mut self) -> Result<Answer, Refused> {
        Ok(match self {
            Granted::Lock(lock) => lock.unlock()?.into(),
            Granted::Permit(permit) => permit.release()?.into(),
            Granted::InC(held) => match held.take() {
                Some(held) => held.release().map(|()| Answer::Ok)?,
                None => Answer::NotHeld,
            },
        })
    }

    fn abandon(self) {
        match self {
            Granted::Lock(lock) => lock.abandon(),
            Granted::Permit(permit) => permit.abandon(),
            Granted::InC(_) => {}
        }
    }
}

/// One thread.
struct Worker<'a> {
    /// In Rust, where a release that has failed can be tried again.
    client: Option<&'a Client>,
    /// For lists, and in C for everything.
    door: &'a dyn Door,
    history: Writer,
    number: u64,
    chance: Chance,
    credulous: bool,
    list: Option<Box<dyn List>>,
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

    fn refused(&self, Refused(answer, said): Refused, second: Duration) -> Result<(), Failure> {
        if answer.code() >= 0 {
            return self.done(answer, 0, second);
        }
        self.history.failed(answer, &said, second)?;
        thread::sleep(AFTER_FAILURE);
        Ok(())
    }

    fn contend(&mut self) -> Result<(), Failure> {
        let name = format!("m{}", self.chance.below(NAMES));
        let (lease, wait) = self.lease_and_wait();
        self.call(&Op::Lock { lease, wait: Some(wait) }, &name)?;
        match self.lock(&name, lease, wait) {
            Ok((fence, lock)) => {
                self.done(Answer::Ok, fence, self.believed(&lock))?;
                self.hold(&name, lock, lease)
            }
            Err(refused) => self.refused(refused, Duration::ZERO),
        }
    }

    fn lock(&self, name: &str, lease: Duration, wait: Duration) -> Result<(u64, Granted), Refused> {
        let Some(client) = self.client else {
            let held = self.door.lock(name.as_bytes(), lease, For::AtMost(wait))?;
            return Ok((held.fence(), Granted::InC(Some(held))));
        };
        let lock = client.mutex(name, lease)?.lock_with(&Wait::at_most(wait))?.into_result()?;
        Ok((lock.fence(), Granted::Lock(lock)))
    }

    fn lease_and_wait(&mut self) -> (Duration, Duration) {
        let lease =
            Duration::from_millis(1000 + if self.credulous { 0 } else { self.chance.below(1000) });
        let wait = if self.chance.below(10) < 4 { 0 } else { 50 + self.chance.below(1450) };
        (lease, Duration::from_millis(wait))
    }

    fn hold(&mut self, name: &str, mut lock: Granted, lease: Duration) -> Result<(), Failure> {
        if self.believed(&lock) > now() {
            self.history.enter()?;
            match self.chance.below(1000) {
                _ if self.credulous => thread::sleep(CREDULITY),
                0 => thread::sleep(lease + Duration::from_millis(self.chance.below(2500))),
                1..5 => thread::sleep(lock.deadline().saturating_sub(now() + SHORTLY)),
                5..12 => self.extend(&Op::Extend { lease }, name, &mut lock, lease)?,
                12..28 => thread::sleep(self.chance.millis(20, 120)),
                _ => thread::sleep(Duration::from_millis(self.chance.below(3))),
            }
            self.history.leave()?;
        }
        self.release(&Op::Unlock, name, lock, false)
    }

    fn extend(
        &mut self,
        op: &Op,
        name: &str,
        granted: &mut Granted,
        lease: Duration,
    ) -> Result<(), Failure> {
        self.call(op, name)?;
        let extended = granted.extend(lease);
        let until = self.believed(granted);
        match extended {
            Ok(Answer::Ok) => {
                self.done(Answer::Ok, 0, until)?;
                thread::sleep(Duration::from_millis(self.chance.below(200)));
                Ok(())
            }
            Ok(answer) => self.done(answer, 0, until),
            Err(refused) => self.refused(refused, until),
        }
    }

    /// A release that has failed is tried again, and so is one that is to come `again`.
    fn release(
        &mut self,
        op: &Op,
        name: &str,
        mut granted: Granted,
        again: bool,
    ) -> Result<(), Failure> {
        for _ in 0..2 {
            self.call(op, name)?;
            match granted.release() {
                Ok(answer) => {
                    self.done(answer, 0, Duration::ZERO)?;
                    if !again {
                        return Ok(());
                    }
                }
                Err(refused) => self.refused(refused, Duration::ZERO)?,
            }
            if matches!(granted, Granted::InC(None)) {
                return Ok(());
            }
        }
        granted.abandon();
        Ok(())
    }

    /// Until when this process believes in what it was granted.
    fn believed(&self, granted: &Granted) -> Duration {
        if self.credulous { now() + CREDULITY } else { granted.deadline() }
    }

    fn contend_for_permits(&mut self) -> Result<(), Failure> {
        let place =
            if self.credulous { 1 } else { self.chance.below(SEMAPHORES.len() as u64) as usize };
        let (name, _, most) = SEMAPHORES[place];
        let (lease, wait) = self.lease_and_wait();
        let permits = if self.credulous { most } else { 1 + self.chance.below(most.into()) as u32 };
        let priority = self.chance.below(3) as i64 - 1;
        self.call(&Op::Acquire { lease, wait: Some(wait), permits, priority }, name)?;
        let ask = PermitRequest { permits, ..PermitRequest::at(priority) };
        match self.acquire(place, ask, lease, wait) {
            Ok(permit) => {
                self.done(Answer::Ok, permits.into(), self.believed(&permit))?;
                self.use_permits(name, permit, lease)
            }
            Err(refused) => self.refused(refused, Duration::ZERO),
        }
    }

    fn acquire(
        &self,
        place: usize,
        ask: PermitRequest,
        lease: Duration,
        wait: Duration,
    ) -> Result<Granted, Refused> {
        let (name, size, _) = SEMAPHORES[place];
        let Some(client) = self.client else {
            let semaphore = self.door.semaphore(name.as_bytes(), Some(size), lease)?;
            return Ok(Granted::InC(Some(semaphore.acquire(ask, For::AtMost(wait))?)));
        };
        let PermitRequest { permits, priority, .. } = ask;
        let request = Request { permits, priority, ..Request::default() };
        let semaphore = client.semaphore(name, size, lease)?;
        let acquired = semaphore.acquire_with(request, &Wait::at_most(wait))?;
        Ok(Granted::Permit(acquired.into_result()?))
    }

    fn use_permits(
        &mut self,
        name: &str,
        mut permit: Granted,
        lease: Duration,
    ) -> Result<(), Failure> {
        if self.believed(&permit) > now() {
            match self.chance.below(1000) {
                _ if self.credulous => thread::sleep(CREDULITY),
                0 => thread::sleep(lease + Duration::from_millis(self.chance.below(2500))),
                1..5 => thread::sleep(permit.deadline().saturating_sub(now() + SHORTLY)),
                5..15 => self.extend(&Op::Prolong { lease }, name, &mut permit, lease)?,
                15..300 => thread::sleep(self.chance.millis(5, 40)),
                // So that some stand in its queue.
                300..600 if name == SEMAPHORES[0].0 => thread::sleep(self.chance.millis(40, 120)),
                _ => thread::sleep(Duration::from_millis(self.chance.below(3))),
            }
        }
        // Some release what they have released.
        let again = self.chance.below(16) == 0;
        self.release(&Op::Release, name, permit, again)
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
                self.call(&Op::SetUp, &name)?;
                match self.door.set_up_list(name.as_bytes(), SESSION_LIFE) {
                    Ok((answer, list)) => {
                        self.done(answer, 0, Duration::ZERO)?;
                        list
                    }
                    Err(no) => return self.refused(no.into(), Duration::ZERO),
                }
            }
        };
        self.call(&Op::Insert { key }, &name)?;
        match list.insert(key.to_string().as_bytes()) {
            Ok((id, is_first)) => {
                self.done(
                    if is_first { Answer::Ok } else { Answer::Duplicate },
                    id,
                    Duration::ZERO,
                )?;
            }
            Err(no) if no.answer == Answer::NotFound => {
                return self.refused(no.into(), Duration::ZERO);
            }
            Err(no) => self.refused(no.into(), Duration::ZERO)?,
        }
        self.list = Some(list);
        Ok(())
    }
}

fn now() -> Duration {
    SystemClock.now().since_boot()
}
