//! `guard=` on memcached: real servers are killed and started anew, holders put back what they
//! held, and nothing new is granted until every lease of before has ended.
//!
//! The guard is longer than any of these tests, and the tests decide how old a server says it is.
//! What really takes the time of a guard is in `contention` and `ends`.

mod agreement;
mod contention;
mod cost;
mod ends;
mod forks;
mod holders;
mod leases;
mod losses;
mod notices;
mod semaphores;
mod servers;
mod tries;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::{Client, Lock};
use memlock_tests::launch::poll_until;
use memlock_tests::memcached_text::MemcachedText;
use memlock_tests::proxy::{Fault, Proxy};
use memlock_tests::server::Memcached;

const SECOND: Duration = Duration::from_secs(1);
/// The guard of these tests, and the lease of what they hold.
const GUARD: Duration = Duration::from_secs(60);
/// A lease whose end is waited for.
const BRIEF: Duration = Duration::from_secs(4);
/// For what must happen, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(40);
/// By how many seconds a server seems older than it is, once it is to be older than the guard.
const OLD: u64 = 1000;

/// A server of the test's own, behind a proxy that lets it seem as old as the test wants.
struct Bench {
    server: Memcached,
    proxy: Proxy,
    life: Arc<Life>,
}

/// What the proxy says of a life of the server.
struct Life {
    /// When the first life began, in Unix seconds.
    boot: u64,
    /// How many lives came before.
    number: AtomicU64,
    /// How much older it seems than it is, in seconds.
    older: AtomicU64,
}

impl Life {
    /// The replies to the packet by which a connection is opened.
    fn introduction(&self, address: &str, request: &[u8]) -> Option<Vec<u8>> {
        let request = std::str::from_utf8(request).ok()?.strip_prefix("stats\r\n")?;
        let key = request.split_once("mg ")?.1.split(' ').next()?;
        let mut plain = MemcachedText::try_connect(address).ok()?;
        let stats = plain.stats_reply("stats").ok()?;
        let uptime = stats["uptime"].parse::<u64>().ok()? + self.older.load(Ordering::SeqCst);
        // Fences rise from life to life, also if a life takes less than a second. No end of a
        // semaphore lies in the past.
        let time = self.boot + 1000 * self.number.load(Ordering::SeqCst) + uptime;
        let config = match plain.get(key) {
            Some(value) => {
                let value = String::from_utf8_lossy(&value).into_owned();
                format!("VA {} c1 t-1 f0 h1 O0\r\n{value}\r\n", value.len())
            }
            None => "EN O0\r\n".to_owned(),
        };
        let (pid, version) = (&stats["pid"], &stats["version"]);
        let said = format!(
            "STAT pid {pid}\r\nSTAT uptime {uptime}\r\nSTAT time {time}\r\nSTAT version {version}\r\n\
             END\r\nSTAT cas_enabled yes\r\nEND\r\n{config}"
        );
        Some(said.into_bytes())
    }
}

impl Bench {
    /// A server that is older than the guard.
    fn start() -> Bench {
        let bench = Bench::fresh();
        bench.ages();
        bench
    }

    /// A server that was started just now, for the first time.
    fn fresh() -> Bench {
        let server = Memcached::start();
        let boot = SystemClock.unix_seconds();
        let life = Arc::new(Life { boot, number: AtomicU64::new(0), older: AtomicU64::new(0) });
        let bench = Bench { proxy: Proxy::start(server.address()), life, server };
        bench.tells_its_age();
        bench
    }

    /// Once the rules of the proxy were cleared.
    fn tells_its_age(&self) {
        let (life, address) = (Arc::clone(&self.life), self.server.address());
        self.proxy.decide(move |burst| life.introduction(&address, burst).map(Fault::GarbleReply));
    }

    fn url(&self) -> String {
        format!("{}?guard={}s&io_timeout=20s&outage=60s", self.proxy.url(), GUARD.as_secs())
    }

    fn client(&self) -> Client {
        Client::connect(&self.url()).unwrap()
    }

    /// The guard's end is over. All clients learn that when they connect again.
    fn ages(&self) {
        self.life.older.store(OLD, Ordering::SeqCst);
        self.proxy.refuse(true);
        self.proxy.refuse(false);
    }

    /// Kills the server, and starts it again: it recovers until [`Bench::ages`].
    fn restart(&self) {
        self.server.kill();
        self.start_again();
    }

    fn start_again(&self) {
        self.life.older.store(0, Ordering::SeqCst);
        self.life.number.fetch_add(1, Ordering::SeqCst);
        self.server.restart();
    }

    /// Returns once somebody waits for this item.
    fn await_waiter(&self, key: &str) {
        let queue = format!("{key}%wait");
        let someone = |queue: &Vec<u8>| !queue.is_empty();
        let found = poll_until(PATIENCE, || self.server.plain().get(&queue).filter(someone));
        assert!(found.is_some(), "nobody waits for {key}");
    }

    /// Another client gets the lock at the guard's end, and not before.
    fn grants_at_the_end(&self, name: &str) {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiter = waits_for_the_end(scope, self, name, &is_over);
            self.await_waiter(&format!("lock:{name}"));
            self.ends(&is_over);
            waiter.join().unwrap();
        });
    }

    fn ends(&self, is_over: &AtomicBool) {
        is_over.store(true, Ordering::SeqCst);
        self.ages();
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
    is_over: &'a AtomicBool,
) -> ScopedJoinHandle<'a, ()> {
    let client = bench.client();
    scope.spawn(move || {
        let lock = hold(&client, name);
        assert!(is_over.load(Ordering::SeqCst), "{name} was granted during the recovery");
        drop(lock);
    })
}
