//! Log records, in a Rust program: their text, and that a logger may use all of memlock. There is one
//! logger for a process, so this is a program of its own.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::thread;
use std::time::Duration;

use log::{Level, Log, Metadata, Record};
use memlock_core::{Client, Loss, RenewOptions, Renewal, logs};
use memlock_tests::doors::WaitingThread;
use memlock_tests::launch::{poll_until, until};
use memlock_tests::server::{Memcached, MemcachedText};
use memlock_tests::url;

const SECOND: Duration = Duration::from_secs(1);
/// For what must happen, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program's logger, which remembers everything, and uses the client.
struct Listener {
    heard: Mutex<Vec<(Level, String, String)>>,
    client: Mutex<Option<Client>>,
    kept: Mutex<Vec<Weak<Renewal>>>,
    /// How many commands the server had seen when the first connection to it was logged.
    server: Mutex<Option<MemcachedText>>,
    commands: Mutex<Option<u64>>,
}

static LISTENER: Listener = Listener {
    heard: Mutex::new(Vec::new()),
    client: Mutex::new(None),
    kept: Mutex::new(Vec::new()),
    server: Mutex::new(None),
    commands: Mutex::new(None),
};

impl Log for Listener {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        thread_local! {
            static INSIDE: Cell<bool> = const { Cell::new(false) };
        }
        let Some(part) = logs::name(record.target()) else { return };
        let text = record.args().to_string();
        let server =
            if text.starts_with("Connected") { self.server.lock().unwrap().take() } else { None };
        if let Some(mut server) = server {
            *self.commands.lock().unwrap() = Some(server.commands());
        }
        self.heard.lock().unwrap().push((record.level(), part.clone(), text));
        if INSIDE.replace(true) {
            return;
        }
        let client = self.client.lock().unwrap().clone();
        if let Some(client) = client {
            use_something(&client, &part);
        }
        INSIDE.set(false);
    }

    fn flush(&self) {}
}

/// What needs the mutexes of the part that speaks, or of any part. How it goes does not matter.
fn use_something(client: &Client, part: &str) {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    let name = format!("inside {number}");
    let mutex = |name: &str| client.mutex(name, SECOND).unwrap();
    match (part, number % 6) {
        ("memlock.client", _) | (_, 0) => drop(mutex(&name).try_lock()),
        ("memlock.wait" | "memlock.mutex", _) | (_, 1) => {
            drop(mutex("contended").lock_for(Duration::from_millis(1)));
        }
        ("memlock.semaphore", _) | (_, 2) => {
            drop(client.semaphore("s", 3, SECOND).map(|s| s.try_acquire()))
        }
        ("memlock.renewal", _) | (_, 3) => {
            for kept in LISTENER.kept.lock().unwrap().iter().filter_map(Weak::upgrade) {
                let _ =
                    (kept.is_held(), kept.lost(), kept.remaining(), kept.wait_lost(Duration::ZERO));
            }
            if let Ok(Some(lock)) = mutex(&name).try_lock() {
                drop(lock.renew(RenewOptions::default()));
            }
        }
        (_, 4) => drop(client.distinct_list(&name).map(|mut list| list.set_up(SECOND))),
        _ => {
            let kept = LISTENER.kept.lock().unwrap().iter().find_map(Weak::upgrade);
            drop(kept.map(|kept| kept.check()));
        }
    }
}

impl Listener {
    fn has_heard(&self, level: Level, part: &str, text: &str) -> bool {
        let heard = self.heard.lock().unwrap();
        heard.iter().any(|line| line.0 == level && line.1 == part && line.2.contains(text))
    }

    fn hears(&self, level: Level, part: &str, text: &str) {
        let heard = poll_until(PATIENCE, || self.has_heard(level, part, text).then_some(()));
        assert!(heard.is_some(), "no {text:?} in {:#?}", self.heard.lock().unwrap());
    }
}

unsafe extern "C" fn never(_: c_int, _: *const c_char, message: *const c_char, _: *mut c_void) {
    // SAFETY: memlock gives a string.
    panic!("the program's logger was replaced: {:?}", unsafe { CStr::from_ptr(message) });
}

