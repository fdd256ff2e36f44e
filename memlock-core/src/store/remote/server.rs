//! One server: its idle connections, and what is known of it.

mod exchange;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::agreement::agree;
use super::dial::unreachable;
use super::hosts::Named;
use super::protocol::{Connection, Protocol, ServerTime};
use super::settings::{Address, Evictions, Place, Settings};
use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};
use crate::fork::ForkLocal;
use crate::store::recovery::{Guard, Observed};
use crate::store::{Epoch, Failure, Op, Recovery, Silence, Survives};

/// How old a connection gets for batches that only read, where the server has a host name. A server
/// that was demoted answers them, but accepts no new connection: so the name is resolved again.
const READS_FOR: Duration = Duration::from_secs(10);

/// How long a server counts as silent after a request that it did not answer. The time must cover
/// the exit of a program that holds many locks, and be short enough that a drop long after a single
/// timeout tries again.
const SILENCE: Duration = Duration::from_secs(10);
/// How long a server counts as crowded after it has refused a connection because it had too many.
const CROWD: Duration = Duration::from_secs(10);

type Life<P> = <<P as Protocol>::Connection as Connection>::Life;

/// One server of the URL.
#[derive(Debug)]
pub(super) struct Server<P: Protocol> {
    address: Address,
    guard: Option<Guard>,
    clock: Arc<dyn Clock>,
    idle: ForkLocal<Mutex<Idle<P::Connection>>>,
}

/// Idle connections. A failure raises the epoch: a connection that was opened before is suspect,
/// and not reused.
#[derive(Debug)]
struct Idle<C: Connection> {
    epoch: u64,
    /// The local address of the last connection.
    local: Option<IpAddr>,
    /// The server's time when the last connection was opened.
    time: Option<C::Time>,
    /// The life of the server in which the last connection was opened.
    life: Option<C::Life>,
    observed: Observed,
    /// Whether the server was unreachable in the last batch.
    is_down: bool,
    /// Whether the last batch was refused, for reasons of its own. If the next one is, too, those may be
    /// reasons of all: a locked table.
    was_refused: bool,
    /// When the last batch timed out, if it did: the server counts as silent for [`SILENCE`].
    silent_since: Option<Moment>,
    /// Set if a connection was refused because the server had too many: it counts as crowded until
    /// then.
    crowded_until: Option<Moment>,
    /// Whether a warning of evictions was logged.
    has_warned: bool,
    /// Whether connections are closed as soon as they are idle.
    keeps_none: bool,
    connections: Vec<Box<C>>,
}

impl<C: Connection> Default for Idle<C> {
    fn default() -> Idle<C> {
        Idle {
            epoch: 0,
            local: None,
            time: None,
            life: None,
            observed: Observed::default(),
            is_down: false,
            was_refused: false,
            silent_since: None,
            crowded_until: None,
            has_warned: false,
            keeps_none: false,
            connections: Vec::new(),
        }
    }
}

/// The server as it was before a dial.
#[derive(Debug)]
struct Before<L> {
    /// The life that was seen last.
    life: Option<L>,
    /// Its address, if the new connection is to another one.
    moved_from: Option<SocketAddr>,
}

impl<P: Protocol> Named for Server<P> {
    fn name(&self) -> &str {
        self.address.name()
    }
}

impl<P: Protocol> Server<P> {
    pub(super) fn new(
        place: Place,
        settings: Settings,
        guard: Option<Guard>,
        clock: Arc<dyn Clock>,
    ) -> Server<P> {
        Server { address: Address::new(place, settings), guard, clock, idle: ForkLocal::new() }
    }

    /// The address of the server.
    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// The local address of the last connection.
    pub(super) fn local_address(&self) -> Option<IpAddr> {
        self.idle().local
    }

    /// Closes all connections; those in use, and later ones, are closed when their batch ends.
    pub(super) fn disconnect(&self) {
        self.idle().keeps_none = true;
        self.distrust();
    }

    /// Whether a connection was refused because the server had too many, less than [`CROWD`] ago.
    pub(super) fn is_crowded(&self) -> bool {
        let crowded_until = self.idle().crowded_until;
        crowded_until.is_some_and(|until| self.clock.now() < until)
    }

