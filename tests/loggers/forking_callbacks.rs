//! Callbacks that fork, also while other threads are at work: their children return from them into
//! the middle of a call of the parent's.
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use log::{Log, Metadata, Record};
use memlock_core::{
    Client, ErrorKind, Extension, Insertion, Notice, Release, RenewOptions, Request, Wait, Waited,
};
use memlock_tests::launch::until;
use memlock_tests::server::Memcached;
use memlock_tests::url;
use memlock_tests::{assert_safe, assert_safe_eq};

use crate::{LEASE, PATIENCE, RIGHT, Sets, alone_with, end, fork, status};

/// The place of its logger.
const LOGGER: usize = 0;

thread_local! {
    /// Whether this thread forks at the next message about a connection, and the result.
    static FORKS: Cell<bool> = const { Cell::new(false) };
    static CHILD: Cell<Option<i32>> = const { Cell::new(None) };
}

/// The child that was made when the loss of a certain lock was logged.
static CHILD_OF_THE_NEWS: AtomicI32 = AtomicI32::new(-1);

/// Forks at a message about a connection: the call has been answered by then. Or at the report of
/// the loss of a certain lock.
pub(crate) struct Forker;

impl Log for Forker {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        if record.args().to_string().starts_with("Connected") && FORKS.replace(false) {
            CHILD.set(Some(fork()));
        }
        if record.args().to_string().starts_with("lock:forking is lost") {
            CHILD_OF_THE_NEWS.store(fork(), Ordering::SeqCst);
        }
    }

    fn flush(&self) {}
}

/// Makes a call that dials, and forks while that is logged. In the child it must have come to
/// nothing, while calls of its own work. Returns the parent's answer.
fn forking<T>(client: &Client, call: impl FnOnce() -> T, is_nothing: impl FnOnce(&T) -> bool) -> T {
    FORKS.set(true);
    let answer = call();
    let child = CHILD.take().unwrap();
    if child == 0 {
        let nothing = is_nothing(&answer);
        drop(answer);
        // Its waits may have been closed.
        let own = client.distinct_list("of the child").unwrap().set_up(LEASE);
        end(nothing && own.is_ok());
    }
    assert_eq!(status(child), RIGHT, "what the child found");
    answer
}

fn is_interrupted<T>(answer: &memlock_core::Result<T>) -> bool {
    answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Interrupted)
}

fn is_none<T>(answer: &memlock_core::Result<Option<T>>) -> bool {
    matches!(answer, Ok(None))
}

#[test]
fn a_child_that_returns_into_a_call_gets_nothing_that_is_its_parents() {
    let _alone = alone_with(LOGGER);
    let server = Memcached::start();
    let connect = || Client::connect(&server.url()).unwrap();
    let client = connect();
    let mutex = client.mutex("m", LEASE).unwrap();
    let mut lock = forking(&client, || mutex.try_lock(), is_none).unwrap().unwrap();
    assert_safe!(lock.check().unwrap(), "the child has taken it off");

    // With new connections each time, since these were closed.
    client.close();
    let extend = || lock.extend(LEASE);
    let extended = forking(&client, extend, is_interrupted);
    assert_eq!(extended.unwrap(), Extension::Extended);
    client.close();
    let unlock = || lock.unlock();
    let unlocked = forking(&client, unlock, is_interrupted);
    assert_eq!(unlocked.unwrap(), Release::Released);

    let client = connect();
    let semaphore = client.semaphore("s", 1, LEASE).unwrap();
    let mut permit = forking(&client, || semaphore.try_acquire(), is_none).unwrap().unwrap();
    assert_safe!(permit.check().unwrap(), "the child has given it back");
    client.close();
    let release = || permit.release();
    let released = forking(&client, release, is_interrupted);
    assert_eq!(released.unwrap(), Release::Released);
    assert_eq!(semaphore.status().unwrap().unwrap().available, 1);

    assert!(connect().counter("c").unwrap().set_up(5).unwrap());
    let client = connect();
    let counter = client.counter("c").unwrap();
    assert!(
        forking(&client, || counter.try_acquire(), |taken| matches!(taken, Ok(false))).unwrap()
    );
    assert_safe_eq!(counter.available().unwrap(), Some(4), "taken once");

    let mut list = connect().distinct_list("l").unwrap();
    let _ = list.set_up(LEASE).unwrap();
    let client = connect();
    let mut list = client.distinct_list("l").unwrap();
    let inserted = forking(&client, || list.insert("k"), is_interrupted).unwrap();
    assert!(matches!(inserted, Some(Insertion::First(_))), "{inserted:?}");
}

