//! `quorum=majority`: mutexes on several memcacheds of which a minority is killed, frozen, cut off
//! or started anew, and a majority too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cost;
mod inspection;
mod majority;
mod minority;
mod outages;
mod redlock;
mod refusals;
mod restarts;
mod split_votes;

use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::store::Route;
use memlock_core::{Client, Lock};
use memlock_tests::launch::poll_until;
use memlock_tests::proxy::Proxy;
use memlock_tests::server::Memcached;

const SECOND: Duration = Duration::from_secs(1);
/// The guard of these tests, the shortest there is, and the lease of what they hold.
const GUARD: Duration = Duration::from_secs(4);
/// For what must happen, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a member may be silent before a client goes on without it.
const SILENCE: Duration = Duration::from_millis(500);

/// A server, and the way to it.
struct Member {
    server: Memcached,
    proxy: Proxy,
}

/// What may happen to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Killed,
    /// SIGSTOP: it accepts connections, and does not answer.
    Hung,
    /// What is sent in either direction is lost.
    CutOff,
    /// Its connections are closed, and new ones are refused.
    Refused,
    /// It was killed, and has been started again.
    Restarted,
}

impl Trouble {
    const ALL: [Trouble; 5] =
        [Trouble::Killed, Trouble::Hung, Trouble::CutOff, Trouble::Refused, Trouble::Restarted];
}

impl Member {
    fn begin(&self, trouble: Trouble) {
        match trouble {
            Trouble::Killed => self.server.kill(),
            Trouble::Hung => self.server.pause(),
            Trouble::CutOff => self.proxy.black_hole(true),
            Trouble::Refused => self.proxy.refuse(true),
            Trouble::Restarted => self.server.restart(),
        }
    }

    fn end(&self, trouble: Trouble) {
        match trouble {
            Trouble::Killed => self.server.restart(),
            Trouble::Hung => self.server.resume(),
            Trouble::CutOff => {
                self.proxy.black_hole(false);
                // Connections that lost something stay silent.
                self.proxy.refuse(true);
                self.proxy.refuse(false);
            }
            Trouble::Refused => self.proxy.refuse(false),
            Trouble::Restarted => {}
        }
    }

    /// What the member has, past the proxy.
    fn get(&self, key: &str) -> Option<Vec<u8>> {
        self.server.plain().get(key)
    }
}

/// The members of a quorum, each behind a proxy.
struct Bench {
    members: Vec<Member>,
}

impl Bench {
    /// Members that are older than the guard. Servers are started ahead, so that few tests wait.
    fn of(number: usize) -> Bench {
        static SERVERS: OnceLock<Mutex<Receiver<Memcached>>> = OnceLock::new();
        let servers = SERVERS.get_or_init(|| {
            let (ahead, servers) = mpsc::sync_channel(24);
            thread::spawn(move || while ahead.send(start()).is_ok() {});
            Mutex::new(servers)
        });
        let servers = servers.lock().unwrap_or_else(PoisonError::into_inner);
        let members: Vec<Member> = (0..number).map(|_| member(servers.recv().unwrap())).collect();
        drop(servers);
        let bench = Bench { members };
        bench.settle();
        bench
    }

    /// Members that were started just now, for the first time.
    fn fresh(number: usize) -> Bench {
        Bench { members: (0..number).map(|_| member(start())).collect() }
    }

    /// Returns once every client is given what is free: one that has seen nothing of a server yet
    /// is so up to two seconds after the guard's end, because servers tell their age in whole
    /// seconds.
    fn settle(&self) {
        for Member { server, .. } in &self.members {
            let is_old = || {
                let uptime: u64 = server.plain().stats()["uptime"].parse().unwrap();
                (uptime >= GUARD.as_secs() + 4).then_some(())
            };
            assert!(poll_until(PATIENCE, is_old).is_some(), "its clock stands still");
        }
    }

    fn addresses(&self) -> Vec<String> {
        self.members.iter().map(|member| member.proxy.address()).collect()
    }

    fn url(&self) -> String {
        let silence = SILENCE.as_millis();
        format!(
            "memcached://{}?quorum=majority&guard={}s&io_timeout={silence}ms&connect_timeout={silence}ms",
            self.addresses().join(","),
            GUARD.as_secs()
        )
    }