    /// See [`Store::rest`](crate::store::Store::rest).
    pub(super) fn rest(&self, kept: usize) {
        let mut idle = self.idle();
        let spare = if idle.connections.len() > kept { idle.connections.pop() } else { None };
        drop(idle);
        drop(spare);
    }

    /// Whether the last batch timed out, less than [`SILENCE`] ago.
    pub(super) fn silence(&self) -> Option<Silence> {
        let silent_since = self.idle().silent_since;
        let since = silent_since.filter(|&since| self.clock.now() < since + SILENCE)?;
        let Settings { io_timeout, .. } = self.address.settings;
        Some(Silence { since, patience: io_timeout + self.address.settings.briefly().io_timeout })
    }

    /// The server's time, by [`ServerTime::at`].
    pub(super) fn time(&self) -> Option<Duration> {
        let time = self.idle().time;
        time.map(|time| time.at(self.clock.now()))
    }

    /// See [`Store::recovery`](crate::store::Store::recovery).
    pub(super) fn recovery(&self) -> Option<Recovery> {
        let observed = self.idle().observed;
        observed.recovery(self.guard?, self.clock.now())
    }

    /// See [`Store::recovers_for`](crate::store::Store::recovers_for).
    pub(super) fn recovers_for(&self, life: Epoch) -> Duration {
        let Some(guard) = self.guard else { return Duration::ZERO };
        let observed = self.idle().observed;
        observed.recovers_for(guard, life, self.clock.now())
    }

    /// Opens a connection. After a failure, the next dial resolves the name of the server again;
    /// and after a server that takes no writes, since batches that only read do not fail there.
    fn dial(&self, protocol: &P, address: &Address) -> Result<(P::Connection, Before<Life<P>>)> {
        let pinned = self.address.resolver.pinned();
        let opened = self.open(protocol, address, pinned);
        if opened.as_ref().map_or(true, |(connection, _)| connection.is_read_only()) {
            self.address.resolver.distrust();
        }
        if opened.as_ref().is_err_and(Error::is_crowded) {
            self.idle().crowded_until = Some(self.clock.now() + CROWD);
        }
        opened
    }

    /// `pinned`: the address of the server until now.
    fn open(
        &self,
        protocol: &P,
        address: &Address,
        pinned: Option<SocketAddr>,
    ) -> Result<(P::Connection, Before<Life<P>>)> {
        // Connecting changes no lock, so a failure is never worse than "unreachable".
        let dialled = protocol.dial(address, &self.clock);
        let mut connection = dialled.map_err(|error| Failure::unsent(error).error)?;
        let agreed = match protocol.config() {
            Some(key) => {
                let evictions = protocol.evictions();
                agree(&mut connection, key, self.guard, evictions, self.clock.as_ref())?
            }
            None => None,
        };
        let (local, address) = connection.ends();
        if address.is_some_and(|address| !self.address.resolver.pin(pinned, address)) {
            return Err(unreachable(
                "Another thread has connected to another address of its host name meanwhile: try \
                 again.",
            ));
        }
        let moved_from = pinned.filter(|&pinned| address.is_some_and(|now| now != pinned));
        let life = connection.life();
        let mut idle = self.idle();
        (idle.local, idle.time) = (local, Some(connection.time()));
        if let (Some(guard), Some((age, at))) = (self.guard, agreed) {
            idle.observed.connected(guard, connection.epoch(), age, at);
        }
        let life = idle.life.replace(life);
        Ok((connection, Before { life, moved_from }))
    }

    fn note_contact(&self, protocol: &P, before: &Before<Life<P>>, connection: &P::Connection) {
        if let Some(from) = before.moved_from {
            let to = connection.ends().1.unwrap_or(from);
            log::warn!("{} has moved from {from} to {to}.", self.title());
        }
        if before.life.is_some_and(|before| before != connection.life()) {
            let lost = match protocol.guarantees().survives {
                _ if self.guard.is_some() => "its holders put their locks back",
                // What survives a clean restart has another life only after a crash.
                Survives::Nothing | Survives::CleanRestart => "all its locks are lost",
                Survives::Persisted => "locks that it had not saved are lost",
                Survives::Restart | Survives::Crash => "its locks are still held",
            };
            let happened = match before.moved_from {
                Some(_) => "is another server than before",
                None => "was started anew",
            };
            log::warn!("{} {happened}: {lost}.", self.title());
        } else {
            log::debug!("Connected to {}.", self.title());
        }
        self.warn_of_evictions(protocol, connection);
    }

