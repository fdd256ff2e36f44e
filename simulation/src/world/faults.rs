//! Faults: what goes wrong in the world, and for how long.

use super::event::{Event, Todo};
use super::process::Process;
use super::state::World;
use crate::scenario::Fault;
use crate::server::Cause;
use crate::time::{MICRO, MILLI, Nanos, SECOND};

impl World {
    pub(super) fn fault(&mut self, number: usize) -> Todo {
        let (_, fault) = self.scenario.faults[number];
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
            Fault::Stall(length) => {
                // A clock that stands still makes the server seem younger.
                self.oracle.recovers_until += length;
                self.stalled_until = until(self, length);
                self.note_fault(self.stalled_until);
                // The server's clock continues a moment after its threads do.
                self.clock_back = self.stalled_until + self.rng.within(0..2 * MILLI);
                self.at(self.clock_back, Event::Back);
            }
            Fault::Restart(length) => {
                // The new server's clock runs at once.
                (self.stalled_until, self.clock_back) = (0, 0);
                self.down_until = until(self, length);
                let recovered = self.down_until + self.scenario.recovery();
                self.note_fault(recovered);
                let is_guarded = self.scenario.guard.is_some();
                self.server.restart(self.down_until, is_guarded);
                self.oracle.recovers_until = self.oracle.recovers_until.max(recovered);
                self.oracle.restarted(is_guarded);
                self.at(self.down_until, Event::Back);
            }
            Fault::Flush => {
                self.note_fault(self.now);
                self.server.flush(Cause::Loss);
            }
            Fault::Evict(which) => {
                self.note_fault(self.now);
                let keys: Vec<String> = self.server.keys().map(str::to_owned).collect();
                if !keys.is_empty() {
                    let key = keys[which as usize % keys.len()].clone();
                    self.trace(|_| format!("the server evicts {key}"));
                    self.server.lose(&key);
                }
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

    /// Until when the process could not run or not reach the server.
    pub(crate) fn held_up(&self, process: usize) -> Nanos {
        let Process { host, paused_until, .. } = self.processes[process];
        let server = self.down_until.max(self.stalled_until);
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
