//! Callbacks that fork: their children return from them into the middle of a call of the parent's.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use log::{Log, Metadata, Record};
use memlock_core::{
    Client, ErrorKind, Extension, Insertion, Notice, Release, RenewOptions, Request, Wait, Waited,
};
use memlock_tests::launch::poll_until;
use memlock_tests::server::Memcached;

const LEASE: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);
/// No longer than the guard of the quorum.
const SHORT: Duration = Duration::from_secs(4);
const PATIENCE: Duration = Duration::from_secs(20);
/// What a child ends with that found everything as it should be.
const RIGHT: i32 = 7;

thread_local! {
    /// Whether this thread forks at the next message about a connection, and the result.
    static FORKS: Cell<bool> = const { Cell::new(false) };
    static CHILD: Cell<Option<i32>> = const { Cell::new(None) };
}

/// The child that was made when the loss of a certain lock was logged.
static CHILD_OF_THE_NEWS: AtomicI32 = AtomicI32::new(-1);

/// Forks at a message about a connection: the call has been answered by then. Or at the report of
/// the loss of a certain lock.
struct Forker;

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

fn log_by_forking() {
    static FORKER: Forker = Forker;
    // The other test may have done so.
    let _ = log::set_logger(&FORKER);
    log::set_max_level(log::LevelFilter::Trace);
}

fn fork() -> i32 {
    // SAFETY: the child goes on in this thread alone, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    child
}

fn end(is_right: bool) -> ! {
    // SAFETY: ends the child without running the test harness's destructors.
    unsafe { libc::_exit(if is_right { RIGHT } else { 1 }) }
}

/// Waits for the child's end. Gives its status.
fn status(child: i32) -> i32 {
    let (mut status, began) = (0, Instant::now());
    // SAFETY: waits for the child that was made above.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } != child {
        if began.elapsed() > PATIENCE {
            // SAFETY: it is a child of ours that has not been waited for yet.
            unsafe { libc::kill(child, libc::SIGKILL) };
            panic!("the child has not ended by itself");
        }
        thread::sleep(Duration::from_millis(1));
    }
    assert!(libc::WIFEXITED(status), "the child was killed: {status:#x}");
    libc::WEXITSTATUS(status)
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
        let own = client.mutex("of the child", SHORT).unwrap().try_lock();
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
    log_by_forking();
    let server = Memcached::start();
    let connect = || Client::connect(&server.url()).unwrap();
    let client = connect();
    let mutex = client.mutex("m", LEASE).unwrap();
    let mut lock = forking(&client, || mutex.try_lock(), is_none).unwrap().unwrap();
    assert!(lock.check().unwrap(), "the child has taken it off");

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
    assert!(permit.check().unwrap(), "the child has given it back");
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
    assert_eq!(counter.available().unwrap(), Some(4), "taken once");

    let mut list = connect().distinct_list("l").unwrap();
    let _ = list.set_up(LEASE).unwrap();
    let client = connect();
    let mut list = client.distinct_list("l").unwrap();
    let inserted = forking(&client, || list.insert("k"), is_interrupted).unwrap();
    assert!(matches!(inserted, Some(Insertion::First(_))), "{inserted:?}");
}

/// What one member says is read, and its connection logged, while the requests to the others are under
/// way: what they say is for the parent alone.
#[test]
fn a_child_reads_nothing_that_members_of_a_quorum_say_to_its_parent() {
    log_by_forking();
    let servers: Vec<Memcached> = (0..3).map(|_| Memcached::with_args(&["-F", "-M"])).collect();
    let addresses: Vec<String> = servers.iter().map(|server| server.address()).collect();
    // What a child has read, its parent awaits for longer than its calls may take.
    let url = format!(
        "memcached://{}?quorum=majority&guard=4s&io_timeout={}s",
        addresses.join(","),
        2 * PATIENCE.as_secs()
    );
    let connect = || Client::connect(&url).unwrap();
    let granted = || connect().mutex("m", SHORT).unwrap().try_lock().unwrap().map(drop);
    assert!(poll_until(PATIENCE, granted).is_some(), "the servers do not get older");
    for _ in 0..3 {
        let client = connect();
        let (mutex, began) = (client.mutex("m", SHORT).unwrap(), Instant::now());
        let mut lock = forking(&client, || mutex.try_lock(), is_none).unwrap().unwrap();
        client.close();
        let extended = forking(&client, || lock.extend(SHORT), is_interrupted);
        assert_eq!(extended.unwrap(), Extension::Extended);
        client.close();
        let unlocked = forking(&client, || lock.unlock(), is_interrupted);
        assert_eq!(unlocked.unwrap(), Release::Released);
        assert!(began.elapsed() < PATIENCE, "a child has read a reply");
    }
}

#[test]
fn a_child_of_what_is_told_of_a_loss_keeps_nothing() {
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
        client.mutex(name, 3 * SECOND).unwrap().lock().unwrap().renew(renew).unwrap()
    };
    let lost = kept("lost", RenewOptions { max_hold: None, on_notice: Some(Box::new(tell)) });
    let held = kept("held", RenewOptions::default());
    server.plain().set("lock:lost", "another's", 0);
    assert!(!lost.check().unwrap());
    let began = Instant::now();
    while !TOLD.load(Ordering::SeqCst) {
        assert!(began.elapsed() < PATIENCE, "nothing is told");
        thread::sleep(Duration::from_millis(1));
    }
    // The renewer was the child's only thread: it ends with it.
    assert_eq!(status(CHILD_OF_KEEPER.load(Ordering::SeqCst)), 0);
    thread::sleep(4 * SECOND);
    assert!(held.check().unwrap(), "the parent keeps what it holds");
}

#[test]
fn a_child_of_what_is_logged_of_a_loss_is_not_told_of_it() {
    log_by_forking();
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
    let began = Instant::now();
    while !TOLD.load(Ordering::SeqCst) {
        assert!(began.elapsed() < PATIENCE, "nothing is told");
        thread::sleep(Duration::from_millis(1));
    }
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
    /// Waits, holds it for a moment and lets it go; or gives the error, or `None` when the wait was
    /// interrupted.
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

/// Sets it when it goes, also by a panic.
struct Sets<'a>(&'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Their locks, lists and tickets may be in the hands of other threads when the child is made,
/// which are not there in the child.
#[test]
fn children_of_waits_end_although_other_threads_were_at_work() {
    const CHILDREN: usize = 300;
    let server = Memcached::start();
    for kind in [Kind::Mutex, Kind::Permits, Kind::Counter] {
        let client = Client::connect(&server.url()).unwrap();
        if let Kind::Counter = kind {
            assert!(client.counter("c").unwrap().set_up(1).unwrap());
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
            while made < CHILDREN {
                let child = Cell::new(None);
                let fork_once = || {
                    if child.get().is_none() {
                        child.set(Some(fork()));
                    }
                    false
                };
                let used = kind.use_once(&client, &Wait::at_most(PATIENCE).unless(&fork_once));
                if child.get() == Some(0) {
                    let nothing = matches!(&used, Ok(None)) || is_interrupted(&used);
                    let own = client.distinct_list("of the child").unwrap().set_up(LEASE);
                    end(nothing && own.is_ok());
                }
                assert_eq!(used.unwrap(), Some(()), "{kind:?}: the parent's wait goes on");
                if let Some(child) = child.get() {
                    assert_eq!(status(child), RIGHT, "{kind:?}: what child {made} found");
                    made += 1;
                }
            }
        });
    }
}
