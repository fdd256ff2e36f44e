//! What a simulated process sees of the world: its store, its clock and its notifier.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use memlock_core::clock::{Clock, Moment};
use memlock_core::mutation::{self, Mutation};
use memlock_core::notify::{Listener, Notifier, Reach, WakeAddress, WakeMessage};
use memlock_core::store::memcached::{GUARANTEES, Life};
use memlock_core::store::{
    Admitted, Epoch, Failure, Guarantees, Node, Op, Pending, Recovery, Replies, Reply, Request,
    Returns, Route, Store,
};
use memlock_core::wait_id::WaitId;
use memlock_core::{Error, ErrorKind};

use crate::server::Command;
use crate::time::{MICRO, MILLI, Nanos};
use crate::world::network::{self, ExchangeError};
use crate::world::{self, Event, ListenerState, World, with};

/// The item that stamps are drawn from.
const STAMP: &str = "%stamp";

/// The current process: the one in which the client was made, or a child that inherited it.
fn current_process(made_in: usize) -> usize {
    with(|world| world.current.map_or(made_in, |task| world.tasks[task].process))
}

#[derive(Debug)]
pub(crate) struct SimStore {
    pub(crate) process: usize,
}

impl SimStore {
    fn run_now(&self, ops: &[Op<'_>]) -> Replies {
        let process = current_process(self.process);
        let task = with(|world| world.current).unwrap_or(usize::MAX);
        let is_record = |op: &Op<'_>| match op {
            Op::Add { key, returns: Returns::Nothing, .. }
            | Op::CompareAndSet { key, returns: Returns::Nothing, .. }
            | Op::Get { key, .. } => key.as_str().starts_with("semaphore:"),
            _ => false,
        };
        let permits = ops.iter().any(is_record);
        with(|world| {
            if let Some(awaiting_renewal) =
                world.oracle.renewers.asks(task, process, permits, world.now)
            {
                world.wake(awaiting_renewal);
            }
            if world.oracle.renewers.has(task) {
                world.renewer_sends(process);
            }
        });
        let begun = with(|world| world.now);
        let ran = self.exchange(process, ops);
        with(|world| {
            world.oracle.renewers.asked(task, world.now, ran.is_err());
            world.oracle.has_asked(process, begun, world.now);
            let keys = ops.iter().filter_map(|op| {
                if let Op::Get { key, .. } = op { Some(key.as_str()) } else { None }
            });
            if ran.is_ok() {
                keys.for_each(|key| world.oracle.semaphores.has_read(task, key, begun, world.now));
            }
        });
        ran.map_err(failure)
    }

    fn exchange(&self, process: usize, ops: &[Op<'_>]) -> Result<Vec<Reply>, ExchangeError> {
        // If the connection is found to be closed, nothing was sent. If it closes later, the
        // operations may have been sent.
        let life = network::connect(process).inspect_err(|error| {
            if *error == ExchangeError::Lost {
                // It broke while the operations may have been on their way.
                with(|world| {
                    ops.iter().for_each(|op| world.is_in_doubt(process, &Command::of(op)))
                });
            }
        })?;
        let recovers = !self.recovery_in(process, life.epoch()).is_zero();
        let admitted = Admitted::of(ops, life.epoch(), recovers);
        let replies = match admitted.ops() {
            [] => Vec::new(),
            ops => self.exchange_all(process, life, ops)?,
        };
        Ok(admitted.complete(replies))
    }

    /// For how long the server gives no new grants yet in this life, as far as the process knows.
    fn recovery_in(&self, process: usize, life: Epoch) -> Duration {
        with(|world| {
            let Some(guard) = world.scenario.guard() else { return Duration::ZERO };
            world.processes[process].observed.recovers_for(guard, life, world.moment(process))
        })
    }

    fn exchange_all(
        &self,
        process: usize,
        life: Life,
        ops: &[Op<'_>],
    ) -> Result<Vec<Reply>, ExchangeError> {
        let unordered = with(|world| world.scenario.unordered);
        let unsent = |op: &Op<'_>| match op {
            op if op.is_of(life.epoch()) || mutation::has(Mutation::VersionsOutliveTheServer) => {
                None
            }
            _ => Some(Reply::VersionMismatch),
        };
        let sent = ops.iter().filter(|op| unsent(op).is_none());
        let mut commands: VecDeque<Command> = sent.map(Command::of).collect();
        let stamped = unordered && ops.iter().any(Op::wants_fence);
        if stamped {
            commands.push_back(Command::Stamp { key: STAMP.to_owned() });
        }
        let mut replies = if commands.is_empty() {
            Vec::new().into_iter()
        } else {
            network::exchange(process, commands)?.into_iter()
        };
        let last = if stamped { replies.next_back() } else { None };
        let stamp = match last {
            Some(Reply::Stored(stamp)) => Some(stamp.version.number()),
            _ => None,
        };
        let mut replies: Vec<Reply> =
            ops.iter().filter_map(|op| unsent(op).or_else(|| replies.next())).collect();
        life.fill_in_fences(ops, &mut replies, stamp);
        Ok(replies)
    }
}

fn failure(error: ExchangeError) -> Failure {
    match error {
        ExchangeError::Unreachable => Failure {
            error: Error::new(ErrorKind::Unreachable, "It cannot be connected to."),
            sent: false,
        },
        ExchangeError::Lost => {
            Failure { error: Error::new(ErrorKind::Unknown, "No answer came."), sent: true }
        }
    }
}

impl Store for SimStore {
    fn send<'a>(&'a self, request: Request<'a>) -> Pending<'a> {
        Pending::sent(move || self.run_now(request.ops))
    }

