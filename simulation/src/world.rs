//! The world: one simulated time, in which tasks run one at a time and everything else is an event.
//!
//! A task is a thread of a simulated process: real memlock code on a stack of its own, which gives
//! up the processor only where it would wait for the network, a bell or the clock. So a run is
//! decided by its seed alone.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use corosensei::Yielder;
use memlock_core::notify::{ReachRecord, WakeMessage};
use memlock_core::store::Incarnation;
use memlock_core::wait::entries::WaitId;

use crate::chance::Chance;
use crate::oracle::Oracle;
use crate::scenario::{Host, Mishap, Scenario};
use crate::server::Server;
use crate::time::{MICRO, MILLI, Nanos, SECOND};
use network::Request;

pub(crate) mod network;

/// What a thread does.
pub(crate) type Body = Box<dyn FnOnce() + Send>;

pub(crate) struct World {
    pub(crate) now: Nanos,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    pub(crate) sequence: u64,
    pub(crate) chance: Chance,
    pub(crate) scenario: Scenario,
    pub(crate) server: Server,
    /// Nobody can reach it until then; and then it begins another life, if it was killed.
    pub(crate) down_until: Nanos,
    pub(crate) stalled_until: Nanos,
    /// From then on its clock is right again.
    pub(crate) clock_back: Nanos,
    /// Rings get lost until then.
    pub(crate) deaf_until: Nanos,
    pub(crate) hosts: Vec<Host>,
    pub(crate) processes: Vec<Process>,
    pub(crate) tasks: Vec<Task>,
    pub(crate) listeners: Vec<ListenerState>,
    /// All that ever rang, by their numbers.
    pub(crate) rings: Vec<(WaitId, WakeMessage)>,
    /// Threads that memlock wants to have started, and of which process.
    pub(crate) starting: Vec<(usize, Body)>,
    /// Which tasks sleep on what, by its name.
    pub(crate) sleepers: BTreeMap<usize, Vec<usize>>,
    /// Which tasks memlock has marked.
    pub(crate) marked: BTreeSet<usize>,
    pub(crate) requests: BTreeMap<u64, Request>,
    pub(crate) current: Option<usize>,
    pub(crate) oracle: Oracle,
    pub(crate) story: Story,
    /// The server's items or its clock are not what they were.
    pub(crate) moved: bool,
    /// When the last thing that may hold waiters up is over.
    pub(crate) troubled: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    Resume { task: usize, epoch: u64 },
    Arrive(u64),
    Answer(u64),
    WakeMessage { listener: usize, number: usize },
    Tick,
    Back,
    Mishap(usize),
}

/// What the scheduler is to do with the stacks, which are not the world's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Todo {
    Nothing,
    Resume(usize),
    Kill(usize),
    Fork(usize),
    CancelWaits(usize),
    End,
}

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) host: usize,
    pub(crate) alive: bool,
    pub(crate) generation: u64,
    pub(crate) paused_until: Nanos,
    /// To which life of the server it is connected.
    pub(crate) connection: Option<Incarnation>,
    pub(crate) reach: ReachRecord,
}

#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) process: usize,
    epoch: u64,
    pub(crate) done: bool,
}

#[derive(Debug, Default)]
pub(crate) struct ListenerState {
    pub(crate) process: usize,
    pub(crate) taken: bool,
    pub(crate) opened: bool,
    pub(crate) inbox: VecDeque<(WaitId, WakeMessage)>,
    pub(crate) interrupted: bool,
    pub(crate) test: Option<WaitId>,
    pub(crate) sleeper: Option<usize>,
}

/// What happened, for people to read.
#[derive(Debug, Default)]
pub(crate) struct Story {
    pub(crate) told: bool,
    pub(crate) lines: Vec<String>,
    /// Of all that happened: equal for equal runs.
    pub(crate) digest: u64,
    pub(crate) events: u64,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
    static YIELDER: Cell<*const Yielder<(), ()>> = const { Cell::new(std::ptr::null()) };
}

/// The world of this thread. Nothing in `body` may wait.
pub(crate) fn with<T>(body: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with_borrow_mut(|world| match world {
        Some(world) => body(world),
        None => unreachable!("a run is going on wherever the world is asked for"),
    })
}