    /// A client that goes on without a member as soon as it has been silent for so long.
    fn impatient(&self, silence: Duration) -> Client {
        let (usual, silence) = (SILENCE.as_millis(), silence.as_millis());
        let url = self.url().replace(&format!("={usual}ms"), &format!("={silence}ms"));
        Client::connect(&url).unwrap()
    }

    fn client(&self) -> Client {
        Client::connect(&self.url()).unwrap()
    }

    /// A client whose waits go on for as long as the servers are away.
    fn patient(&self) -> Client {
        Client::connect(&format!("{}&outage=300s", self.url())).unwrap()
    }

    /// Lets this happen to so many members, those from `first` on, one straight after the other.
    fn begin(&self, trouble: Trouble, first: usize, number: usize) {
        self.some(first, number).for_each(|member| member.begin(trouble));
    }

    fn end(&self, trouble: Trouble, first: usize, number: usize) {
        self.some(first, number).for_each(|member| member.end(trouble));
    }

    fn some(&self, first: usize, number: usize) -> impl Iterator<Item = &Member> {
        let all = self.members.len();
        (first..first + number).map(move |place| &self.members[place % all])
    }

    /// How many members have this item.
    fn count(&self, key: &str) -> usize {
        self.members.iter().filter(|member| member.get(key).is_some()).count()
    }

    /// How many members have a vote for this lock.
    fn votes(&self, lock: &Lock) -> usize {
        let token = lock.token().to_string();
        let has = |member: &&Member| {
            let vote = member.get(&format!("lock:{}", lock.name())).unwrap_or_default();
            String::from_utf8_lossy(&vote).contains(&token)
        };
        self.members.iter().filter(has).count()
    }

    /// Returns once a client waits for this lock.
    fn await_waiter(&self, name: &str) {
        let queue = format!("lock:{name}%wait");
        let waits = || {
            let there = |member: &Member| member.get(&queue).is_some_and(|queue| !queue.is_empty());
            self.members.iter().any(there).then_some(())
        };
        assert!(poll_until(PATIENCE, waits).is_some(), "nobody waits for {name}");
    }

    /// Kills so many, and starts them again; with the moment before the first could start.
    fn restart(&self, number: usize) -> Instant {
        self.some(0, number).for_each(|member| member.server.kill());
        let began = Instant::now();
        thread::scope(|scope| {
            self.some(0, number).for_each(|member| {
                scope.spawn(|| member.server.restart());
            });
        });
        began
    }
}

/// As a quorum wants them: without `flush_all`, and without evictions.
fn start() -> Memcached {
    Memcached::with_args(&["-F", "-M"])
}

fn member(server: Memcached) -> Member {
    Member { proxy: Proxy::start(server.address()), server }
}

/// The order in which the members decide where votes are split, and have the queue.
fn first_member(bench: &Bench, client: &Client, name: &str) -> usize {
    let url = format!("memcached://{}", bench.addresses().join(","));
    let route = Route::of(&client.keys().lock(name.as_bytes()));
    Client::connect(&url).unwrap().server_of(route)
}

/// Takes the lock as soon as it is free.
#[track_caller]
fn hold(client: &Client, name: &str) -> Lock {
    let lock = client.mutex(name, GUARD).unwrap().lock_for(PATIENCE).unwrap();
    lock.unwrap_or_else(|| panic!("{name} was not granted within {PATIENCE:?}"))
}

/// The same, with the votes of all members: on a busy machine one may answer too late.
#[track_caller]
fn hold_on_all(bench: &Bench, client: &Client, name: &str) -> Lock {
    let lock = poll_until(PATIENCE, || {
        let lock = hold(client, name);
        (bench.votes(&lock) == bench.members.len()).then_some(lock)
    });
    lock.expect("all members give their votes")
}

/// Whether a single attempt gets the lock. Of a lock that nobody holds, or is about to hold.
fn gets(client: &Client, name: &str) -> bool {
    client.mutex(name, GUARD).unwrap().try_lock().unwrap().is_some()
}
