//! The state of the world, its time and its tasks.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use memlock_core::clock::Moment;
use memlock_core::notify::{ReachRecord, WakeMessage};
use memlock_core::store::recovery::Observed;
use memlock_core::wait_id::WaitId;

use super::event::Event;
use super::process::{Body, ListenerState, Process, Task};
use super::request::Request;
use super::trace::Trace;
use crate::oracle::Oracle;
use crate::rng::Rng;
use crate::scenario::{Host, Scenario};
use crate::server::Server;
use crate::time::{MICRO, MILLI, Nanos, SECOND};

pub(crate) struct World {
    pub(crate) now: Nanos,
    pub(super) events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    pub(crate) sequence: u64,
    pub(crate) rng: Rng,
    pub(crate) scenario: Scenario,
    pub(crate) server: Server,
    /// The server is unreachable until then, because it restarts.
    pub(crate) down_until: Nanos,
    pub(crate) stalled_until: Nanos,
    /// From then on the server's clock is right again.
    pub(crate) clock_back: Nanos,
    /// Wake-up messages are dropped until then.
    pub(crate) wakes_dropped_until: Nanos,
    pub(crate) hosts: Vec<Host>,
    pub(crate) processes: Vec<Process>,
    pub(crate) tasks: Vec<Task>,
    pub(crate) listeners: Vec<ListenerState>,
    /// All wake-up messages of the run, by number.
    pub(crate) wake_messages: Vec<(WaitId, WakeMessage)>,
    /// Threads that memlock wants to start, with their process.
    pub(crate) starting: Vec<(usize, Body)>,
    /// The tasks that wait for each signal, by its address.
    pub(crate) sleepers: BTreeMap<usize, Vec<usize>>,
    /// Tasks that memlock has marked.
    pub(crate) marked: BTreeSet<usize>,
    pub(crate) requests: BTreeMap<u64, Request>,
    pub(crate) current: Option<usize>,
    pub(crate) oracle: Oracle,
    pub(crate) trace: Trace,
    /// The server's items or its clock have changed.
    pub(crate) moved: bool,
    /// When the last fault that may delay waiters ends.
    pub(crate) last_fault: Nanos,
}

impl World {
    pub(crate) fn new(scenario: Scenario, rng: Rng, recorded: bool) -> World {
        let Scenario { server_ahead, tick, .. } = scenario;
        let hosts = scenario.hosts();
        let mut world = World {
            now: SECOND,
            events: BinaryHeap::new(),
            sequence: 0,
            rng,
            server: Server::new(SECOND, server_ahead, tick, scenario.guard.is_some()),
            down_until: 0,
            stalled_until: 0,
            clock_back: 0,
            wakes_dropped_until: 0,
            hosts,
            processes: Vec::new(),
            tasks: Vec::new(),
            listeners: Vec::new(),
            wake_messages: Vec::new(),
            starting: Vec::new(),
            sleepers: BTreeMap::new(),
            marked: BTreeSet::new(),
            requests: BTreeMap::new(),
            current: None,
            oracle: Oracle::new(&scenario),
            trace: Trace { is_recorded: recorded, ..Trace::default() },
            moved: false,
            last_fault: 0,
            scenario,
        };
        // The server's clock shows whole seconds of its own time.
        let second = world.now + SECOND - (world.now + world.scenario.server_ahead) % SECOND;
        let first_tick = second + world.scenario.first_tick;
        world.at(first_tick, Event::Tick);
        for number in 0..world.scenario.faults.len() {
            let time = world.scenario.faults[number].0;
            world.at(time, Event::Fault(number));
        }
        world
    }

    pub(crate) fn at(&mut self, time: Nanos, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((time, self.sequence, event)));
    }

    /// Adds a line to the trace.
    pub(crate) fn trace(&mut self, what: impl FnOnce(&World) -> String) {
        if self.trace.is_recorded {
            let who = match self.current {
                Some(task) => format!("p{}.t{task}", self.tasks[task].process),
                None => "-".to_owned(),
            };
            let line = format!("{:12.6}  {who:8} {}", self.now as f64 / 1e9, what(self));
            self.trace.lines.push(line);
        }
    }

    pub(crate) fn new_process(&mut self, host: usize, generation: u64) -> usize {
        self.processes.push(Process {
            host,
            alive: true,
            generation,
            paused_until: 0,
            connection: None,
            observed: Observed::default(),
            reach: ReachRecord::default(),
        });
        self.processes.len() - 1
    }

    pub(crate) fn new_task(&mut self, process: usize) -> usize {
        self.tasks.push(Task { process, epoch: 0, done: false });
        let task = self.tasks.len() - 1;
        let begin = self.now + self.rng.spread(MICRO, 20 * MILLI);
        self.resume_at(task, begin);
        task
    }

    pub(crate) fn resume_at(&mut self, task: usize, time: Nanos) {
        self.tasks[task].epoch += 1;
        let epoch = self.tasks[task].epoch;
        self.at(time.max(self.now), Event::Resume { task, epoch });
    }

    /// Wakes a sleeping task, after a short random delay.
    pub(crate) fn wake(&mut self, task: usize) {
        let time = self.now + self.rng.within(MICRO..60 * MICRO);
        self.resume_at(task, time);
    }

    pub(crate) fn wake_sleeper(&mut self, listener: usize) {
        if let Some(task) = self.listeners[listener].sleeper {
            self.wake(task);
        }
    }

    pub(crate) fn sleeps_on(&mut self, listener: usize, sleeps: bool) {
        self.listeners[listener].sleeper = self.current.filter(|_| sleeps);
    }

    /// What the clock of a process shows.
    pub(crate) fn moment(&self, process: usize) -> Moment {
        Moment::from_boot(Duration::from_nanos(self.local(self.processes[process].host)))
    }

    /// The clock of a host at the current time of the world.
    pub(crate) fn local(&self, host: usize) -> Nanos {
        let Host { ahead, fast, .. } = self.hosts[host];
        let drift = (self.now as i128 * i128::from(fast) / 1_000_000) as i64;
        (self.now + ahead).saturating_add_signed(drift)
    }

    /// The world's time at which a host's clock shows `local`.
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
}