pub(crate) fn begin(world: World) {
    WORLD.set(Some(world));
}

pub(crate) fn end() -> Option<World> {
    WORLD.take()
}

/// Says by which way the task that runs now gives up the processor.
pub(crate) fn enter_task(yielder: &Yielder<(), ()>) {
    YIELDER.set(yielder);
}

pub(crate) fn leave_task() {
    YIELDER.set(std::ptr::null());
}

/// Lets others run until the current task is resumed. False where there is no task: a process that
/// is being killed.
fn suspend() -> bool {
    let yielder = YIELDER.get();
    if yielder.is_null() || with(|world| world.current.take()).is_none() {
        return false;
    }
    YIELDER.set(std::ptr::null());
    // SAFETY: it belongs to the task that runs here, whose stack it lives on, and which is resumed
    // only by its own.
    unsafe { (*yielder).suspend(()) };
    YIELDER.set(yielder);
    true
}

/// Sleeps until that time, or until somebody wakes this task.
pub(crate) fn sleep_until(time: Nanos) -> bool {
    with(|world| {
        if let Some(task) = world.current {
            world.resume_at(task, time);
        }
    });
    suspend()
}

impl World {
    pub(crate) fn new(scenario: Scenario, chance: Chance, told: bool) -> World {
        let Scenario { server_ahead, tick, .. } = scenario;
        let hosts = scenario.hosts();
        let mut world = World {
            now: SECOND,
            events: BinaryHeap::new(),
            sequence: 0,
            chance,
            server: Server::new(SECOND, server_ahead, tick),
            down_until: 0,
            stalled_until: 0,
            clock_back: 0,
            deaf_until: 0,
            hosts,
            processes: Vec::new(),
            tasks: Vec::new(),
            listeners: Vec::new(),
            rings: Vec::new(),
            starting: Vec::new(),
            sleepers: BTreeMap::new(),
            marked: BTreeSet::new(),
            requests: BTreeMap::new(),
            current: None,
            oracle: Oracle::new(&scenario),
            story: Story { told, ..Story::default() },
            moved: false,
            troubled: 0,
            scenario,
        };
        // Its clock shows whole seconds of its own time.
        let second = world.now + SECOND - (world.now + world.scenario.server_ahead) % SECOND;
        let first_tick = second + world.scenario.first_tick;
        world.at(first_tick, Event::Tick);
        for number in 0..world.scenario.mishaps.len() {
            let time = world.scenario.mishaps[number].0;
            world.at(time, Event::Mishap(number));
        }
        world
    }

