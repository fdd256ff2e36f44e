//! What a simulated process sees of the world: its store, its clock and its notifier.

mod process;
mod store;
mod watched;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use memlock_core::clock::{Clock, Moment};
use memlock_core::notify::{Listener, Notifier, Reach, WakeAddress, WakeMessage};
use memlock_core::wait_id::WaitId;

use crate::time::{MICRO, MILLI, Nanos};
use crate::world::{self, Event, ListenerState, World, with};

use process::{address_of, current_process};
pub(crate) use store::SimStore;
pub(crate) use watched::Watched;

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
        world::sleep_all_until(until(current_process(self.process), duration));
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

impl Notifier for SimNotifier {
    fn take(&self, _near: Option<IpAddr>) -> Arc<dyn Listener> {
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
    fn address(&self, test: WaitId) -> Option<WakeAddress> {
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

    fn receive(&self, is_live: &dyn Fn(WaitId) -> bool) -> Option<(WaitId, WakeMessage)> {
        with(|world| {
            let listener = &mut world.listeners[self.number];
            while let Some((id, message)) = listener.inbox.pop_front() {
                let reach = &world.processes[self.process].reach;
                if listener.test == Some(id) {
                    reach.heard_itself();
                }
                if is_live(id) {
                    reach.heard();
                    return Some((id, message));
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
