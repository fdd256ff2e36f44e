//! The ways into memlock, as one trait: what a conformance test may do with it, in whichever
//! language.
//!
//! Rust and C are called in this process. For C++ and Python there is a small program, `driver.cpp`
//! and `driver.py`, which is spoken to over a pipe: see [`Driver`]. Answers are
//! the numbers of the answer table, so that all languages must say the same.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use memlock_core::{Answer, Loss, Mismatch, Notice, Report};

mod asleep;
mod c;
mod cpp;
mod driver;
mod python;
mod remote;
mod rust;

pub use asleep::WaitingThread;
pub use driver::Driver;
pub use remote::Remote;
pub use rust::Rust;

/// The languages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// In this process.
    Rust,
    /// In this process.
    C,
    /// In a driver.
    Cpp,
    /// In a driver.
    Python,
}

impl Language {
    /// A process that speaks this language, and that nobody else uses: one that another test is
    /// done with, if there is one.
    #[must_use]
    pub fn driver(self) -> Arc<Driver> {
        static RUNNING: Mutex<Vec<(Language, Arc<Driver>)>> = Mutex::new(Vec::new());
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever used it has dropped all its objects.
        let is_free = |driver: &Arc<Driver>| Arc::strong_count(driver) == 1 && driver.is_idle();
        let free = running.iter().find(|(language, driver)| *language == self && is_free(driver));
        if let Some((_, driver)) = free {
            return Arc::clone(driver);
        }
        drop(running);
        let started = Arc::new(match self {
            Language::Cpp => cpp::start(),
            Language::Python => python::start(),
            Language::Rust | Language::C => panic!("{self:?} is called in this process"),
        });
        running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        running.push((self, Arc::clone(&started)));
        started
    }

    /// A client in this process, if this language is called here.
    ///
    /// # Panics
    /// For an URL that cannot be used.
    #[must_use]
    pub fn open_here(self, url: &str) -> Option<Box<dyn Door>> {
        match self {
            Language::Rust => Some(Box::new(Rust::open(url).expect("the URL is good"))),
            Language::C => Some(Box::new(c::C::open(url).expect("the URL is good"))),
            Language::Cpp | Language::Python => None,
        }
    }
}

/// An answer other than the one that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct No {
    /// Which row of the table.
    pub answer: Answer,
    /// What the user reads. Empty where the language says it by a plain value, such as Python's
    /// `False`.
    pub sentence: String,
}

/// What a call gives, or why not.
pub type Outcome<T> = Result<T, No>;

/// How long a call waits.
#[derive(Clone, Copy, Debug)]
pub enum For {
    /// It tries once.
    Never,
    /// At most this long.
    AtMost(Duration),
    /// As long as it takes.
    Ever,
}

