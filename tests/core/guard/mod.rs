//! `guard=` on memcached: real servers are killed and started anew, holders put back what they
//! held, and nothing new is granted until every lease of before has ended.

mod agreement;
mod contention;
mod cost;
mod forks;
mod holders;
mod leases;
mod losses;
mod notices;
mod semaphores;
mod servers;
mod tries;

use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use memlock_core::{Client, Lock};
use memlock_tests::launch::poll_until;
use memlock_tests::server::Memcached;
use memlock_tests::stopwatch::Stopwatch;

const SECOND: Duration = Duration::from_secs(1);
/// The guard of these tests, and the lease of what they hold.
const GUARD: Duration = Duration::from_secs(3);
/// A lease that ends before the guard. Of one second, a slow reply may leave nothing.
const BRIEF: Duration = Duration::from_millis(1500);
/// For what must happen, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// How much later than the guard's end a waiter has its lock: a server tells its age in whole
/// seconds, and up to two seconds less than it is.
const LATE: Duration = Duration::from_secs(4);

/// A server of the test's own, and its clients.
struct Bench {
    server: Memcached,
}

impl Bench {
    /// A server that is older than the guard. Servers are started ahead, so that few tests wait.
    fn start() -> Bench {
        static SERVERS: OnceLock<Mutex<Receiver<Memcached>>> = OnceLock::new();
        let servers = SERVERS.get_or_init(|| {
            let (ahead, servers) = mpsc::sync_channel(6);
            thread::spawn(move || while ahead.send(Memcached::start()).is_ok() {});
            Mutex::new(servers)
        });
        let server = servers.lock().unwrap_or_else(PoisonError::into_inner).recv().unwrap();
        settle(&server);
        Bench { server }
    }

    /// A server that was started just now, for the first time.
    fn fresh() -> (Bench, Restarted) {
        let (began, watch) = (Instant::now(), Stopwatch::start());
        (Bench { server: Memcached::start() }, Restarted { began, watch })
    }

    fn url(&self) -> String {
        format!("{}?guard={}s", self.server.url(), GUARD.as_secs())
    }

    fn client(&self) -> Client {
        Client::connect(&self.url()).unwrap()
    }

    /// Kills the server, and starts it again; with the moment before it could start.
    fn restart(&self) -> Restarted {
        self.server.kill();
        self.start_again()
    }

    fn start_again(&self) -> Restarted {
        let (began, watch) = (Instant::now(), Stopwatch::start());
        self.server.restart();
        Restarted { began, watch }
    }

    /// Returns once somebody waits for this item.
    fn await_waiter(&self, key: &str) {
        let queue = format!("{key}%wait");
        let someone = |queue: &Vec<u8>| !queue.is_empty();
        let found = poll_until(PATIENCE, || self.server.plain().get(&queue).filter(someone));
        assert!(found.is_some(), "nobody waits for {key}");
    }
}

/// Returns once every client is given what is free on this server: one that has seen nothing of it
/// yet is so up to two seconds after the guard's end, because servers tell their age in whole
/// seconds.
fn settle(server: &Memcached) {
    let is_old = || {
        let uptime: u64 = server.plain().stats()["uptime"].parse().unwrap();
        (uptime >= GUARD.as_secs() + 4).then_some(())
    };
    assert!(poll_until(PATIENCE, is_old).is_some(), "its clock stands still");
}

/// The start of a server that was killed before.
struct Restarted {
    began: Instant,
    watch: Stopwatch,
}

impl Restarted {
    /// What was granted just now was granted after the guard's end, and soon.
    #[track_caller]
    fn just_ended(&self) {
        let (waited, counted) = (self.began.elapsed(), self.watch.elapsed());
        assert!(waited >= GUARD, "granted {waited:?} after the start");
        assert!(counted < GUARD + LATE, "granted only {counted:?} after the start");
    }

    /// The guard's end is not reached for certain.
    #[track_caller]
    fn has_not_ended(&self) {
        let since = self.began.elapsed();
        assert!(since < GUARD, "the test took too long: {since:?}");
    }
}

/// Takes the lock as soon as the server gives it.
fn hold(client: &Client, name: &str) -> Lock {
    let lock = client.mutex(name, GUARD).unwrap().lock_for(PATIENCE).unwrap();
    lock.unwrap_or_else(|| panic!("{name} was not granted within {PATIENCE:?}"))
}

/// A thread that waits for the lock until the guard's end, when it gets it.
fn waits_for_the_end<'a>(
    scope: &'a Scope<'a, '_>,
    bench: &Bench,
    name: &'a str,
    restarted: &'a Restarted,
) -> ScopedJoinHandle<'a, ()> {
    let client = bench.client();
    scope.spawn(move || {
        let lock = hold(&client, name);
        restarted.just_ended();
        drop(lock);
    })
}