    fn nodes(&self) -> Vec<Node> {
        let title = "the simulated server".to_owned();
        vec![Node {
            name: title.clone(),
            title,
            is_container: false,
            timeout: Duration::from_secs(1),
        }]
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees { guard: with(|world| world.scenario.guard()), ..GUARANTEES }
    }

    fn recovery(&self, _route: Route) -> Option<Recovery> {
        let process = current_process(self.process);
        with(|world| {
            let guard = world.scenario.guard()?;
            world.processes[process].observed.recovery(guard, world.moment(process))
        })
    }

    fn recovers_for(&self, _route: Route, life: Epoch) -> Duration {
        self.recovery_in(current_process(self.process), life)
    }

    /// An estimate: a client that seldom reads the server's clock does not know it to the second.
    fn time(&self, _route: Route) -> Option<Duration> {
        Some(Duration::from_secs(with(|world| world.server.time() + 2)))
    }

    fn local_address(&self, _route: Route) -> Option<IpAddr> {
        Some(address_of(current_process(self.process), 0).ip())
    }
}

#[derive(Debug)]
pub(crate) struct SimClock {
    pub(crate) process: usize,
}

impl Clock for SimClock {
    fn now(&self) -> Moment {
        let process = current_process(self.process);
        with(|world| world.moment(process))
    }

    fn unix_seconds(&self) -> u64 {
        with(|world| 1_700_000_000 + world.now / 1_000_000_000)
    }

    fn sleep(&self, duration: Duration) {
        world::sleep_until(until(current_process(self.process), duration));
    }

    fn random(&self, bytes: &mut [u8]) -> std::io::Result<()> {
        with(|world| bytes.fill_with(|| world.rng.bits() as u8));
        Ok(())
    }
}

/// The world's time at which that duration has passed on the process's clock.
pub(crate) fn until(process: usize, duration: Duration) -> Nanos {
    with(|world| {
        let host = world.processes[process].host;
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4);
        world.world_time(host, world.local(host) + nanos)
    })
}

#[derive(Debug)]
pub(crate) struct SimNotifier {
    pub(crate) process: usize,
    /// As with `listener=off`.
    pub(crate) off: bool,
}

struct SimListener {
    process: usize,
    number: usize,
    off: bool,
}

fn address_of(process: usize, listener: usize) -> SocketAddr {
    let [high, low] = (process as u16).to_be_bytes();
    SocketAddr::from((Ipv4Addr::new(10, 1, high, low), 1 + listener as u16))
}

impl Notifier for SimNotifier {
    fn take(&self) -> Arc<dyn Listener> {
        let process = current_process(self.process);
        let number = with(|world| {
            let free = world
                .listeners
                .iter()
                .position(|listener| !listener.taken && listener.process == process);
            let number = free.unwrap_or_else(|| {
                world.listeners.push(ListenerState { process, ..ListenerState::default() });
                world.listeners.len() - 1
            });
            world.listeners[number].taken = true;
            number
        });
        Arc::new(SimListener { process, number, off: self.off })
    }

