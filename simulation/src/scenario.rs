//! What a seed makes of a run: its processes, what they do, and which faults occur.

use std::time::Duration;

use memlock_core::store::recovery::Guard;

use crate::rng::Rng;
use crate::time::{MICRO, MILLI, Nanos, SECOND};

#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) ahead: Nanos,
    /// By how many parts per million its clock runs fast.
    pub(crate) fast: i64,
    pub(crate) cut_off_until: Nanos,
    pub(crate) latency: Nanos,
}

/// Which incoming wake-up messages the firewall of a host drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Firewall {
    /// None.
    Open,
    /// Those of other hosts.
    Others,
    /// All of them, including those that a process sends to itself.
    All,
}

impl Firewall {
    pub(crate) fn drops(self, from: usize, to: usize) -> bool {
        match self {
            Firewall::Open => false,
            Firewall::Others => from != to,
            Firewall::All => true,
        }
    }
}

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGKILL.
    Kill(usize),
    /// SIGSTOP, and SIGCONT after that time.
    Pause(usize, Nanos),
    /// The process forks; the child inherits everything, and uses it.
    Fork(usize),
    /// All waits of a client are cancelled.
    CancelWaits(usize),
    /// The network of a host is down.
    CutOff(usize, Nanos),
    /// The server is stopped, and continues later.
    Stall(Nanos),
    /// The server dies, and starts again after that time.
    Restart(Nanos),
    Flush,
    Evict(u64),
    /// No wake-up message arrives.
    DropWakes(Nanos),
}

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    hosts: usize,
    host_seed: u64,
    pub(crate) server_ahead: Nanos,
    /// The maximum time between two ticks of the server's clock, and the offset of the first tick.
    pub(crate) tick: Nanos,
    pub(crate) first_tick: Nanos,
    /// All durations are multiples of one step, so that events coincide.
    pub(crate) in_step: bool,
    /// The host of each process, and its number of threads.
    pub(crate) processes: Vec<(usize, usize)>,
    pub(crate) notify_off: bool,
    /// Every other process has no listener, though `notify_off` is not set.
    pub(crate) some_off: bool,
    /// All threads want one mutex again and again, and hold it for this long each time.
    pub(crate) rush: Option<Nanos>,
    /// All hosts are near the server, so that holds can be very short.
    pub(crate) near: bool,
    /// The firewalls of the hosts.
    pub(crate) firewalls: Vec<Firewall>,
    pub(crate) mutexes: u64,
    /// The number of rounds of each thread.
    pub(crate) rounds: u64,
    /// Threads insert into distinct lists, too.
    pub(crate) lists: bool,
    pub(crate) tear_downs: bool,
    pub(crate) slow_permille: u64,
    pub(crate) lossy_permille: u64,
    pub(crate) lossy_wakes_permille: u64,
    pub(crate) faults: Vec<(Nanos, Fault)>,
    /// The guard on which the clients agree.
    pub(crate) guard: Option<Nanos>,
    /// No fault occurs: then waiters are checked more strictly.
    pub(crate) fault_free: bool,
    pub(crate) semaphores: Semaphores,
    /// How often a granted lock is renewed, in a thousand.
    pub(crate) renewed_permille: u64,
    /// How often a process is stopped while its renewer exchanges requests with the server, in a
    /// thousand.
    pub(crate) stops_permille: u64,
    /// The server draws a version before it locks the item, as memcached does since 1.6.24.
    pub(crate) unordered: bool,
}

/// The semaphores of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Semaphores {
    /// The number of permits of each semaphore; empty if there are none.
    pub(crate) permits: Vec<u32>,
    /// How often a round of a thread is about semaphores, in a thousand.
    pub(crate) permille: u64,
    /// Some calls want several permits at once.
    pub(crate) several: bool,
    pub(crate) priorities: bool,
    pub(crate) resizes: bool,
    pub(crate) tear_downs: bool,
}

impl Semaphores {
    /// Six in ten seeds have mutexes and lists only, and one in ten has everything.
    fn of(rng: &mut Rng) -> Semaphores {
        let kind = rng.within(0..10);
        if ![1, 3, 5, 7].contains(&kind) {
            return Semaphores::default();
        }
        Semaphores {
            permits: (0..rng.within(1..3)).map(|_| rng.within(1..6) as u32).collect(),
            permille: if kind == 7 { 500 } else { 1000 },
            several: rng.permille(600),
            priorities: rng.permille(500),
            resizes: rng.permille(250),
            tear_downs: rng.permille(400),
        }
    }
}

