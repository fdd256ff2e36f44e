//! What a simulated process sees of the world: its store, its clock and its bells.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use memlock_core::clock::{Clock, Moment};
use memlock_core::flaw::{self, Flaw};
use memlock_core::store::{Failure, Op, Reply, Route, Store};
use memlock_core::wait::bell::{Bell, Bells, Reach, Ring};
use memlock_core::wait::entries::WaitId;
use memlock_core::{Error, ErrorKind};

use crate::network::{self, Broken};
use crate::server::Command;
use crate::world::{self, BellState, Event, MICRO, MILLI, Nanos, World, with};

/// The process that runs now: the one that a client was made in, or a child that inherited it.
fn me(made_in: usize) -> usize {
    with(|world| world.current.map_or(made_in, |task| world.tasks[task].process))
}

#[derive(Debug)]
pub(crate) struct SimStore {
    pub(crate) process: usize,
}

impl SimStore {
    fn converse(&self, process: usize, ops: &[Op<'_>]) -> Result<Vec<Reply>, Broken> {
        // A connection that is found closed has sent nothing; only one that closes later may have.
        let life = network::connect(process)?;
        let unordered = with(|world| world.scenario.unordered);
        let unsent = |op: &Op<'_>| match op {
            Op::Stamp { .. } if !unordered => Some(Reply::Needless),
            op if op.is_of(life) || flaw::has(Flaw::VersionsOutliveTheServer) => None,
            _ => Some(Reply::Changed),
        };
        let sent = ops.iter().filter(|op| unsent(op).is_none());
        let commands: VecDeque<Command> = sent.map(Command::of).collect();
        let mut replies = if commands.is_empty() {
            Vec::new().into_iter()
        } else {
            network::exchange(process, commands)?.into_iter()
        };
        Ok(ops.iter().filter_map(|op| unsent(op).or_else(|| replies.next())).collect())
    }
}

impl Store for SimStore {
    fn run(&self, _route: Route, ops: &[Op<'_>]) -> Result<Vec<Reply>, Failure> {
        let failed = |broken| match broken {
            Broken::Unreachable => Failure {
                error: Error::new(ErrorKind::Unreachable, "It cannot be connected to."),
                sent: false,
            },
            Broken::Lost => {
                Failure { error: Error::new(ErrorKind::Unknown, "No answer came."), sent: true }
            }
        };
        let process = me(self.process);
        let task = with(|world| world.current).unwrap_or(usize::MAX);
        let is_record = |op: &Op<'_>| match op {
            Op::Put { key, .. } | Op::Get { key } => key.as_str().starts_with("semaphore:"),
            _ => false,
        };
        let permits = ops.iter().any(is_record);
        with(|world| {
            if let Some(lurking) = world.judge.keepers.asks(task, process, permits, world.now) {
                world.wake(lurking);
            }
            if world.judge.keepers.has(task) {
                world.keeper_asks(process);
            }
        });
        let begun = with(|world| world.now);
        let ran = self.converse(process, ops);
        with(|world| {
            world.judge.keepers.asked(task, world.now, ran.is_err());
            world.judge.has_asked(process, begun, world.now);
            let keys = ops
                .iter()
                .filter_map(|op| if let Op::Get { key } = op { Some(key.as_str()) } else { None });
            if ran.is_ok() {
                keys.for_each(|key| world.judge.semaphores.looked(task, key, begun, world.now));
            }
        });
        ran.map_err(failed)
    }

    /// As far as it can be told: a clock that is seldom asked for its time is not known to the
    /// second.
    fn time(&self, _route: Route) -> Option<u64> {
        Some(with(|world| world.server.time() + 2))
    }

    fn local_address(&self, _route: Route) -> Option<IpAddr> {
        Some(address_of(me(self.process), 0).ip())
    }
}

#[derive(Debug)]
pub(crate) struct SimClock {
    pub(crate) process: usize,
}

impl Clock for SimClock {
    fn now(&self) -> Moment {
        let process = me(self.process);
        with(|world| {
            Moment::from_boot(Duration::from_nanos(world.local(world.processes[process].host)))
        })
    }

    fn unix_seconds(&self) -> u64 {
        with(|world| 1_700_000_000 + world.now / 1_000_000_000)
    }

    fn sleep(&self, duration: Duration) {
        world::sleep_until(until(me(self.process), duration));
    }

    fn random(&self, bytes: &mut [u8]) -> std::io::Result<()> {
        with(|world| bytes.fill_with(|| world.chance.bits() as u8));
        Ok(())
    }
}

/// When that much has passed on the process's own clock.
pub(crate) fn until(process: usize, duration: Duration) -> Nanos {
    with(|world| {
        let host = world.processes[process].host;
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4);
        world.world_time(host, world.local(host) + nanos)
    })
}

#[derive(Debug)]
pub(crate) struct SimBells {
    pub(crate) process: usize,
    /// As with `bell=off`.
    pub(crate) off: bool,
}