    fn send(&self, address: WakeAddress, id: WaitId, message: WakeMessage) -> bool {
        let process = current_process(self.process);
        with(|world| {
            let address = address.socket();
            let listener = usize::from(address.port()) - 1;
            let Some(receiver) = world
                .listeners
                .get(listener)
                .filter(|receiver| address == address_of(receiver.process, listener))
            else {
                return true;
            };
            let (from, to) =
                (world.processes[process].host, world.processes[receiver.process].host);
            world.trace(|_| format!("wakes listener {listener} for {id}"));
            if from == to && !world.processes[world.listeners[listener].process].alive {
                return false;
            }
            let lost = world.scenario.lossy_wakes_permille;
            let cut = |host: usize| world.hosts[host].cut_off_until > world.now;
            let is_filtered = world.scenario.firewalls[to].drops(from, to);
            let blocked = is_filtered
                || world.wakes_dropped_until > world.now
                || from != to && (cut(from) || cut(to));
            if blocked || world.rng.permille(lost) {
                return true;
            }
            world.wake_messages.push((id, message));
            let event = Event::WakeMessage { listener, number: world.wake_messages.len() - 1 };
            for _ in 0..if world.rng.permille(lost) { 2 } else { 1 } {
                let late = if world.rng.permille(lost) {
                    world.rng.spread(MILLI, 3000 * MILLI)
                } else {
                    0
                };
                let arrival = world.now + world.rng.spread(5 * MICRO, 200 * MICRO) + late;
                world.at(arrival, event);
            }
            true
        })
    }

    fn reach(&self) -> Reach {
        let process = current_process(self.process);
        with(|world| world.processes[process].reach.reach())
    }

    fn missed(&self) {
        let process = current_process(self.process);
        with(|world| world.processes[process].reach.missed());
    }

    fn may_have_missed(&self) {
        let process = current_process(self.process);
        with(|world| {
            if world.processes[process].reach.may_have_missed() {
                world.processes[process].reach.missed();
            }
        });
    }

    fn interrupt_all(&self) {
        let process = current_process(self.process);
        with(|world| {
            for listener in 0..world.listeners.len() {
                if world.listeners[listener].process == process && world.listeners[listener].taken {
                    interrupt(world, listener);
                }
            }
        });
    }
}

fn interrupt(world: &mut World, listener: usize) {
    world.listeners[listener].interrupted = true;
    world.wake_sleeper(listener);
}

impl Listener for SimListener {
    fn address(&self, _near: Option<IpAddr>, test: WaitId) -> Option<WakeAddress> {
        if self.off {
            return None;
        }
        with(|world| {
            let listener = &mut world.listeners[self.number];
            if !std::mem::replace(&mut listener.opened, true) {
                listener.test = Some(test);
                let host = world.processes[self.process].host;
                if world.wakes_dropped_until <= world.now
                    && !world.scenario.firewalls[host].drops(host, host)
                {
                    world.listeners[self.number].inbox.push_back((test, WakeMessage::default()));
                }
            }
        });
        WakeAddress::udp(address_of(self.process, self.number))
    }

    fn sleep(&self, duration: Duration) {
        let end = until(self.process, duration);
        let ready = with(|world| {
            let ListenerState { interrupted, inbox, .. } = &world.listeners[self.number];
            let ready = *interrupted || !inbox.is_empty();
            world.sleeps_on(self.number, !ready);
            ready
        });
        if !ready {
            world::sleep_until(end);
            with(|world| world.sleeps_on(self.number, false));
        }
        with(|world| world.listeners[self.number].interrupted = false);
    }

    fn heard(&self, live: &[WaitId]) -> Option<WakeMessage> {
        with(|world| {
            let listener = &mut world.listeners[self.number];
            while let Some((id, message)) = listener.inbox.pop_front() {
                let reach = &world.processes[self.process].reach;
                if listener.test == Some(id) {
                    reach.heard_itself();
                }
                if live.contains(&id) {
                    reach.heard();
                    return Some(message);
                }
            }
            None
        })
    }

    fn interrupt(&self) {
        with(|world| interrupt(world, self.number));
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        with(|world| {
            if let Some(listener) = world.listeners.get_mut(self.number) {
                listener.taken = false;
            }
        });
    }
}