#[test]
fn a_child_of_a_notice_of_a_loss_keeps_nothing() {
    let _alone = alone_with(LOGGER);
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    static TOLD: AtomicBool = AtomicBool::new(false);
    static CHILD_OF_KEEPER: AtomicI32 = AtomicI32::new(-1);
    let tell = |notice| {
        if matches!(notice, Notice::Lost(_)) {
            CHILD_OF_KEEPER.store(fork(), Ordering::SeqCst);
            TOLD.store(true, Ordering::SeqCst);
        }
    };
    let kept = |name: &str, renew| {
        client.mutex(name, Duration::from_secs(6)).unwrap().lock().unwrap().renew(renew).unwrap()
    };
    let lost = kept("lost", RenewOptions { max_hold: None, on_notice: Some(Box::new(tell)) });
    let held = kept("held", RenewOptions::default());
    server.plain().set("lock:lost", "another's", 0);
    thread::scope(|scope| {
        // Another thread may have locked something when the child is made.
        scope.spawn(|| (0..100_000).for_each(|_| _ = held.is_held()));
        assert!(!lost.check().unwrap());
    });
    until("the loss is reported", || TOLD.load(Ordering::SeqCst));
    // The renewer was the child's only thread: it ends with it.
    assert_eq!(status(CHILD_OF_KEEPER.load(Ordering::SeqCst)), 0);
    // A child that renewed it, too, would have taken it from its parent.
    let mut last = held.remaining();
    until("the parent renews what it holds", || {
        let left = held.remaining();
        std::mem::replace(&mut last, left) < left
    });
    assert!(held.check().unwrap(), "the parent keeps what it holds");
}

#[test]
fn a_child_of_the_log_record_of_a_loss_is_not_notified_of_it() {
    let _alone = alone_with(LOGGER);
    let server = Memcached::start();
    let client = Client::connect(&server.url()).unwrap();
    static TOLD: AtomicBool = AtomicBool::new(false);
    let parent = std::process::id();
    let tell = move |notice| {
        if std::process::id() != parent {
            end(false);
        }
        TOLD.store(matches!(notice, Notice::Lost(_)), Ordering::SeqCst);
    };
    let renew = RenewOptions { max_hold: None, on_notice: Some(Box::new(tell)) };
    let lost = client.mutex("forking", LEASE).unwrap().lock().unwrap().renew(renew).unwrap();
    server.plain().set("lock:forking", "another's", 0);
    assert!(!lost.check().unwrap());
    until("it is told", || TOLD.load(Ordering::SeqCst));
    assert_eq!(status(CHILD_OF_THE_NEWS.load(Ordering::SeqCst)), 0);
}

/// What is waited for by several threads of one process.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Mutex,
    Permits,
    Counter,
}

impl Kind {
    /// Waits, holds it for a moment and releases it; `None` when the wait was interrupted.
    fn use_once(self, client: &Client, wait: &Wait<'_>) -> memlock_core::Result<Option<()>> {
        let hold = || thread::sleep(Duration::from_micros(300));
        Ok(match self {
            Kind::Mutex => client.mutex("m", LEASE)?.lock_with(wait)?.done().map(|lock| {
                hold();
                drop(lock);
            }),
            Kind::Permits => {
                let semaphore = client.semaphore("s", 2, LEASE)?;
                semaphore.acquire_with(Request::default(), wait)?.done().map(|permit| {
                    hold();
                    drop(permit);
                })
            }
            Kind::Counter => match client.counter("c")?.acquire_parked(0, wait)? {
                Waited::Done(()) => {
                    hold();
                    let _ = client.counter("c")?.release()?;
                    Some(())
                }
                _ => None,
            },
        })
    }
}

#[test]
fn children_of_callbacks_end_although_other_threads_were_at_work() {
    children_of_callbacks_end(40);
}

#[test]
#[ignore = "real time: make prove"]
fn very_many_children_of_callbacks_end_although_other_threads_were_at_work() {
    children_of_callbacks_end(1000);
}

/// Their locks, lists and tickets may be in the hands of other threads when the child is made,
/// which are not there in the child.
fn children_of_callbacks_end(children: usize) {
    let _alone = alone_with(LOGGER);
    let server = Memcached::start();
    // One thread sends the requests of all for permits, so a thread seldom logs then.
    let in_logs = [Kind::Mutex, Kind::Counter].map(|kind| (kind, true));
    let in_waits = [Kind::Mutex, Kind::Permits, Kind::Counter].map(|kind| (kind, false));
    for (kind, in_log) in in_waits.into_iter().chain(in_logs) {
        // Many calls of a client with one connection for its threads have to dial, and log that.
        let pool = if in_log { "pool=1" } else { "" };
        let client = Client::connect(&url::with(&server.url(), pool)).unwrap();
        if let Kind::Counter = kind {
            let _ = client.counter("c").unwrap().set_up(1).unwrap();
        }
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let _at_the_end = Sets(&is_over);
            for _ in 0..6 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::SeqCst) {
                        assert_eq!(kind.use_once(&client, &Wait::FOREVER).unwrap(), Some(()));
                    }
                });
            }
            let mut made = 0;
            while made < children {
                let child = Cell::new(None);
                let fork_once = || {
                    if !in_log && child.get().is_none() {
                        child.set(Some(fork()));
                    }
                    false
                };
                FORKS.set(in_log);
                let used = kind.use_once(&client, &Wait::at_most(PATIENCE).unless(&fork_once));
                FORKS.set(false);
                let child = child.take().or(CHILD.take());
                if child == Some(0) {
                    // A log record may also be that of the release.
                    let nothing = in_log || matches!(&used, Ok(None)) || is_interrupted(&used);
                    let own = client.distinct_list("of the child").unwrap().set_up(LEASE);
                    end(nothing && own.is_ok());
                }
                assert_eq!(used.unwrap(), Some(()), "{kind:?}: the parent's wait goes on");
                if let Some(child) = child {
                    assert_eq!(status(child), RIGHT, "{kind:?}: what child {made} found");
                    made += 1;
                }
            }
        });
    }
}
