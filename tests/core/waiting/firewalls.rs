//! Waiting where datagrams are dropped by firewalls, as most clouds do between hosts.
//!
//! Hosts are network namespaces with firewalls of their own; only root can make them. Time is the
//! subject here: the promise is (place in the queue + 2) × (hold + 1 s), to which only the time is
//! added for which the machine itself stood still.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use memlock_core::clock::{Clock, SystemClock};
use memlock_core::{Client, Mutex};
use memlock_tests::hosts::{Drops, Hosts};
use memlock_tests::server::Memcached;

use super::bench::{LEASE, unlock, until};

/// For how long the workers of a case want the lock again and again.
const LENGTH: Duration = Duration::from_secs(8);

/// The firewalls of the hosts, the first of which is the server's.
const WORLDS: [(&str, &[Drops]); 7] = [
    ("all dropped", &[Drops::Everything, Drops::Everything]),
    ("dropped between hosts", &[Drops::FromOthers, Drops::FromOthers]),
    ("dropped one way", &[Drops::Nothing, Drops::FromOthers]),
    ("dropped the other way", &[Drops::FromOthers, Drops::Nothing]),
    ("one unreachable host of three", &[Drops::Nothing, Drops::Nothing, Drops::Everything]),
    ("refused between hosts", &[Drops::FromOthersAndSaysSo, Drops::FromOthersAndSaysSo]),
    ("refused one way", &[Drops::Nothing, Drops::FromOthersAndSaysSo]),
];

/// Workers on hosts with such firewalls.
struct Case {
    name: &'static str,
    firewalls: &'static [Drops],
    workers: usize,
    /// So many of each worker want it.
    threads: usize,
    hold: Duration,
    /// Which workers ask for no wake-ups.
    off: fn(usize) -> bool,
}

/// The result of a case.
#[derive(Default)]
struct Outcome {
    /// How often each worker had the lock.
    holds: Vec<usize>,
    /// The longest wait.
    longest: Duration,
    /// The largest share of what a wait may take.
    worst: f64,
}

/// How long the machine stood still at most: longer sleeps than were asked for, and slow round
/// trips.
#[derive(Default)]
struct Machine {
    micros: AtomicU64,
}

impl Machine {
    /// Sleeps and asks the server by turns until it is stopped.
    fn watch(&self, mutex: &Mutex, stop: &AtomicBool) {
        while !stop.load(Ordering::SeqCst) {
            let began = SystemClock.now();
            thread::sleep(Duration::from_millis(5));
            let _ = mutex.owner();
            let stood = SystemClock.now().since(began).saturating_sub(Duration::from_millis(5));
            self.micros.fetch_max(u64::try_from(stood.as_micros()).unwrap(), Ordering::SeqCst);
        }
    }

    fn stood_still(&self) -> Duration {
        Duration::from_micros(self.micros.load(Ordering::SeqCst))
    }
}

impl Case {
    fn run(&self) -> Outcome {
        let hosts = Hosts::new(self.firewalls.len()).unwrap();
        for (host, drops) in self.firewalls.iter().enumerate() {
            hosts.firewall(host, *drops).unwrap();
        }
        let address = hosts.address(0);
        let (waiting, stop, machine) =
            (AtomicUsize::new(0), AtomicBool::new(false), Machine::default());
        let server = thread::scope(|scope| {
            let started = scope.spawn(|| {
                hosts.enter(0).unwrap();
                Memcached::with_args(&["-l", &address])
            });
            started.join().unwrap()
        });
        let url = format!("memcached://{address}:{}", server.port());
        thread::scope(|scope| {
            scope.spawn(|| {
                hosts.enter(0).unwrap();
                machine.watch(&Client::connect(&url).unwrap().mutex("m", LEASE).unwrap(), &stop);
            });
            let workers: Vec<_> = (0..self.workers)
                .map(|number| {
                    let (hosts, waiting, stop, machine) = (&hosts, &waiting, &stop, &machine);
                    let off = if (self.off)(number) { "?notify=off" } else { "" };
                    let client = Client::connect(&format!("{url}{off}")).unwrap();
                    // One after the other, so that each knows how many came before it.
                    thread::sleep(Duration::from_millis(20));
                    let thread = move |client: Client| {
                        hosts.enter(number % self.firewalls.len()).unwrap();
                        self.work(&client, waiting, machine, stop)
                    };
                    let start = |_| {
                        let client = client.clone();
                        scope.spawn(move || thread(client))
                    };
                    (0..self.threads).map(start).collect::<Vec<_>>()
                })
                .collect();
            thread::sleep(LENGTH);
            stop.store(true, Ordering::SeqCst);
            let mut outcome = Outcome::default();
            for threads in workers {
                outcome.holds.push(0);
                for thread in threads {
                    let (holds, longest, worst) = thread.join().unwrap();
                    *outcome.holds.last_mut().unwrap() += holds;
                    outcome.longest = outcome.longest.max(longest);
                    outcome.worst = outcome.worst.max(worst);
                }
            }
            outcome
        })
    }

