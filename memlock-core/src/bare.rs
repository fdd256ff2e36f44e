//! Burton's six functions, and those of the semaphore in the same manner, on the process's default
//! client.
//!
//! The default client is the one of [`init`], or of the environment's `MEMLOCK_URL`, or else
//! `memcached://127.0.0.1:11211`. A mutex is owned by the process: any of its threads may unlock
//! it, and two of its threads exclude each other. A forked child owns nothing of its parent's.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::client::Client;
use crate::distinct::DistinctList;
use crate::error::{Answer, Error, ErrorKind, Result};
use crate::fork::ForkLocal;
use crate::hash::{fnv1a, mix};
use crate::lease::{Lease, MIN_LEASE};
use crate::mutex::Lock;
use crate::name::check_name;
use crate::report::Report;
use crate::semaphore::Semaphore;
use crate::wait::Wait;

mod semaphore;

pub use semaphore::{
    acquire, semaphore_acquire, semaphore_acquire_nonblock, semaphore_release, semaphore_set_up,
    semaphore_tear_down,
};

/// Where the locks are if nobody says otherwise.
pub const DEFAULT_URL: &str = "memcached://127.0.0.1:11211";

/// Beyond so many sessions those that have ended are forgotten; and beyond so many displaced
/// threads, which may never come back, all of them.
const MOST: usize = 1024;

/// The default client. It is made without any I/O and kept for the process's life; whoever loses
/// the race to make it throws its own away, so that no thread ever waits here and a fork can catch
/// nobody.
static DEFAULT: AtomicPtr<Client> = AtomicPtr::new(std::ptr::null_mut());

static HOLDINGS: ForkLocal<Mutex<Holdings>> = ForkLocal::new();

/// What this process has through the bare functions.
#[derive(Default)]
struct Holdings {
    locks: ByName<Held>,
    /// Threads whose lease ran out and whose lock another thread has by now: their late unlock must
    /// not hit the other's lock.
    displaced: HashSet<(Vec<u8>, Thread)>,
    sessions: ByName<DistinctList>,
    permits: ByName<Vec<semaphore::Held>>,
    semaphores: ByName<Semaphore>,
}

/// The names are the process's own, so a cheap hash will do.
type ByName<T> = HashMap<Vec<u8>, T, BuildHasherDefault<Fnv>>;

#[derive(Default)]
struct Fnv(u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        self.0 ^= fnv1a(bytes);
    }

    fn finish(&self) -> u64 {
        mix(self.0)
    }
}

/// A number that no other thread of this process has or had.
type Thread = u64;

/// Not `std::thread::current`, which panics in the last destructors of a thread; this has none
/// itself.
fn this_thread() -> Thread {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static NUMBER: Cell<Thread> = const { Cell::new(0) };
    }
    if NUMBER.get() == 0 {
        NUMBER.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
    }
    NUMBER.get()
}

struct Held {
    lock: Lock,
    thread: Thread,
}

/// Chooses the default client. It can be chosen once, before its first use.
///
/// # Errors
/// [`ErrorKind::Config`] for an URL that cannot be read, or when there is a default client already.
pub fn init(url: &str) -> Result<()> {
    if install(Client::connect(url)?) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Config,
        "The default client is in use already: choose it once, before the first call of a bare function.",
    ))
}

/// The default client, made if there is none.
///
/// # Errors
/// [`ErrorKind::Config`] for a `MEMLOCK_URL` that cannot be read.
pub fn default_client() -> Result<&'static Client> {
    loop {
        if let Some(client) = existing_client() {
            return Ok(client);
        }
        let url = match std::env::var("MEMLOCK_URL") {
            Ok(url) => url,
            Err(std::env::VarError::NotPresent) => DEFAULT_URL.to_owned(),
            Err(std::env::VarError::NotUnicode(_)) => {
                return Err(Error::new(
                    ErrorKind::Config,
                    "The environment's MEMLOCK_URL is not UTF-8.",
                ));
            }
        };
        install(Client::connect(&url).map_err(|error| error.during("MEMLOCK_URL"))?);
    }
}