struct SimBell {
    process: usize,
    number: usize,
    off: bool,
}

fn address_of(process: usize, bell: usize) -> SocketAddr {
    let [high, low] = (process as u16).to_be_bytes();
    SocketAddr::from((Ipv4Addr::new(10, 1, high, low), 1 + bell as u16))
}

impl Bells for SimBells {
    fn take(&self, _near: Option<IpAddr>) -> Arc<dyn Bell> {
        let process = me(self.process);
        let number = with(|world| {
            let free = world.bells.iter().position(|bell| !bell.taken && bell.process == process);
            let number = free.unwrap_or_else(|| {
                world.bells.push(BellState { process, ..BellState::default() });
                world.bells.len() - 1
            });
            world.bells[number].taken = true;
            number
        });
        Arc::new(SimBell { process, number, off: self.off })
    }

    fn ring(&self, address: SocketAddr, id: WaitId, ring: Ring) -> bool {
        let process = me(self.process);
        with(|world| {
            let bell = usize::from(address.port()) - 1;
            let Some(rung) =
                world.bells.get(bell).filter(|rung| address == address_of(rung.process, bell))
            else {
                return true;
            };
            let (from, to) = (world.processes[process].host, world.processes[rung.process].host);
            world.say(|_| format!("rings bell {bell} for {id}"));
            if from == to && !world.processes[world.bells[bell].process].alive {
                return false;
            }
            let lost = world.scenario.lossy_bells_permille;
            let cut = |host: usize| world.hosts[host].cut_off_until > world.now;
            let walled = world.scenario.walls[to].drops(from, to);
            let blocked =
                walled || world.deaf_until > world.now || from != to && (cut(from) || cut(to));
            if blocked || world.chance.permille(lost) {
                return true;
            }
            world.rings.push((id, ring));
            let event = Event::Ring { bell, number: world.rings.len() - 1 };
            for _ in 0..if world.chance.permille(lost) { 2 } else { 1 } {
                let late = if world.chance.permille(lost) {
                    world.chance.spread(MILLI, 3000 * MILLI)
                } else {
                    0
                };
                let arrival = world.now + world.chance.spread(5 * MICRO, 200 * MICRO) + late;
                world.at(arrival, event);
            }
            true
        })
    }

    fn reach(&self) -> Reach {
        let process = me(self.process);
        with(|world| world.processes[process].reach.reach())
    }

    fn missed(&self) {
        let process = me(self.process);
        with(|world| world.processes[process].reach.missed());
    }

    fn may_have_missed(&self) {
        let process = me(self.process);
        with(|world| {
            if world.processes[process].reach.may_have_missed() {
                world.processes[process].reach.missed();
            }
        });
    }

    fn nudge_all(&self) {
        let process = me(self.process);
        with(|world| {
            for bell in 0..world.bells.len() {
                if world.bells[bell].process == process && world.bells[bell].taken {
                    nudge(world, bell);
                }
            }
        });
    }
}

fn nudge(world: &mut World, bell: usize) {
    world.bells[bell].nudged = true;
    world.wake_sleeper(bell);
}

impl Bell for SimBell {
    fn address(&self, test: WaitId) -> Option<SocketAddr> {
        if self.off {
            return None;
        }
        with(|world| {
            let bell = &mut world.bells[self.number];
            if !std::mem::replace(&mut bell.opened, true) {
                bell.test = Some(test);
                let host = world.processes[self.process].host;
                if world.deaf_until <= world.now && !world.scenario.walls[host].drops(host, host) {
                    world.bells[self.number].inbox.push_back((test, Ring::default()));
                }
            }
        });
        Some(address_of(self.process, self.number))
    }

    fn sleep(&self, duration: Duration) {
        let end = until(self.process, duration);
        let ready = with(|world| {
            let BellState { nudged, inbox, .. } = &world.bells[self.number];
            let ready = *nudged || !inbox.is_empty();
            world.sleeps_on(self.number, !ready);
            ready
        });
        if !ready {
            world::sleep_until(end);
            with(|world| world.sleeps_on(self.number, false));
        }
        with(|world| world.bells[self.number].nudged = false);
    }

    fn heard(&self, live: &[WaitId]) -> Option<Ring> {
        with(|world| {
            let bell = &mut world.bells[self.number];
            while let Some((id, ring)) = bell.inbox.pop_front() {
                let reach = &world.processes[self.process].reach;
                if bell.test == Some(id) {
                    reach.heard_itself();
                }
                if live.contains(&id) {
                    reach.heard();
                    return Some(ring);
                }
            }
            None
        })
    }

    fn nudge(&self) {
        with(|world| nudge(world, self.number));
    }
}

impl Drop for SimBell {
    fn drop(&mut self) {
        with(|world| {
            if let Some(bell) = world.bells.get_mut(self.number) {
                bell.taken = false;
            }
        });
    }
}
