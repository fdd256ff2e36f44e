//! What a seed makes of a run: who takes part, what they do, and what goes wrong.

use crate::chance::Chance;
use crate::time::{MICRO, MILLI, Nanos, SECOND};

#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) ahead: Nanos,
    /// Parts in a million by which its clock runs fast.
    pub(crate) fast: i64,
    pub(crate) cut_off_until: Nanos,
    pub(crate) latency: Nanos,
}

/// Which wake-up messages the firewall of a host drops as they come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wall {
    /// None.
    Open,
    /// Those of other hosts.
    Others,
    /// All of them, those that a process sends to itself included.
    All,
}

impl Wall {
    pub(crate) fn drops(self, from: usize, to: usize) -> bool {
        match self {
            Wall::Open => false,
            Wall::Others => from != to,
            Wall::All => true,
        }
    }
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mishap {
    /// SIGKILL.
    Kill(usize),
    /// SIGSTOP, and SIGCONT so much later.
    Pause(usize, Nanos),
    /// A child is made, which inherits everything, and uses it.
    Fork(usize),
    /// All waits of a client are cancelled.
    CancelWaits(usize),
    /// A host's network.
    CutOff(usize, Nanos),
    /// The server is stopped and goes on later.
    Stall(Nanos),
    /// The server dies, and another life begins so much later.
    Restart(Nanos),
    Flush,
    Evict(u64),
    /// No ring arrives.
    Deafen(Nanos),
}

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    hosts: usize,
    host_chance: u64,
    pub(crate) server_ahead: Nanos,
    /// From one tick of the server's clock to the next, at most; and when in its seconds the first
    /// one is.
    pub(crate) tick: Nanos,
    pub(crate) first_tick: Nanos,
    /// All that lasts, lasts a multiple of the same time: so things happen at once.
    pub(crate) in_step: bool,
    /// The host of each process, and how many threads it has.
    pub(crate) processes: Vec<(usize, usize)>,
    pub(crate) bells_off: bool,
    /// Every other process asks for no wake-ups, though bells are not off.
    pub(crate) some_off: bool,
    /// All threads want one mutex again at once, for this long each time.
    pub(crate) rush: Option<Nanos>,
    /// All hosts are near to the server: a hold can be shorter than a moment.
    pub(crate) near: bool,
    /// The firewalls of the hosts.
    pub(crate) walls: Vec<Wall>,
    pub(crate) mutexes: u64,
    /// How many turns each thread takes.
    pub(crate) turns: u64,
    /// Threads insert into distinct lists, too.
    pub(crate) lists: bool,
    pub(crate) tear_downs: bool,
    pub(crate) slow_permille: u64,
    pub(crate) lossy_permille: u64,
    pub(crate) lossy_bells_permille: u64,
    pub(crate) mishaps: Vec<(Nanos, Mishap)>,
    /// Nothing goes wrong: then waiters are looked at more closely.
    pub(crate) calm: bool,
    pub(crate) semaphores: Semaphores,
    /// How often something that was granted is kept, in a thousand.
    pub(crate) kept_permille: u64,
    /// How often a process is stopped while its renewer speaks to the server, in a thousand.
    pub(crate) stops_permille: u64,
    /// The server draws a version before it gets at the item, as memcached does from 1.6.24 on.
    pub(crate) unordered: bool,
}

/// What a run has of semaphores.
#[derive(Clone, Debug, Default)]
pub(crate) struct Semaphores {
    /// How many permits each of them has; none, if there are none.
    pub(crate) permits: Vec<u32>,
    /// How often a thread's turn is about them, in a thousand.
    pub(crate) permille: u64,
    /// Some want several permits at once.
    pub(crate) several: bool,
    pub(crate) priorities: bool,
    pub(crate) resizes: bool,
    pub(crate) tear_downs: bool,
}

impl Semaphores {
    /// Six in ten seeds are about mutexes and lists alone, and one about everything.
    fn of(chance: &mut Chance) -> Semaphores {
        let kind = chance.within(0..10);
        if ![1, 3, 5, 7].contains(&kind) {
            return Semaphores::default();
        }
        Semaphores {
            permits: (0..chance.within(1..3)).map(|_| chance.within(1..6) as u32).collect(),
            permille: if kind == 7 { 500 } else { 1000 },
            several: chance.permille(600),
            priorities: chance.permille(500),
            resizes: chance.permille(250),
            tear_downs: chance.permille(400),
        }
    }
}