/// The default client, if it was chosen or used.
fn existing_client() -> Option<&'static Client> {
    // SAFETY: a pointer that is not null came from `install` and is never freed.
    unsafe { DEFAULT.load(Ordering::Acquire).as_ref() }
}

fn install(client: Client) -> bool {
    let fresh = Box::into_raw(Box::new(client));
    let installed = DEFAULT
        .compare_exchange(std::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire)
        .is_ok();
    if !installed {
        // SAFETY: made above and shown to nobody.
        drop(unsafe { Box::from_raw(fresh) });
    }
    installed
}

/// Locks a mutex for at most `duration`, waiting for it as long as it takes: [`Answer::Ok`] or
/// [`Answer::Interrupted`].
///
/// # Errors
/// [`ErrorKind::Deadlock`] when this thread holds it already; else as
/// [`Mutex::lock_with`](crate::Mutex::lock_with).
pub fn mutex_lock(name: &[u8], duration: Duration) -> Result<Report> {
    lock(name, duration, &Wait::FOREVER)
}

/// As [`mutex_lock`], but tries once: [`Answer::Ok`] or [`Answer::Busy`].
///
/// # Errors
/// As [`Mutex::lock_with`](crate::Mutex::lock_with).
pub fn mutex_lock_nonblock(name: &[u8], duration: Duration) -> Result<Report> {
    lock(name, duration, &Wait::NEVER)
}

/// As [`mutex_lock`], with a wait of the caller's choice.
///
/// # Errors
/// As [`mutex_lock`].
pub fn lock(name: &[u8], duration: Duration, wait: &Wait<'_>) -> Result<Report> {
    let mutex = default_client()?.mutex(name, duration)?;
    let thread = this_thread();
    let held = holdings()
        .locks
        .get(name)
        .filter(|held| !held.lock.remaining().is_zero())
        .map(|held| held.thread);
    // Whether this call would wait at all is only known for a lock of our own process.
    if held == Some(thread) && !wait.is_once() {
        return Err(Error::new(
            ErrorKind::Deadlock,
            format!("This thread already holds the {} and would wait for itself.", mutex.subject()),
        ));
    }
    match mutex.lock_or_report(wait) {
        Ok(Ok(lock)) => {
            keep(name, Held { lock, thread });
            Ok(Answer::Ok.into())
        }
        Ok(Err(report)) => Ok(report),
        Err(error) => Err(error),
    }
}

/// What there is to say of a mutex of which this thread has nothing at hand.
fn about(name: &[u8], answer: Answer, text: &str) -> Report {
    match existing_client().map(|client| client.mutex(name, MIN_LEASE)) {
        Some(Ok(mutex)) => Report::new(answer, format!("The {} {text}.", mutex.subject())),
        _ => answer.into(),
    }
}

fn keep(name: &[u8], held: Held) {
    let mut holdings = holdings();
    let thread = held.thread;
    if !holdings.displaced.is_empty() {
        holdings.displaced.remove(&(name.to_vec(), thread));
    }
    let expired = holdings.locks.insert(name.to_vec(), held);
    if let Some(expired) = expired.as_ref().filter(|expired| expired.thread != thread) {
        if holdings.displaced.len() >= MOST {
            holdings.displaced.clear();
        }
        holdings.displaced.insert((name.to_vec(), expired.thread));
    }
    // Before the expired one is dropped, which may speak to the server.
    drop(holdings);
    drop(expired);
}

/// Whether this thread's own lock was displaced by another thread's. It is told once.
fn was_displaced(holdings: &mut Holdings, name: &[u8]) -> bool {
    if holdings.displaced.is_empty() {
        return false;
    }
    let thread = this_thread();
    let has_another = holdings.locks.get(name).is_none_or(|held| held.thread != thread);
    has_another && holdings.displaced.remove(&(name.to_vec(), thread))
}

