//! Faults: what goes wrong in the world, and for how long.

use super::event::{Event, Todo};
use super::process::Process;
use super::state::World;
use crate::scenario::Mishap;
use crate::time::{MICRO, MILLI, Nanos, SECOND};

impl World {
    pub(super) fn mishap(&mut self, number: usize) -> Todo {
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
    pub(super) fn trouble(&mut self, until: Nanos) {
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
}