impl For {
    /// In milliseconds, as C has it.
    fn ms(self) -> i64 {
        match self {
            For::Never => 0,
            For::AtMost(limit) => millis(limit),
            For::Ever => -1,
        }
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// What to acquire of a semaphore.
#[derive(Clone, Copy, Debug)]
pub struct PermitRequest {
    /// How many, together or not at all.
    pub permits: u32,
    /// Waiters of higher priority come first.
    pub priority: i64,
    /// Whether a waiter that was overtaken often enough comes next, whatever its priority.
    pub ages: bool,
}

impl PermitRequest {
    /// So many permits, of no special priority.
    #[must_use]
    pub fn of(permits: u32) -> PermitRequest {
        PermitRequest { permits, priority: 0, ages: true }
    }

    /// One permit of this priority.
    #[must_use]
    pub fn at(priority: i64) -> PermitRequest {
        PermitRequest { priority, ..PermitRequest::of(1) }
    }
}

/// A client. Any number of threads may use it at once.
pub trait Door: Send + Sync {
    /// The process that holds what is acquired.
    fn process(&self) -> u32;
    /// Locks a mutex.
    fn lock(&self, name: &[u8], lease: Duration, wait: For) -> Outcome<Box<dyn Held>>;
    /// Waits for a mutex and renews its lease for as long as `max_hold` allows.
    fn lock_renewed(
        &self,
        name: &[u8],
        lease: Duration,
        max_hold: Option<Duration>,
    ) -> Outcome<Box<dyn Renewed>>;
    /// The acquisition that holds a mutex, if any.
    fn owner(&self, name: &[u8]) -> Outcome<Option<Owner>>;
    /// Takes a mutex away from that acquisition.
    fn force_unlock(&self, name: &[u8], token: &str) -> Outcome<()>;
    /// A semaphore; without a number, with as many permits as it has.
    fn semaphore(
        &self,
        name: &[u8],
        permits: Option<u32>,
        lease: Duration,
    ) -> Outcome<Box<dyn Semaphore>> {
        self.semaphore_with(name, permits, lease, Mismatch::Follow)
    }
    /// A semaphore, and what to do if it has another number of permits.
    fn semaphore_with(
        &self,
        name: &[u8],
        permits: Option<u32>,
        lease: Duration,
        mismatch: Mismatch,
    ) -> Outcome<Box<dyn Semaphore>>;
    /// A plain counter.
    fn counter(&self, key: &str) -> Box<dyn Counter>;
    /// Sets a session up or joins it; the answer says which.
    fn set_up_list(&self, session: &[u8], duration: Duration) -> Outcome<(Answer, Box<dyn List>)>;
    /// A handle on a session that sets nothing up. Python has none.
    fn list(&self, session: &[u8]) -> Outcome<Box<dyn List>>;
    /// Ends all waits of this client.
    fn cancel_waits(&self);
}

/// A lock or permits that are held. Dropping it releases it.
pub trait Held: Send {
    /// A lock's fencing token; permits have none.
    fn fence(&self) -> u64;
    /// For how long it is guaranteed to be held.
    fn remaining(&self) -> Duration;
    /// Gives it a new lease.
    fn extend(&mut self, lease: Duration) -> Outcome<()>;
    /// Releases it.
    fn release(self: Box<Self>) -> Outcome<()>;
}

/// A lock or permits whose lease is renewed. Dropping it releases it.
pub trait Renewed: Send + Sync {
    /// Whether it is guaranteed to be held, by the clock and by what is known.
    fn is_held(&self) -> bool;
    /// Asks the server whether it is held.
    fn check(&self) -> Outcome<bool>;
    /// Why it was lost.
    fn lost(&self) -> Option<Loss>;
    /// Waits until it is lost.
    fn wait_lost(&self, limit: Duration) -> Option<Loss>;
    /// The notices that its callbacks were given so far.
    fn notices(&self) -> Vec<Notice>;
    /// Releases it.
    fn release(self: Box<Self>) -> Outcome<()>;
}

/// A semaphore. Any number of threads may use it at once.
pub trait Semaphore: Send + Sync {
    /// Acquires what is asked for.
    fn acquire(&self, ask: PermitRequest, wait: For) -> Outcome<Box<dyn Held>>;
    /// Waits for permits and renews their lease for as long as `max_hold` allows.
    fn acquire_renewed(
        &self,
        permits: u32,
        max_hold: Option<Duration>,
    ) -> Outcome<Box<dyn Renewed>>;
    /// Sets it up; the answer says whether it was set up before.
    fn set_up(&self, life: Duration) -> Outcome<Answer>;
    /// Removes it for all clients.
    fn tear_down(&self) -> Outcome<()>;
    /// Changes the number of permits for all clients.
    fn resize(&self, permits: u32) -> Outcome<()>;
    /// How many permits there are, held or not.
    fn permits(&self) -> Outcome<u32>;
    /// How many permits are not held.
    fn available(&self) -> Outcome<u32>;
    /// The holders that were seen.
    fn holders(&self) -> Outcome<Vec<PermitHolder>>;
}

/// A plain counter. Any number of threads may use it at once.
pub trait Counter: Send + Sync {
    /// Sets it up; the answer says whether there was one before.
    fn set_up(&self, permits: u64) -> Outcome<Answer>;
    /// Takes one permit if there is one.
    fn try_acquire(&self) -> Outcome<()>;
    /// Tries again and again.
    fn retry(&self, wait: For) -> Outcome<()>;
    /// Waits in the queue.
    fn park(&self, priority: i64, wait: For) -> Outcome<()>;
    /// Gives one permit back.
    fn release(&self) -> Outcome<()>;
    /// How many permits are free.
    fn available(&self) -> Outcome<u64>;
}

/// A distinct list.
pub trait List: Send {
    /// Inserts a key: its id, and whether this was the first insertion.
    fn insert(&mut self, key: &[u8]) -> Outcome<(u64, bool)>;
    /// Inserts many.
    fn insert_many(&mut self, keys: &[&[u8]]) -> Outcome<Vec<(u64, bool)>>;
    /// A key's id.
    fn id(&mut self, key: &[u8]) -> Outcome<Option<u64>>;
    /// How many ids were given out.
    fn count(&mut self) -> Outcome<u64>;
    /// All keys with their ids.
    fn walk(&mut self) -> Outcome<Vec<(u64, Vec<u8>)>>;
    /// Ends the session.
    fn tear_down(&mut self) -> Outcome<()>;
}

/// The holder of a mutex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Names the acquisition.
    pub token: String,
    /// The holder's process.
    pub pid: u32,
    /// When it was acquired, in Unix seconds.
    pub since: u64,
}

/// A holder of permits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitHolder {
    /// Names the acquisition.
    pub token: String,
    /// The holder's host, cut at 32 characters.
    pub host: String,
    /// The holder's process.
    pub pid: u32,
    /// How many it holds.
    pub permits: u32,
    /// When they were acquired, in Unix seconds.
    pub since: u64,
    /// For how long the server keeps them for this holder.
    pub remaining: Duration,
}

impl From<Report> for No {
    fn from(report: Report) -> No {
        let (answer, sentence) = (report.answer(), report.to_string());
        assert!(!sentence.is_empty(), "{answer:?} has no sentence");
        No { answer, sentence }
    }
}
