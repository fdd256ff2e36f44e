//! Clients of databases.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::store::{Store, schemes};
use memlock_core::{Client, Error, ErrorKind, Lock, Release, Request, Result, Wait};

use crate::launch::until;
use crate::{assert_safe, url};

/// A lease that no test outlasts.
pub const LEASE: Duration = Duration::from_secs(300);
/// For what must happen, however slow the machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A [patient](url::patient) client.
pub fn connect(url: &str) -> Client {
    Client::connect(&url::patient(url)).expect("a good URL")
}

/// A patient client's store, for batches of a test's own.
pub fn store(url: &str) -> Arc<dyn Store> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    schemes::connect(&url::patient(url), &clock).expect("a good URL")
}

/// Whether a lock is free, as another client sees it.
pub fn is_free(client: &Client, name: &str) -> bool {
    let mutex = client.mutex(name, LEASE).expect("a good name");
    mutex.owner().expect("the server answers").is_none()
}

/// Waits until a lock is renewed, which is when what remains of its lease rises. `place`: where that is.
pub fn until_renewed<T: Copy + Ord>(place: &str, remaining: impl Fn() -> T) {
    let mut least = remaining();
    until(&format!("the lock is renewed {place}"), || {
        let now = remaining();
        let is_renewed = now > least;
        least = least.min(now);
        thread::sleep(Duration::from_millis(50));
        is_renewed
    });
}

/// On a server that takes no more connections, an attempt fails at once, and a wait that begins
/// goes on until there is room. `client`: one that has not connected yet. `says`: what the server
/// should be given more of.
pub fn a_wait_outlasts_a_crowd(client: &Client, says: &str, make_room: impl FnOnce()) {
    let mutex = client.mutex("crowded", LEASE).expect("a good name");
    let error = mutex.try_lock().map(drop).expect_err("no room is left");
    assert!(error.kind() == ErrorKind::Unreachable && error.to_string().contains(says), "{error}");
    let (refused, was_refused) = mpsc::channel();
    let semaphore = client.semaphore("crowded", 2, LEASE).expect("a good name");
    let (mut lock, mut permit) = thread::scope(|scope| {
        let (by_lock, by_permit) = (refused.clone(), refused);
        let locking = scope.spawn(move || {
            let tell = |error: &Error| drop(by_lock.send(error.to_string()));
            mutex.lock_with(&Wait::FOREVER.on_outage(&tell))
        });
        let acquiring = scope.spawn(move || {
            let tell = |error: &Error| drop(by_permit.send(error.to_string()));
            semaphore.acquire_with(Request::default(), &Wait::FOREVER.on_outage(&tell))
        });
        for _ in 0..2 {
            let why = was_refused.recv_timeout(PATIENCE).expect("both waits begin");
            assert!(why.contains(says), "{why}");
        }
        make_room();
        let lock = locking.join().expect("no panic").expect("there is room");
        let permit = acquiring.join().expect("no panic").expect("there is room");
        (lock.done().expect("it is free"), permit.done().expect("it is free"))
    });
    assert_eq!(lock.unlock().expect("the server answers"), Release::Released);
    assert_eq!(permit.release().expect("the server answers"), Release::Released);
}

/// Whether an attempt was granted the lock, and released it.
pub fn is_granted(tried: Result<Option<Lock>>) -> bool {
    tried.is_ok_and(|lock| lock.is_some_and(|mut lock| lock.unlock().is_ok()))
}

/// The fence of a lock that this client holds for a moment. It keeps its connection.
pub fn fence(client: &Client) -> u64 {
    let mutex = client.mutex("fence", LEASE).expect("a good name");
    let mut lock = mutex.lock_for(PATIENCE).expect("the server answers").expect("it is free");
    let fence = lock.fence();
    assert_eq!(lock.unlock().expect("the server answers"), Release::Released);
    fence
}

/// The greatest fence of several clients, each of which connects after the one before.
pub fn last_fence(client: impl Fn() -> Client) -> u64 {
    (0..10).map(|_| fence(&client())).max().expect("some")
}

/// The clients are given fences that are greater than the last one, and rise. Returns the greatest.
/// `after`: what has happened meanwhile.
pub fn fences_rise(last: u64, clients: &[&Client], after: &str) -> u64 {
    clients.iter().fold(last, |last, client| {
        let next = fence(client);
        assert_safe!(next > last, "{next} after {last}: {after}");
        next
    })
}