/// Through one trouble after another: a server that stands still, keys that are gone, a server that
/// is killed.
fn trouble() {
    let server = Memcached::start();
    let connect =
        || Client::connect(&url::with(&server.url(), "io_timeout=2s&outage=60s")).unwrap();
    let client = connect();
    let mutex = |name: &str, lease| client.mutex(name, lease).unwrap();
    let place = format!("memcached at {}", server.address());
    *LISTENER.server.lock().unwrap() = Some(server.plain());
    drop(mutex("first", 30 * SECOND).lock().unwrap());
    let commands = LISTENER.commands.lock().unwrap().take();
    assert!(commands.unwrap() > 0, "a logger delays no request");
    *LISTENER.client.lock().unwrap() = Some(client.clone());
    let permit = |lease| {
        let semaphore = client.semaphore("s", 3, lease).unwrap();
        Arc::new(semaphore.acquire().unwrap().renew(RenewOptions::default()).unwrap())
    };
    // Half of the lease is left to go on with when its end is announced.
    let lock = mutex("kept", 30 * SECOND).lock().unwrap();
    let lock = Arc::new(lock.renew(RenewOptions::default()).unwrap());
    let kept_permit = permit(30 * SECOND);
    LISTENER.kept.lock().unwrap().extend([Arc::downgrade(&lock), Arc::downgrade(&kept_permit)]);
    LISTENER.hears(Level::Debug, "memlock.store", "Connected to memcached at 127.0.0.1");
    LISTENER.hears(Level::Warn, "memlock.store", "may evict locks when its memory is full");
    LISTENER.hears(Level::Warn, "memlock.store", "start it with -M");

    let contended = mutex("contended", 30 * SECOND).lock().unwrap();
    // By clients of their own, to which the server is not known to be silent.
    let (dropped, dropped_permit) = (
        connect().mutex("dropped", 120 * SECOND).unwrap().lock().unwrap(),
        connect().semaphore("s", 3, 120 * SECOND).unwrap().acquire().unwrap(),
    );
    let threads = [(), ()].map(|()| WaitingThread::default());
    let waiting = threads.clone().map(|this| {
        let contended = mutex("contended", 30 * SECOND);
        thread::spawn(move || {
            this.is_this_one();
            contended.lock().map(drop)
        })
    });
    until("both of them sleep", || threads.iter().all(WaitingThread::is_asleep));

    server.pause();
    drop(dropped);
    drop(dropped_permit);
    LISTENER.hears(Level::Warn, "memlock.mutex", "Unlocking the lock \"dropped\" on memcached at");
    LISTENER.hears(Level::Warn, "memlock.semaphore", "Releasing permits of the semaphore \"s\"");
    LISTENER.hears(Level::Info, "memlock.client", "the lock \"dropped\"");
    LISTENER.hears(Level::Info, "memlock.store", "did not answer within 2s");
    LISTENER.hears(Level::Info, "memlock.wait", "Waiting for the lock \"contended\" on");
    LISTENER.hears(Level::Debug, "memlock.renewal", "Leases could not be renewed now");
    LISTENER.hears(Level::Warn, "memlock.renewal", "could not be renewed so far; it ends in");
    server.resume();
    LISTENER.hears(Level::Info, "memlock.store", "answers again");
    LISTENER.hears(Level::Info, "memlock.renewal", "The lease of the lock \"kept\" on");
    drop(contended);
    for waiting in waiting {
        waiting.join().unwrap().unwrap();
    }
    mutex("abandoned", 30 * SECOND).lock().unwrap().abandon();
    assert!(mutex("abandoned", 30 * SECOND).lock_for(PATIENCE).unwrap().is_some());
    LISTENER.hears(
        Level::Debug,
        "memlock.client",
        "What was left behind of the lock \"abandoned\"",
    );

    assert!(server.plain().delete("lock:kept"));
    assert_eq!(lock.wait_lost(PATIENCE), Some(Loss::Gone));
    LISTENER.hears(
        Level::Warn,
        "memlock.renewal",
        &format!("The lock \"kept\" on {place} is lost: it was gone"),
    );

    let permit = permit(6 * SECOND);
    server.kill();
    assert_eq!(permit.wait_lost(PATIENCE), Some(Loss::Expired));
    LISTENER.hears(
        Level::Warn,
        "memlock.renewal",
        &format!("The permit of the semaphore \"s\" on {place} is lost: it could not be renewed"),
    );
    server.restart();
    assert!(mutex("after", 30 * SECOND).lock_for(PATIENCE).unwrap().is_some());
    LISTENER.hears(Level::Warn, "memlock.store", "was started anew");
    *LISTENER.client.lock().unwrap() = None;
}

#[test]
fn a_log_callback_may_use_everything_and_gets_whole_sentences() {
    log::set_logger(&LISTENER).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    // SAFETY: the callback is a function, and needs no argument.
    let answer = unsafe {
        memlock::memlock_log_set(memlock::MEMLOCK_LOG_TRACE, Some(never), std::ptr::null_mut())
    };
    assert_eq!(answer, memlock::MEMLOCK_CONFIG);

    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        let ended = std::panic::catch_unwind(trouble);
        done.send(ended).unwrap();
    });
    let ended = is_done.recv_timeout(6 * PATIENCE);
    let ended =
        ended.unwrap_or_else(|_| panic!("it hangs, after {:#?}", LISTENER.heard.lock().unwrap()));
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    for (_, _, message) in LISTENER.heard.lock().unwrap().iter() {
        let begins_well = message.starts_with(|first: char| first.is_uppercase())
            || message.starts_with("memcached at ");
        assert!(
            begins_well && message.ends_with(['.', '?', ')']) && !message.contains('\n'),
            "{message}"
        );
    }
}
