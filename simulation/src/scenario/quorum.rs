//! Seeds with a quorum: several servers, each with its own clock, faults and network. There are
//! mutexes only, and always a guard.

use super::site::QUORUM as SALT;
use super::{Direction, Fault, Scenario, Semaphores, SiteClock};
use crate::rng::Rng;
use crate::time::{MILLI, Nanos, SECOND};

/// How many requests are lost at most, in a thousand.
const MOST_LOST: u64 = 120;

/// Which of the servers fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Severity {
    /// A minority, each at any time.
    Minority,
    /// Any of them, one after the other, the next one when the last one gives new grants again.
    Rolling,
    /// Any of them, at any time.
    Any,
    /// All of them are restarted at once, and some fail at any time.
    AllAtOnce,
}

impl Scenario {
    pub(super) fn use_quorum(&mut self, seed: u64) {
        let mut rng = Rng::new(seed ^ SALT).fork();
        let count = if rng.permille(700) { 3 } else { 5 };
        let guard = rng.pick(&[4 * SECOND, 5 * SECOND, 12 * SECOND]);
        self.guard = Some(guard);
        let apart = guard / 4;
        let ahead = rng.within(0..1000 * SECOND);
        self.sites = (0..count)
            .map(|_| SiteClock {
                ahead: ahead + if rng.permille(300) { 0 } else { rng.within(0..apart) },
                fast: rng.within(0..200) as i64 - 100,
                ..SiteClock::of(&mut rng)
            })
            .collect();
        if !self.fault_free && rng.permille(80) {
            self.misdated = true;
            let wrong = rng.within(0..count) as usize;
            self.sites[wrong].ahead += guard + 4 * SECOND + rng.spread(SECOND, 20 * guard);
        }
        self.semaphores = Semaphores::default();
        (self.lists, self.tear_downs) = (false, false);
        for (_, fault) in &mut self.faults {
            if let Fault::Evict(which) = *fault
                && rng.permille(500)
            {
                *fault = Fault::TakeAway(which);
            }
        }
        self.faults.retain(|(_, fault)| {
            !matches!(fault, Fault::Flush | Fault::Evict(_) | Fault::Stall(..) | Fault::Restart(..))
        });
        // Of the servers that an acquisition needs in all of its rounds, each request may be lost.
        self.lossy_permille = self.lossy_permille.min(MOST_LOST);
        if let Some(rounds) = self.rush.map(|_| rng.within(5..20)) {
            self.rounds = rounds;
        }
        if !self.fault_free {
            self.rounds += 3;
            self.add_site_faults(guard, &mut rng);
            self.add_partitions(guard, &mut rng);
            self.add_operators(&mut rng);
        }
        // A holder would put back what was taken away from it before a restart.
        if self.faults.iter().any(|(_, fault)| matches!(fault, Fault::Restart(..))) {
            self.faults.retain(|(_, fault)| !matches!(fault, Fault::TakeAway(_)));
        }
    }

    /// The number of servers that are a majority of all.
    pub(crate) fn majority(&self) -> usize {
        self.sites.len() / 2 + 1
    }

    pub(crate) fn has_quorum(&self) -> bool {
        self.sites.len() > 1
    }

    fn add_site_faults(&mut self, guard: Nanos, rng: &mut Rng) {
        let severity = match rng.within(0..10) {
            // Only the network fails, and clients do.
            0 => return,
            1..=4 => Severity::Minority,
            5..=6 => Severity::Rolling,
            7..=8 => Severity::Any,
            _ => Severity::AllAtOnce,
        };
        let count = self.sites.len() as u64;
        let first = rng.within(0..count);
        let some = match severity {
            Severity::Minority => count / 2,
            _ => count,
        };
        let mut time = SECOND;
        for number in 0..rng.within(1..7) {
            let of_some = match severity {
                Severity::Rolling => number,
                _ => rng.within(0..some),
            };
            let site = ((first + of_some) % count) as usize;
            let fault = if rng.permille(700) {
                Fault::Restart(site, rng.spread(MILLI, 3 * SECOND))
            } else {
                Fault::Stall(site, rng.spread(10 * MILLI, 5 * SECOND))
            };
            time = match severity {
                Severity::Rolling => {
                    time + guard + guard / 100 + rng.spread(4 * SECOND, 8 * SECOND)
                }
                _ => SECOND + rng.spread(MILLI, 8 * SECOND + 2 * guard),
            };
            self.faults.push((time, fault));
        }
        if severity == Severity::AllAtOnce {
            let time = SECOND + rng.spread(MILLI, 8 * SECOND);
            for site in 0..count as usize {
                let late = if rng.permille(500) { 0 } else { rng.spread(MILLI, SECOND) };
                let length = rng.spread(MILLI, 2 * SECOND);
                self.faults.push((time + late, Fault::Restart(site, length)));
            }
        }
    }

    /// In half of the seeds a host does not reach a server for a while, or a server does not reach a
    /// host.
    fn add_partitions(&mut self, guard: Nanos, rng: &mut Rng) {
        if !rng.permille(500) {
            return;
        }
        let most = if rng.permille(700) { 3 } else { 12 };
        for _ in 0..rng.within(1..most) {
            let time = SECOND + rng.spread(MILLI, 8 * SECOND + guard);
            let host = rng.within(0..self.hosts as u64) as usize;
            let site = rng.within(0..self.sites.len() as u64) as usize;
            let direction = rng.pick(&[Direction::Out, Direction::Back, Direction::Both]);
            let length = rng.spread(10 * MILLI, 6 * SECOND);
            self.faults.push((time, Fault::Partition { host, site, direction, length }));
        }
    }

    /// In some of the seeds operators take locks away again and again, while requests are lost: a
    /// holder may extend its lock when another one has already released it.
    fn add_operators(&mut self, rng: &mut Rng) {
        if !rng.permille(250) {
            return;
        }
        self.faults.retain(|(_, fault)| !matches!(fault, Fault::Restart(..)));
        (self.mutexes, self.renewed_permille) = (1, 0);
        self.lossy_permille = self.lossy_permille.max(rng.within(20..MOST_LOST));
        for _ in 0..rng.within(2..12) {
            let time = SECOND + rng.spread(10 * MILLI, 12 * SECOND);
            self.faults.push((time, Fault::TakeAway(rng.bits())));
        }
    }
}
