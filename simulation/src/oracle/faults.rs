//! What the oracle drops or excuses after a fault.

use super::state::Oracle;
use crate::time::Nanos;

impl Oracle {
    pub(crate) fn cancelled(&mut self, processes: &[usize]) {
        for call in self.calls.values_mut().filter(|call| processes.contains(&call.process)) {
            call.cancelled = true;
        }
        self.semaphores.cancelled(processes);
    }

    pub(crate) fn killed(&mut self, process: usize, now: Nanos) {
        self.holds.retain(|_, hold| hold.process != process);
        self.calls.retain(|_, call| call.process != process);
        self.lists.killed(process);
        self.semaphores.killed(process, now);
    }

    /// The server was restarted. With a guard its holders may rely on what it has forgotten.
    pub(crate) fn restarted(&mut self, is_guarded: bool) {
        for hold in self.holds.values_mut() {
            (hold.lost, hold.forgotten) = (hold.lost | !is_guarded, is_guarded);
        }
    }
}