impl Scenario {
    pub(crate) fn of(seed: u64) -> Scenario {
        let mut rng = Rng::new(seed);
        // One run in four is fault-free, one has all faults, the others have one or two kinds.
        let kind = rng.within(0..4);
        let fault_free = kind == 0;
        let mut has = |permille: u64| match kind {
            0 => false,
            1 => true,
            _ => rng.permille(permille),
        };
        let (kills, pauses, forks, cancels) = (has(200), has(250), has(100), has(150));
        let (cuts, stalls, restarts, losses) = (has(150), has(150), has(150), has(150));
        let (drop_wakes, lossy, lossy_wakes, slow) = (has(150), has(250), has(200), has(250));
        let hosts = rng.within(1..4) as usize;
        let processes: Vec<(usize, usize)> = (0..rng.within(2..6))
            .map(|_| {
                (
                    rng.within(0..hosts as u64) as usize,
                    if rng.permille(700) { 1 } else { rng.within(2..4) as usize },
                )
            })
            .collect();
        let count = processes.len() as u64;
        let length = 8 * SECOND;
        let mut faults = Vec::new();
        let mut add = |wanted: bool, most: u64, rng: &mut Rng, make: &dyn Fn(&mut Rng) -> Fault| {
            if wanted {
                for _ in 0..rng.within(1..most + 1) {
                    let time = SECOND + rng.spread(MILLI, length);
                    faults.push((time, make(rng)));
                }
            }
        };
        let who = |rng: &mut Rng| rng.within(0..count) as usize;
        add(kills, 3, &mut rng, &|rng| Fault::Kill(who(rng)));
        add(pauses, 4, &mut rng, &|rng| Fault::Pause(who(rng), rng.spread(MILLI, 8 * SECOND)));
        add(forks, 2, &mut rng, &|rng| Fault::Fork(who(rng)));
        add(cancels, 3, &mut rng, &|rng| Fault::CancelWaits(who(rng)));
        add(cuts, 2, &mut rng, &|rng| {
            Fault::CutOff(rng.within(0..3) as usize, rng.spread(MILLI, 4 * SECOND))
        });
        add(stalls, 4, &mut rng, &|rng| {
            Fault::Stall(if rng.permille(700) {
                rng.within(900 * MILLI..3 * SECOND)
            } else {
                rng.spread(MILLI, 5 * SECOND)
            })
        });
        add(restarts, 2, &mut rng, &|rng| Fault::Restart(rng.spread(1200 * MILLI, 4 * SECOND)));
        add(losses, 3, &mut rng, &|rng| {
            if rng.permille(200) { Fault::Flush } else { Fault::Evict(rng.bits()) }
        });
        add(drop_wakes, 2, &mut rng, &|rng| Fault::DropWakes(rng.spread(100 * MILLI, 10 * SECOND)));
        let mut scenario = Scenario {
            hosts,
            host_seed: rng.bits(),
            server_ahead: rng.within(0..1000 * SECOND),
            tick: SECOND + rng.spread(MICRO, 10 * MILLI),
            first_tick: if rng.permille(500) {
                SECOND - rng.spread(MICRO, 50 * MILLI)
            } else {
                rng.within(0..SECOND)
            },
            in_step: rng.permille(250),
            notify_off: rng.permille(80),
            some_off: false,
            rush: None,
            near: false,
            firewalls: vec![Firewall::Open; hosts],
            mutexes: rng.within(1..3),
            rounds: rng.within(2..7),
            lists: rng.permille(350),
            tear_downs: rng.permille(400),
            slow_permille: if slow { rng.within(5..60) } else { 0 },
            lossy_permille: match lossy {
                true if rng.permille(200) => rng.within(80..500),
                true => rng.within(5..80),
                false => 0,
            },
            lossy_wakes_permille: if lossy_wakes { rng.within(20..300) } else { 0 },
            faults,
            fault_free,
            processes,
            // Last, so that seeds without semaphores are the same as before there were any.
            semaphores: Semaphores::of(&mut rng),
            renewed_permille: 0,
            stops_permille: 0,
            unordered: false,
            guard: None,
        };
        scenario.renew(&mut rng);
        scenario.unordered = rng.permille(300);
        scenario.build_firewalls(&mut rng);
        scenario.add_threads(&mut rng);
        scenario.add_processes(&mut rng);
        scenario.add_guard(&mut rng);
        scenario
    }

    /// In a fourth of the seeds with faults clients agree on a guard. In most of them the server is
    /// restarted more often, and loses nothing by other means; in the others it is never restarted.
    fn add_guard(&mut self, rng: &mut Rng) {
        if self.fault_free || !rng.permille(250) {
            return;
        }
        let guard = rng.pick(&[2 * SECOND, 3 * SECOND, 5 * SECOND, 12 * SECOND]);
        self.guard = Some(guard);
        if rng.permille(200) {
            self.faults.retain(|(_, fault)| !matches!(fault, Fault::Restart(_)));
            return;
        }
        self.faults.retain(|(_, fault)| !matches!(fault, Fault::Flush | Fault::Evict(_)));
        for _ in 0..rng.within(1..5) {
            let time = SECOND + rng.spread(MILLI, 8 * SECOND + guard);
            self.faults.push((time, Fault::Restart(rng.spread(MILLI, 3 * SECOND))));
        }
        self.rounds += 3;
        // What a holder has lost by them without knowing, it may put back.
        (self.semaphores.resizes, self.semaphores.tear_downs) = (false, false);
    }

    pub(crate) fn guard(&self) -> Option<Guard> {
        self.guard.and_then(|guard| Guard::new(Duration::from_nanos(guard)).ok())
    }

