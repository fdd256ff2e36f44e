//! One step of the world: the next event, and the checks after it.

use std::cmp::Reverse;

use super::event::{Event, Todo};
use super::process::{Process, Task};
use super::state::World;
use crate::time::SECOND;

impl World {
    /// Handles the next event, and returns what is left to the executor.
    pub(crate) fn step(&mut self) -> Todo {
        let Some(Reverse((time, _, event))) = self.events.pop() else { return Todo::End };
        self.now = time;
        self.trace.events += 1;
        let todo = self.happen(event);
        self.moved |=
            matches!(event, Event::Arrive(_) | Event::Tick(_) | Event::Back(_) | Event::Fault(_));
        let by = self.oracle.changing;
        for site in 0..self.sites.len() {
            for change in self.sites[site].server.changes() {
                self.oracle.changed(site, &change, time, by, &self.sites);
            }
        }
        self.oracle.changing = None;
        if matches!(event, Event::Tick(0) | Event::Back(0)) {
            self.oracle.inspect_semaphores(time, self.sites[0].server.time());
        }
        if matches!(event, Event::Fault(_)) {
            self.oracle.renewers.note_fault(self.last_fault);
        }
        if event == Event::Tick(0) {
            self.check_waiters();
            self.oracle.check_positions(time);
            let stopped = |process: usize| self.processes[process].paused_until;
            self.oracle.check_losses_are_told(time, stopped);
        }
        todo
    }

    pub(super) fn happen(&mut self, event: Event) -> Todo {
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
                let (id, message) = self.wake_messages[number];
                if self.processes[self.listeners[listener].process].alive {
                    self.trace(|_| format!("listener {listener} gets a wake-up message for {id}"));
                    self.listeners[listener].inbox.push_back((id, message));
                    self.wake_sleeper(listener);
                }
            }
            Event::Tick(site) => {
                self.tick(site);
                let clock = self.sites[site].server.clock();
                let late = self.rng.within(0..clock.tick - SECOND + 1);
                self.at(self.now + clock.second() + late, Event::Tick(site));
            }
            Event::Back(site) => self.tick(site),
            Event::Fault(number) => return self.fault(number),
        }
        Todo::Nothing
    }

    fn tick(&mut self, site: usize) {
        let site = &mut self.sites[site];
        if site.is_up(self.now) {
            site.server.tick(self.now);
        }
    }

    pub(super) fn digest(&mut self, what: u64) {
        let mixed = (self.trace.digest ^ what ^ self.now).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.trace.digest = mixed ^ (mixed >> 29);
    }

    pub(super) fn check_waiters(&mut self) {
        let eligible = |world: &World, task: usize| {
            let Process { alive, paused_until, host, .. } =
                world.processes[world.tasks[task].process];
            alive && paused_until <= world.now && world.hosts[host].cut_off_until <= world.now
        };
        self.oracle.note_progress(self.now);
        let up = self.sites.len() > 1 || self.sites[0].is_up(self.now);
        let waiting: Vec<usize> =
            self.oracle.waiting().filter(|&task| up && eligible(self, task)).collect();
        let since = self.last_fault;
        for task in waiting {
            self.oracle.check_waiter(task, self.now, since, &self.sites);
        }
        let waiting: Vec<usize> =
            self.oracle.semaphores.waiting().filter(|&task| up && eligible(self, task)).collect();
        for task in waiting {
            self.oracle.check_permit_waiter(task, self.now, since);
        }
    }
}