impl Scenario {
    pub(crate) fn of(seed: u64) -> Scenario {
        let mut chance = Chance::new(seed);
        // One run in four is calm, one has everything, the others have one or two kinds of trouble.
        let kind = chance.within(0..4);
        let calm = kind == 0;
        let mut has = |permille: u64| match kind {
            0 => false,
            1 => true,
            _ => chance.permille(permille),
        };
        let (kills, pauses, forks, cancels) = (has(200), has(250), has(100), has(150));
        let (cuts, stalls, restarts, losses) = (has(150), has(150), has(150), has(150));
        let (deaf, lossy, lossy_bells, slow) = (has(150), has(250), has(200), has(250));
        let hosts = chance.within(1..4) as usize;
        let processes: Vec<(usize, usize)> = (0..chance.within(2..6))
            .map(|_| {
                (
                    chance.within(0..hosts as u64) as usize,
                    if chance.permille(700) { 1 } else { chance.within(2..4) as usize },
                )
            })
            .collect();
        let count = processes.len() as u64;
        let length = 8 * SECOND;
        let mut mishaps = Vec::new();
        let mut add =
            |wanted: bool, most: u64, chance: &mut Chance, make: &dyn Fn(&mut Chance) -> Mishap| {
                if wanted {
                    for _ in 0..chance.within(1..most + 1) {
                        let time = SECOND + chance.spread(MILLI, length);
                        mishaps.push((time, make(chance)));
                    }
                }
            };
        let who = |chance: &mut Chance| chance.within(0..count) as usize;
        add(kills, 3, &mut chance, &|chance| Mishap::Kill(who(chance)));
        add(pauses, 4, &mut chance, &|chance| {
            Mishap::Pause(who(chance), chance.spread(MILLI, 8 * SECOND))
        });
        add(forks, 2, &mut chance, &|chance| Mishap::Fork(who(chance)));
        add(cancels, 3, &mut chance, &|chance| Mishap::CancelWaits(who(chance)));
        add(cuts, 2, &mut chance, &|chance| {
            Mishap::CutOff(chance.within(0..3) as usize, chance.spread(MILLI, 4 * SECOND))
        });
        add(stalls, 4, &mut chance, &|chance| {
            Mishap::Stall(if chance.permille(700) {
                chance.within(900 * MILLI..3 * SECOND)
            } else {
                chance.spread(MILLI, 5 * SECOND)
            })
        });
        add(restarts, 2, &mut chance, &|chance| {
            Mishap::Restart(chance.spread(1200 * MILLI, 4 * SECOND))
        });
        add(losses, 3, &mut chance, &|chance| {
            if chance.permille(200) { Mishap::Flush } else { Mishap::Evict(chance.bits()) }
        });
        add(deaf, 2, &mut chance, &|chance| {
            Mishap::Deafen(chance.spread(100 * MILLI, 10 * SECOND))
        });
        let mut scenario = Scenario {
            hosts,
            host_chance: chance.bits(),
            server_ahead: chance.within(0..1000 * SECOND),
            tick: SECOND + chance.spread(MICRO, 10 * MILLI),
            first_tick: if chance.permille(500) {
                SECOND - chance.spread(MICRO, 50 * MILLI)
            } else {
                chance.within(0..SECOND)
            },
            in_step: chance.permille(250),
            bells_off: chance.permille(80),
            some_off: false,
            rush: None,
            near: false,
            walls: vec![Wall::Open; hosts],
            mutexes: chance.within(1..3),
            turns: chance.within(2..7),
            lists: chance.permille(350),
            tear_downs: chance.permille(400),
            slow_permille: if slow { chance.within(5..60) } else { 0 },
            lossy_permille: match lossy {
                true if chance.permille(200) => chance.within(80..500),
                true => chance.within(5..80),
                false => 0,
            },
            lossy_bells_permille: if lossy_bells { chance.within(20..300) } else { 0 },
            mishaps,
            calm,
            processes,
            // Last, so that what is about mutexes stays as it was before there were any.
            semaphores: Semaphores::of(&mut chance),
            kept_permille: 0,
            stops_permille: 0,
            unordered: false,
        };
        scenario.renew(&mut chance);
        scenario.unordered = chance.permille(300);
        scenario.build_walls(&mut chance);
        scenario.crowd(&mut chance);
        scenario.jostle(&mut chance);
        scenario
    }

