//! Probes: a process asks a silent server whether it answers again, and does not wait for that.

use std::time::Duration;

use memlock_core::clock::Moment;

use super::link::Probe;
use super::network::SILENCE;
use super::state::World;
use crate::site::Site;

/// For how long a server that accepts no connection is not asked again, and for how long a reply is
/// expected.
const PAUSE: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(10);

impl World {
    /// Asks a silent server, or looks for its reply. It is silent until that is there. `anew`: if it
    /// was asked longer ago than this, it is asked anew.
    pub(crate) fn probe(&mut self, process: usize, site: usize, anew: Option<Duration>) {
        let now = self.moment(process);
        if !self.processes[process].links[site].is_silent(now) {
            return;
        }
        let probe = match self.processes[process].links[site].probe {
            Some(probe) if anew.is_none_or(|age| now.since(probe.began) <= age) => probe,
            _ => self.begin_probe(process, site, now),
        };
        let waited = now.since(probe.began);
        let link = &mut self.processes[process].links[site];
        (link.silent_until, link.probe) = match probe.answered {
            Some(answered) if answered <= self.now => (None, None),
            Some(_) if waited < PATIENCE => (Some(now + SILENCE), Some(probe)),
            None if waited < PAUSE => (Some(now + SILENCE), Some(probe)),
            _ => (Some(now + SILENCE), None),
        };
    }

    fn begin_probe(&mut self, process: usize, site: usize, began: Moment) -> Probe {
        let host = self.processes[process].host;
        let Site { down_until, stalled_until, .. } = self.sites[site];
        let cut_until = self.cut_off_until(host, site).max(self.partitions.replies(host, site));
        let lossy = self.scenario.lossy_permille;
        let is_lost = down_until.max(cut_until) > self.now || self.rng.permille(lossy);
        let back = self.now.max(stalled_until) + 2 * self.latency(host);
        Probe { began, answered: (!is_lost).then_some(back) }
    }
}