    /// Takes the lock again and again. Gives how often, the longest wait, and the largest share of
    /// what a wait may take.
    fn work(
        &self,
        client: &Client,
        waiting: &AtomicUsize,
        machine: &Machine,
        stop: &AtomicBool,
    ) -> (usize, Duration, f64) {
        let mutex = client.mutex("m", LEASE).unwrap();
        // A network that was just made takes a moment to carry something.
        until(|| mutex.owner().is_ok());
        let (mut holds, mut longest, mut worst) = (0, Duration::ZERO, 0.0_f64);
        while !stop.load(Ordering::SeqCst) {
            let before = waiting.fetch_add(1, Ordering::SeqCst);
            let began = SystemClock.now();
            let held = mutex.lock().unwrap();
            let waited = SystemClock.now().since(began);
            waiting.fetch_sub(1, Ordering::SeqCst);
            let turn = self.hold + Duration::from_secs(1) + machine.stood_still();
            let bound = turn * u32::try_from(before + 2).unwrap();
            longest = longest.max(waited);
            worst = worst.max(waited.as_secs_f64() / bound.as_secs_f64());
            holds += 1;
            thread::sleep(self.hold);
            unlock(held);
        }
        (holds, longest, worst)
    }
}

#[test]
#[ignore = "real time: make prove"]
fn no_waiter_is_passed_over_where_datagrams_are_dropped() {
    let none: fn(usize) -> bool = |_| false;
    let every_other: fn(usize) -> bool = |worker| worker % 2 == 1;
    let first = |worker| worker == 0;
    let mut cases = Vec::new();
    for (name, firewalls) in WORLDS {
        for hold in [1, 20, 500] {
            let hold = Duration::from_millis(hold);
            for (workers, off) in [(2, none), (4, none), (8, none), (4, every_other)] {
                cases.push(Case { name, firewalls, workers, threads: 1, hold, off });
            }
        }
        let hold = Duration::from_millis(20);
        cases.push(Case { name, firewalls, workers: 3, threads: 2, hold, off: every_other });
    }
    // Nothing is dropped, but some or all cannot be woken.
    let open = Case {
        name: "nothing dropped",
        firewalls: &[Drops::Nothing],
        workers: 3,
        threads: 2,
        hold: Duration::from_millis(20),
        off: |_| true,
    };
    cases.push(Case { workers: 5, threads: 1, off: first, ..open });
    cases.push(Case { workers: 8, threads: 1, off: first, ..open });
    cases.push(Case { threads: 3, ..open });
    cases.push(open);
    let mut failures = 0;
    // Some at a time: the machine is not what is measured.
    for some in cases.chunks(20) {
        thread::scope(|scope| {
            let running: Vec<_> =
                some.iter().map(|case| (case, scope.spawn(|| case.run()))).collect();
            for (Case { name, workers, threads, hold, off, .. }, running) in running {
                let Outcome { holds, longest, worst } = running.join().unwrap();
                let off = (0..*workers).filter(|&worker| off(worker)).count();
                println!(
                    "{name}, {workers} workers of {threads} threads, notify=off in {off}, holds of {hold:?}: longest wait {longest:.1?}, \
                     {:.0} % of what it may take; holds {holds:?}",
                    100.0 * worst
                );
                failures += usize::from(worst > 1.0 || holds.contains(&0));
            }
        });
    }
    assert_eq!(failures, 0, "waiters were passed over: see above");
}
