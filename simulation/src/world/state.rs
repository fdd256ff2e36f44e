//! The state of the world, its time and its tasks.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use memlock_core::notify::{ReachRecord, WakeMessage};
use memlock_core::wait_id::WaitId;

use super::event::Event;
use super::link::Link;
use super::partitions::Partitions;
use super::process::{Body, ListenerState, Process, Task};
use super::request::Request;
use super::trace::Trace;
use crate::oracle::Oracle;
use crate::rng::Rng;
use crate::scenario::{Host, Scenario, SiteClock};
use crate::server::Server;
use crate::site::Site;
use crate::time::{MICRO, MILLI, Nanos, SECOND};

pub(crate) struct World {
    pub(crate) now: Nanos,
    pub(super) events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    pub(crate) sequence: u64,
    pub(crate) rng: Rng,
    pub(crate) scenario: Scenario,
    pub(crate) sites: Vec<Site>,
    /// Wake-up messages are dropped until then.
    pub(crate) wakes_dropped_until: Nanos,
    pub(crate) hosts: Vec<Host>,
    pub(crate) partitions: Partitions,
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
        let hosts = scenario.hosts();
        let is_guarded = scenario.guard.is_some();
        let site = |clock: &SiteClock| Site::new(Server::new(SECOND, *clock, is_guarded));
        let sites: Vec<Site> = scenario.sites.iter().map(site).collect();
        let mut world = World {
            now: SECOND,
            events: BinaryHeap::new(),
            sequence: 0,
            rng,
            sites,
            wakes_dropped_until: 0,
            hosts,
            partitions: Partitions::default(),
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
        // A server's clock shows whole seconds of its own time.
        for site in 0..world.sites.len() {
            let clock = world.sites[site].server.clock();
            let second = world.now + SECOND - clock.at(world.now) % SECOND;
            world.at(second + clock.first_tick, Event::Tick(site));
        }
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
            links: vec![Link::default(); self.sites.len()],
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