    /// In one of five seeds firewalls drop wake-up messages: all of them, between hosts, one way,
    /// or at one host.
    fn build_walls(&mut self, chance: &mut Chance) {
        if !chance.permille(200) {
            return;
        }
        let one = chance.within(0..self.hosts as u64) as usize;
        match chance.within(0..5) {
            0 => self.walls.fill(Wall::All),
            1 => self.walls.fill(Wall::Others),
            2 => self.walls[one] = Wall::Others,
            3 => self.walls[one] = Wall::All,
            _ => self.some_off = true,
        }
        self.some_off |= chance.permille(200);
        if self.calm && chance.permille(300) {
            let hold = chance.pick(&[MILLI, 20 * MILLI, 500 * MILLI]);
            self.rush(hold, chance);
        }
    }

    fn rush(&mut self, hold: Nanos, chance: &mut Chance) {
        self.rush = Some(hold);
        (self.mutexes, self.turns, self.lists, self.kept_permille) =
            (1, chance.within(20..60), false, 0);
        self.semaphores = Semaphores::default();
        self.processes.iter_mut().for_each(|(_, threads)| *threads = 1);
    }

    /// In some calm seeds many processes want one mutex for a moment each: whoever is woken may be
    /// faster than those that write the queue.
    fn jostle(&mut self, chance: &mut Chance) {
        if !self.calm || self.is_deaf() || self.rush.is_some() || !chance.permille(60) {
            return;
        }
        let more = chance.within(4..20);
        self.processes.extend((0..more).map(|_| (chance.within(0..self.hosts as u64) as usize, 1)));
        (self.near, self.unordered) = (chance.permille(800), chance.permille(800));
        let hold = chance.pick(&[0, 0, 50 * MICRO, MILLI]);
        self.rush(hold, chance);
    }

    /// Whether some processes do not hear all that is sent to them.
    pub(crate) fn is_deaf(&self) -> bool {
        self.bells_off || self.some_off || self.walls.iter().any(|wall| *wall != Wall::Open)
    }

    /// In four of ten seeds that have semaphores, processes have many threads, which write for each
    /// other, and often there are permits for most of them.
    fn crowd(&mut self, chance: &mut Chance) {
        let Semaphores { permits, .. } = &mut self.semaphores;
        if permits.is_empty() || !chance.permille(400) {
            return;
        }
        let plenty = chance.permille(500);
        for permits in permits.iter_mut().filter(|_| plenty) {
            *permits += chance.within(3..20) as u32;
        }
        for (_, threads) in &mut self.processes {
            *threads = chance.within(2..8) as usize;
        }
    }

    /// In four of ten seeds something is kept. What is kept lasts, and so does what goes wrong
    /// then.
    fn renew(&mut self, chance: &mut Chance) {
        if !chance.permille(400) {
            return;
        }
        self.kept_permille = chance.pick(&[200, 600, 1000]);
        if self.calm {
            return;
        }
        if chance.permille(300) {
            self.slow_permille = chance.within(50..300);
        }
        for _ in 0..chance.within(0..4) {
            let time = chance.within(SECOND..25 * SECOND);
            let who = chance.within(0..self.processes.len() as u64) as usize;
            let host = chance.within(0..self.hosts as u64) as usize;
            let cut = Mishap::CutOff(host, chance.spread(SECOND, 8 * SECOND));
            let mishap = match chance.within(0..7) {
                0..=1 => Mishap::Pause(who, chance.spread(SECOND, 15 * SECOND)),
                2 => cut,
                3 => {
                    let length = chance.within(900 * MILLI..6 * SECOND);
                    // What the server took in as it came back is then the last that it hears for a
                    // while.
                    if chance.permille(500) {
                        self.mishaps.push((time + length + 20 * MILLI, cut));
                    }
                    Mishap::Stall(length)
                }
                4 => Mishap::Restart(chance.spread(1200 * MILLI, 4 * SECOND)),
                5 => Mishap::Fork(who),
                _ => Mishap::Evict(chance.bits()),
            };
            self.mishaps.push((time, mishap));
        }
        if chance.permille(400) {
            self.stops_permille = chance.within(20..250);
        }
    }

    /// Clocks begin anywhere, and run fast or slow by up to one in 10,000.
    pub(crate) fn hosts(&self) -> Vec<Host> {
        let mut chance = Chance::new(self.host_chance);
        let farthest = if self.near { 30 * MICRO } else { 400 * MICRO };
        (0..self.hosts)
            .map(|_| Host {
                ahead: chance.within(0..100_000 * SECOND),
                fast: chance.within(0..200) as i64 - 100,
                cut_off_until: 0,
                latency: chance.spread(20 * MICRO, farthest),
            })
            .collect()
    }
}
