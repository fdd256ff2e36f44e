//! Faults: what goes wrong in the world, and for how long.

use super::event::{Event, Todo};
use super::process::Process;
use super::state::World;
use crate::scenario::Fault;
use crate::server::Cause;
use crate::site::Site;
use crate::time::{MICRO, MILLI, Nanos, SECOND};

/// For how long an operator waits for a moment in which only holders have votes.
const PATIENCE: Nanos = 2 * SECOND;

impl World {
    pub(super) fn fault(&mut self, number: usize) -> Todo {
        let (begins, fault) = self.scenario.faults[number];
        self.trace(|_| format!("*** {fault:?}"));
        let until = |world: &World, length: Nanos| world.now + length;
        match fault {
            Fault::Kill(process) if process < self.processes.len() => {
                self.note_fault(self.now);
                self.processes[process].alive = false;
                self.oracle.killed(process, self.now);
                return Todo::Kill(process);
            }
            Fault::Fork(process) if process < self.processes.len() => return Todo::Fork(process),
            Fault::CancelWaits(process) if process < self.processes.len() => {
                return Todo::CancelWaits(process);
            }
            Fault::Kill(_) | Fault::Fork(_) | Fault::CancelWaits(_) => {}
            Fault::Pause(process, length) => {
                let end = until(self, length);
                if let Some(paused) = self.processes.get_mut(process) {
                    // It may be stopped for longer already.
                    paused.paused_until = paused.paused_until.max(end);
                    self.note_fault(end);
                }
            }
            Fault::CutOff(host, length) => {
                let end = until(self, length);
                if let Some(host) = self.hosts.get_mut(host) {
                    host.cut_off_until = end;
                    self.note_fault(end);
                }
            }
            Fault::Partition { host, site, direction, length } => {
                let end = until(self, length);
                self.partitions.begin(host, site, direction, end);
                // What is sent again afterwards may arrive later.
                self.note_fault(end + 2 * SECOND);
            }
            Fault::Stall(site, length) => {
                // A clock that stands still makes it seem younger.
                self.oracle.recovers_until += length;
                let end = until(self, length);
                self.note_fault(end);
                // The server's clock continues a moment after its threads do.
                let back = end + self.rng.within(0..2 * MILLI);
                let stalled = &mut self.sites[site];
                (stalled.stalled_until, stalled.clock_back) = (end, back);
                self.at(back, Event::Back(site));
            }
            Fault::Restart(site, length) => {
                // The new server's clock runs at once.
                let (up, recovery) = (until(self, length), self.scenario.recovery());
                self.note_fault(up + recovery);
                let is_guarded = self.scenario.guard.is_some();
                let restarted = &mut self.sites[site];
                (restarted.stalled_until, restarted.clock_back) = (0, 0);
                restarted.down_until = up;
                restarted.server.restart(up, is_guarded);
                self.oracle.recovers_until = self.oracle.recovers_until.max(up + recovery);
                if !self.scenario.has_quorum() {
                    self.oracle.restarted(is_guarded);
                }
                self.at(up, Event::Back(site));
            }
            Fault::Flush => {
                self.note_fault(self.now);
                self.sites[0].server.flush(Cause::Loss);
            }
            Fault::Evict(which) => {
                self.note_fault(self.now);
                let keys: Vec<String> = self.sites[0].server.keys().map(str::to_owned).collect();
                if !keys.is_empty() {
                    let key = keys[which as usize % keys.len()].clone();
                    self.trace(|_| format!("the server evicts {key}"));
                    self.sites[0].server.lose(&key);
                }
            }
            Fault::TakeAway(which) => {
                self.note_fault(self.now);
                let key = format!("lock:m{}", which % self.scenario.mutexes);
                // Otherwise only some of the votes would be removed, and some that came too late for
                // that would count.
                let is_quiet = self.oracle.is_quietly_held(&key, &self.sites)
                    && !self.requests.values().any(|request| request.may_store(&key));
                if !is_quiet {
                    if self.now < begins + PATIENCE {
                        self.at(self.now + 10 * MILLI, Event::Fault(number));
                    }
                    return Todo::Nothing;
                }
                self.trace(|_| format!("an operator takes {key} away"));
                self.oracle.taken_away(&key, self.now, &self.sites);
                self.sites.iter_mut().for_each(|site| site.server.lose(&key));
            }
            Fault::DropWakes(length) => {
                self.wakes_dropped_until = until(self, length);
                self.note_fault(self.wakes_dropped_until);
            }
        }
        Todo::Nothing
    }

    /// A fault lasts until its end, even if a shorter one begins meanwhile: a process that is
    /// stopped for 15 s cannot end its wait sooner because the server evicts an item.
    pub(super) fn note_fault(&mut self, until: Nanos) {
        self.last_fault = self.last_fault.max(until);
    }

    /// Until when the process could not run, or not reach the server, or most servers.
    pub(crate) fn held_up(&self, process: usize) -> Nanos {
        let Process { host, paused_until, .. } = self.processes[process];
        let reached = |(number, site): (usize, &Site)| {
            let cut_until =
                self.partitions.requests(host, number).max(self.partitions.replies(host, number));
            site.down_until.max(site.stalled_until).max(cut_until)
        };
        let mut reached: Vec<Nanos> = self.sites.iter().enumerate().map(reached).collect();
        reached.sort_unstable();
        let server = reached[self.scenario.majority() - 1];
        paused_until.max(self.hosts[host].cut_off_until).max(server)
    }

    /// The renewer of the process sends a request: sometimes the process is stopped meanwhile.
    pub(crate) fn renewer_sends(&mut self, process: usize) {
        let often = self.scenario.stops_permille;
        if often > 0 && self.rng.permille(often) {
            let length = self.rng.spread(100 * MILLI, 6 * SECOND);
            self.scenario.faults.push((self.now, Fault::Pause(process, length)));
            let time = self.now + self.rng.spread(MICRO, MILLI);
            self.at(time, Event::Fault(self.scenario.faults.len() - 1));
        }
    }
}