    /// For how long a server gives no new grants after a restart, at most.
    pub(crate) fn recovery(&self) -> Nanos {
        self.guard.map_or(0, |guard| guard + guard / 300 + 4 * SECOND)
    }

    /// In one of five seeds firewalls drop wake-up messages: all of them, between hosts, one way,
    /// or at one host.
    fn build_firewalls(&mut self, rng: &mut Rng) {
        if !rng.permille(200) {
            return;
        }
        let one = rng.within(0..self.hosts as u64) as usize;
        match rng.within(0..5) {
            0 => self.firewalls.fill(Firewall::All),
            1 => self.firewalls.fill(Firewall::Others),
            2 => self.firewalls[one] = Firewall::Others,
            3 => self.firewalls[one] = Firewall::All,
            _ => self.some_off = true,
        }
        self.some_off |= rng.permille(200);
        if self.fault_free && rng.permille(300) {
            let hold = rng.pick(&[MILLI, 20 * MILLI, 500 * MILLI]);
            self.rush(hold, rng);
        }
    }

    fn rush(&mut self, hold: Nanos, rng: &mut Rng) {
        self.rush = Some(hold);
        (self.mutexes, self.rounds, self.lists, self.renewed_permille) =
            (1, rng.within(20..60), false, 0);
        self.semaphores = Semaphores::default();
        self.processes.iter_mut().for_each(|(_, threads)| *threads = 1);
    }

    /// In some fault-free seeds many processes want one mutex for a short time each: a waiter that
    /// is woken may be faster than the processes that write the queue.
    fn add_processes(&mut self, rng: &mut Rng) {
        if !self.fault_free || self.has_unreachable() || self.rush.is_some() || !rng.permille(60) {
            return;
        }
        let more = rng.within(4..20);
        self.processes.extend((0..more).map(|_| (rng.within(0..self.hosts as u64) as usize, 1)));
        (self.near, self.unordered) = (rng.permille(800), rng.permille(800));
        let hold = rng.pick(&[0, 0, 50 * MICRO, MILLI]);
        self.rush(hold, rng);
    }

    /// Whether some processes do not get all wake-up messages that are sent to them.
    pub(crate) fn has_unreachable(&self) -> bool {
        self.notify_off
            || self.some_off
            || self.firewalls.iter().any(|wall| *wall != Firewall::Open)
    }

    /// In four of ten seeds with semaphores, processes have many threads, which write for each
    /// other, and often there are permits for most of them.
    fn add_threads(&mut self, rng: &mut Rng) {
        let Semaphores { permits, .. } = &mut self.semaphores;
        if permits.is_empty() || !rng.permille(400) {
            return;
        }
        let plenty = rng.permille(500);
        for permits in permits.iter_mut().filter(|_| plenty) {
            *permits += rng.within(3..20) as u32;
        }
        for (_, threads) in &mut self.processes {
            *threads = rng.within(2..8) as usize;
        }
    }

    /// In four of ten seeds locks are renewed. Renewed locks are held for long, so there are faults
    /// later in the run, too.
    fn renew(&mut self, rng: &mut Rng) {
        if !rng.permille(400) {
            return;
        }
        self.renewed_permille = rng.pick(&[200, 600, 1000]);
        if self.fault_free {
            return;
        }
        if rng.permille(300) {
            self.slow_permille = rng.within(50..300);
        }
        for _ in 0..rng.within(0..4) {
            let time = rng.within(SECOND..25 * SECOND);
            let who = rng.within(0..self.processes.len() as u64) as usize;
            let host = rng.within(0..self.hosts as u64) as usize;
            let cut = Fault::CutOff(host, rng.spread(SECOND, 8 * SECOND));
            let fault = match rng.within(0..7) {
                0..=1 => Fault::Pause(who, rng.spread(SECOND, 15 * SECOND)),
                2 => cut,
                3 => {
                    let length = rng.within(900 * MILLI..6 * SECOND);
                    // The requests that the server executes when it continues are then its last for
                    // a while.
                    if rng.permille(500) {
                        self.faults.push((time + length + 20 * MILLI, cut));
                    }
                    Fault::Stall(length)
                }
                4 => Fault::Restart(rng.spread(1200 * MILLI, 4 * SECOND)),
                5 => Fault::Fork(who),
                _ => Fault::Evict(rng.bits()),
            };
            self.faults.push((time, fault));
        }
        if rng.permille(400) {
            self.stops_permille = rng.within(20..250);
        }
    }

    /// Clocks start at any time, and run fast or slow by up to one in 10,000.
    pub(crate) fn hosts(&self) -> Vec<Host> {
        let mut rng = Rng::new(self.host_seed);
        let farthest = if self.near { 30 * MICRO } else { 400 * MICRO };
        (0..self.hosts)
            .map(|_| Host {
                ahead: rng.within(0..100_000 * SECOND),
                fast: rng.within(0..200) as i64 - 100,
                cut_off_until: 0,
                latency: rng.spread(20 * MICRO, farthest),
            })
            .collect()
    }
}