/// Unlocks a mutex that this process locked, from whichever thread: [`Answer::Ok`],
/// [`Answer::Lost`] or [`Answer::NotHeld`]. A thread whose own lease ran out, and whose mutex
/// another thread has by now, is told [`Answer::Lost`].
///
/// # Errors
/// [`ErrorKind::Unreachable`] or [`ErrorKind::Unknown`]: the lock is still held, and may be
/// unlocked again.
pub fn mutex_unlock(name: &[u8]) -> Result<Report> {
    check_name(name)?;
    let mut holding = holdings();
    if was_displaced(&mut holding, name) {
        drop(holding);
        let text = "was lost: this thread's lease is over, and another thread of this process has locked it since";
        return Ok(about(name, Answer::Lost, text));
    }
    let Some(mut held) = holding.locks.remove(name) else {
        drop(holding);
        let text = "is not held: this process did not lock it, or has unlocked it";
        return Ok(about(name, Answer::NotHeld, text));
    };
    drop(holding);
    match held.lock.unlock() {
        Ok(released) => Ok(held.lock.report(released)),
        Err(error) => {
            // Not confirmed, so not given up; unless another thread has locked it anew meanwhile.
            let mut holdings = holdings();
            if holdings.locks.contains_key(name) {
                drop(holdings);
                held.lock.abandon();
            } else {
                holdings.locks.insert(name.to_vec(), held);
            }
            Err(error)
        }
    }
}

/// Sets up a session that ends after `duration`: [`Answer::Ok`], or [`Answer::Exists`] when we
/// joined it.
///
/// # Errors
/// As [`DistinctList::set_up`].
pub fn distinct_list_set_up(session: &[u8], duration: Duration) -> Result<Report> {
    Lease::new(duration)?;
    let mut list = default_client()?.distinct_list(session)?;
    let answer = Answer::from(list.set_up(duration)?);
    remember(session, list);
    Ok(answer.into())
}

/// Inserts a key: [`Answer::Ok`] for the first to do so, [`Answer::Duplicate`], or
/// [`Answer::NotFound`] when there is no such session.
///
/// # Errors
/// As [`DistinctList::insert`].
pub fn distinct_list_insert(session: &[u8], key: &[u8]) -> Result<Report> {
    let mut list = list(session)?;
    let Some(insertion) = list.insert(key)? else { return Ok(list.report_not_found()) };
    // One that is known stays as it is: another thread may have set up the session anew meanwhile.
    let known = holdings().sessions.contains_key(session);
    if !known {
        remember(session, list);
    }
    Ok(Answer::from(insertion).into())
}

/// Ends a session for everybody: [`Answer::Ok`], or [`Answer::NotFound`] when there was none, or
/// another one than this process set up. What this process inserts late is refused until it sets
/// the session up again.
///
/// # Errors
/// As [`DistinctList::tear_down`].
pub fn distinct_list_tear_down(session: &[u8]) -> Result<Report> {
    let mut list = list(session)?;
    Ok(if list.tear_down()? { Answer::Ok.into() } else { list.report_not_found() })
}

/// The session as this process knows it. One that it set up stays its own, even when it is over.
fn list(session: &[u8]) -> Result<DistinctList> {
    let known = holdings().sessions.get(session).cloned();
    match known {
        Some(list) => Ok(list),
        None => default_client()?.distinct_list(session),
    }
}

fn remember(session: &[u8], list: DistinctList) {
    let sessions = &mut holdings().sessions;
    if sessions.len() >= MOST && !sessions.contains_key(session) {
        sessions.retain(|_, list| !list.has_ended());
    }
    sessions.insert(session.to_vec(), list);
}

fn holdings() -> MutexGuard<'static, Holdings> {
    HOLDINGS.get().lock().unwrap_or_else(PoisonError::into_inner)
}