    pub(crate) fn at(&mut self, time: Nanos, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((time, self.sequence, event)));
    }

    /// Writes a line of the story.
    pub(crate) fn say(&mut self, what: impl FnOnce(&World) -> String) {
        if self.story.told {
            let who = match self.current {
                Some(task) => format!("p{}.t{task}", self.tasks[task].process),
                None => "-".to_owned(),
            };
            let line = format!("{:12.6}  {who:8} {}", self.now as f64 / 1e9, what(self));
            self.story.lines.push(line);
        }
    }

    pub(crate) fn new_process(&mut self, host: usize, generation: u64) -> usize {
        self.processes.push(Process {
            host,
            alive: true,
            generation,
            paused_until: 0,
            connection: None,
            reach: ReachRecord::default(),
        });
        self.processes.len() - 1
    }

    pub(crate) fn new_task(&mut self, process: usize) -> usize {
        self.tasks.push(Task { process, epoch: 0, done: false });
        let task = self.tasks.len() - 1;
        let begin = self.now + self.chance.spread(MICRO, 20 * MILLI);
        self.resume_at(task, begin);
        task
    }

    pub(crate) fn resume_at(&mut self, task: usize, time: Nanos) {
        self.tasks[task].epoch += 1;
        let epoch = self.tasks[task].epoch;
        self.at(time.max(self.now), Event::Resume { task, epoch });
    }

    /// Wakes a task that sleeps, after the moment that this takes.
    pub(crate) fn wake(&mut self, task: usize) {
        let time = self.now + self.chance.within(MICRO..60 * MICRO);
        self.resume_at(task, time);
    }

    /// The clock of a host, at this time of the world's.
    pub(crate) fn local(&self, host: usize) -> Nanos {
        let Host { ahead, fast, .. } = self.hosts[host];
        let drift = (self.now as i128 * i128::from(fast) / 1_000_000) as i64;
        (self.now + ahead).saturating_add_signed(drift)
    }

    /// The time of the world's at which a host's clock shows this.
    pub(crate) fn world_time(&self, host: usize, local: Nanos) -> Nanos {
        let now = self.local(host);
        let scale = |nanos: Nanos| {
            (u128::from(nanos) * 1_000_000
                / (1_000_000 + i128::from(self.hosts[host].fast)) as u128) as Nanos
        };
        if local > now {
            self.now.saturating_add(scale(local - now)).saturating_add(2)
        } else {
            self.now.saturating_sub(scale(now - local))
        }
    }

    /// Takes the next event, and does what is the world's part of it.
    pub(crate) fn step(&mut self) -> Todo {
        let Some(Reverse((time, _, event))) = self.events.pop() else { return Todo::End };
        self.now = time;
        self.story.events += 1;
        let todo = self.happen(event);
        self.moved |=
            matches!(event, Event::Arrive(_) | Event::Tick | Event::Back | Event::Mishap(_));
        for change in self.server.changes() {
            let by = self.oracle.changing;
            self.oracle.changed(&change, time, by, &self.server);
        }
        self.oracle.changing = None;
        if matches!(event, Event::Tick | Event::Back) {
            self.oracle.look_at_semaphores(time, self.server.time());
        }
        if matches!(event, Event::Mishap(_)) {
            self.oracle.renewers.trouble(self.troubled);
        }
        if event == Event::Tick {
            self.check_waiters();
            self.oracle.check_stands(time);
            let stopped = |process: usize| self.processes[process].paused_until;
            self.oracle.check_kept(time, stopped);
        }
        todo
    }

    fn happen(&mut self, event: Event) -> Todo {
        match event {
            Event::Resume { task, epoch } => {
                let Task { process, epoch: current, done } = self.tasks[task];
                let Process { alive, paused_until, .. } = self.processes[process];
                if epoch != current || done || !alive {
                    return Todo::Nothing;
                }
                if paused_until > self.now {
                    self.at(paused_until, event);
                    return Todo::Nothing;
                }
                self.digest(task as u64);
                return Todo::Resume(task);
            }
            Event::Arrive(number) => self.arrive(number),
            Event::Answer(number) => self.answer(number),
            Event::WakeMessage { listener, number } => {
                let (id, message) = self.rings[number];
                if self.processes[self.listeners[listener].process].alive {
                    self.say(|_| format!("bell {listener} rings for {id}"));
                    self.listeners[listener].inbox.push_back((id, message));
                    self.wake_sleeper(listener);
                }
            }
            Event::Tick => {
                if self.stalled_until <= self.now && self.down_until <= self.now {
                    self.server.tick(self.now);
                }
                let late = self.chance.within(0..self.server.tick - SECOND + 1);
                self.at(self.now + SECOND + late, Event::Tick);
            }
            Event::Back => {
                if self.stalled_until <= self.now && self.down_until <= self.now {
                    self.server.tick(self.now);
                }
            }
            Event::Mishap(number) => return self.mishap(number),
        }
        Todo::Nothing
    }

    fn digest(&mut self, what: u64) {
        let mixed = (self.story.digest ^ what ^ self.now).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.story.digest = mixed ^ (mixed >> 29);
    }

    fn mishap(&mut self, number: usize) -> Todo {
        let (_, mishap) = self.scenario.mishaps[number];
        self.say(|_| format!("*** {mishap:?}"));
        let until = |world: &World, length: Nanos| world.now + length;
        match mishap {
            Mishap::Kill(process) if process < self.processes.len() => {
                self.trouble(self.now);
                self.processes[process].alive = false;
                self.oracle.killed(process, self.now);
                return Todo::Kill(process);
            }
            Mishap::Fork(process) if process < self.processes.len() => return Todo::Fork(process),
            Mishap::CancelWaits(process) if process < self.processes.len() => {
                return Todo::CancelWaits(process);
            }
            Mishap::Kill(_) | Mishap::Fork(_) | Mishap::CancelWaits(_) => {}
            Mishap::Pause(process, length) => {
                let end = until(self, length);
                if let Some(paused) = self.processes.get_mut(process) {
                    // It may be stopped for longer already.
                    paused.paused_until = paused.paused_until.max(end);
                    self.trouble(end);
                }
            }
            Mishap::CutOff(host, length) => {
                let end = until(self, length);
                if let Some(host) = self.hosts.get_mut(host) {
                    host.cut_off_until = end;
                    self.trouble(end);
                }
            }
            Mishap::Stall(length) => {
                self.stalled_until = until(self, length);
                self.trouble(self.stalled_until);
                // Its clock comes back a moment after its hands do.
                self.clock_back = self.stalled_until + self.chance.within(0..2 * MILLI);
                self.at(self.clock_back, Event::Back);
            }
            Mishap::Restart(length) => {
                // The new server's clock runs at once.
                (self.stalled_until, self.clock_back) = (0, 0);
                self.down_until = until(self, length);
                self.trouble(self.down_until);
                self.server.restart(self.down_until);
                self.oracle.restarted();
                self.at(self.down_until, Event::Back);
            }
            Mishap::Flush => {
                self.trouble(self.now);
                self.server.flush();
            }
            Mishap::Evict(which) => {
                self.trouble(self.now);
                let keys: Vec<String> = self.server.keys().map(str::to_owned).collect();
                if !keys.is_empty() {
                    let key = keys[which as usize % keys.len()].clone();
                    self.say(|_| format!("the server evicts {key}"));
                    self.server.lose(&key);
                }
            }
            Mishap::Deafen(length) => {
                self.deaf_until = until(self, length);
                self.trouble(self.deaf_until);
            }
        }
        Todo::Nothing
    }

    /// A trouble lasts until its end, whatever shorter one begins meanwhile: a process that is
    /// stopped for 15 s cannot end its wait sooner because the server evicts an item.
    fn trouble(&mut self, until: Nanos) {
        self.troubled = self.troubled.max(until);
    }

    /// Until when that process could not run, or not reach the server, at the latest.
    pub(crate) fn held_up(&self, process: usize) -> Nanos {
        let Process { host, paused_until, .. } = self.processes[process];
        let server = self.down_until.max(self.stalled_until);
        paused_until.max(self.hosts[host].cut_off_until).max(server)
    }

    /// The renewer of that process sends a request: now and then the process is stopped meanwhile.
    pub(crate) fn keeper_asks(&mut self, process: usize) {
        let often = self.scenario.stops_permille;
        if often > 0 && self.chance.permille(often) {
            let length = self.chance.spread(100 * MILLI, 6 * SECOND);
            self.scenario.mishaps.push((self.now, Mishap::Pause(process, length)));
            let time = self.now + self.chance.spread(MICRO, MILLI);
            self.at(time, Event::Mishap(self.scenario.mishaps.len() - 1));
        }
    }

    // --- bells -----------------------------------------------------------------------------------

    pub(crate) fn wake_sleeper(&mut self, listener: usize) {
        if let Some(task) = self.listeners[listener].sleeper {
            self.wake(task);
        }
    }

    pub(crate) fn sleeps_on(&mut self, listener: usize, sleeps: bool) {
        self.listeners[listener].sleeper = self.current.filter(|_| sleeps);
    }

    // --- checks ----------------------------------------------------------------------------------

    fn check_waiters(&mut self) {
        let eligible = |world: &World, task: usize| {
            let Process { alive, paused_until, host, .. } =
                world.processes[world.tasks[task].process];
            alive && paused_until <= world.now && world.hosts[host].cut_off_until <= world.now
        };
        let up = self.down_until.max(self.stalled_until) <= self.now;
        let waiting: Vec<usize> =
            self.oracle.waiting().filter(|&task| up && eligible(self, task)).collect();
        let since = self.troubled;
        for task in waiting {
            self.oracle.check_waiter(task, self.now, since, &self.server);
        }
        let waiting: Vec<usize> =
            self.oracle.semaphores.waiting().filter(|&task| up && eligible(self, task)).collect();
        for task in waiting {
            self.oracle.check_permit_waiter(task, self.now, since);
        }
    }
}