    /// Warns once of a server that may evict locks, unless the URL says what to do with it.
    fn warn_of_evictions(&self, protocol: &P, connection: &P::Connection) {
        let Some(mend) = connection.may_evict() else { return };
        if protocol.evictions() != Evictions::Unmentioned
            || std::mem::replace(&mut self.idle().has_warned, true)
        {
            return;
        }
        log::warn!(
            "{} may evict locks when its memory is full, which are then granted twice: {mend}. With \
             evictions=refuse in the URL such a server is refused; evictions=allow ends this warning.",
            self.title()
        );
    }

    /// Whether what began then has failed by a timeout: a refused or broken connection is noticed
    /// at once.
    fn was_waited_for(&self, began: Moment) -> bool {
        let Settings { connect_timeout, io_timeout, .. } = self.address.settings;
        self.clock.now().since(began) >= connect_timeout.min(io_timeout) / 2
    }

    fn note_outage(&self, error: &Error, began: Moment) {
        let now = self.clock.now();
        let timed_out = self.was_waited_for(began);
        let mut idle = self.idle();
        let was_down = std::mem::replace(&mut idle.is_down, true);
        if timed_out {
            idle.silent_since = Some(now);
        }
        drop(idle);
        if was_down {
            log::debug!("{error}");
        } else {
            log::info!("{error}");
        }
    }

    fn take(&self, ops: &[Op<'_>]) -> (Option<Box<P::Connection>>, u64) {
        let mut idle = self.idle();
        let (connection, epoch) = (idle.connections.pop(), idle.epoch);
        drop(idle);
        // A connection that the server has closed is detected before anything is sent on it: a dead
        // server is then "unreachable, nothing was changed" and not "outcome unknown".
        match connection {
            Some(mut connection) => {
                if connection.was_closed() {
                    (None, self.distrust())
                } else if self.is_too_old(&connection, ops) {
                    (None, epoch)
                } else {
                    (Some(connection), epoch)
                }
            }
            None => (None, epoch),
        }
    }

    /// Whether another connection has to find out if the server still accepts changes.
    fn is_too_old(&self, connection: &P::Connection, ops: &[Op<'_>]) -> bool {
        let age = || self.clock.now().since(connection.socket().opened());
        !ops.iter().any(Op::changes) && age() >= READS_FOR && self.address.has_name()
    }

    /// Keeps the connection for another batch.
    fn keep(&self, connection: Box<P::Connection>, epoch: Option<u64>) {
        let mut idle = self.idle();
        if connection.is_quiet()
            && !idle.keeps_none
            && epoch == Some(idle.epoch)
            && idle.connections.len() < self.address.settings.pool
        {
            idle.connections.push(connection);
        }
    }

    fn give_back(&self, connection: Box<P::Connection>, epoch: Option<u64>) {
        self.keep(connection, epoch);
        let mut idle = self.idle();
        let was_down = std::mem::take(&mut idle.is_down);
        (idle.silent_since, idle.was_refused) = (None, false);
        drop(idle);
        if was_down {
            log::info!("{} answers again.", self.title());
        }
    }

    /// Something has failed: the idle connections are not reused, and the name of the server is
    /// resolved before the next dial. A server that was demoted still answers at its old address, but
    /// refuses writes.
    fn distrust(&self) -> u64 {
        self.address.resolver.distrust();
        self.forget_idle()
    }

    fn forget_idle(&self) -> u64 {
        let mut idle = self.idle();
        idle.epoch += 1;
        let (epoch, suspects) = (idle.epoch, std::mem::take(&mut idle.connections));
        drop(idle);
        drop(suspects);
        epoch
    }

    fn epoch(&self) -> u64 {
        self.idle().epoch
    }

    fn title(&self) -> String {
        self.address.title(P::SERVER)
    }

    fn idle(&self) -> MutexGuard<'_, Idle<P::Connection>> {
        self.idle.get().lock().unwrap_or_else(PoisonError::into_inner)
    }
}
