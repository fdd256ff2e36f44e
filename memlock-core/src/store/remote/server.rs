//! One server: when connections are opened, and when a failed batch is sent again.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::agreement::{Membership, agree};
use super::dial::Pin;
use super::hosts::Named;
use super::idle::Idle;
use super::probe::{Answered, Probe};
use super::protocol::{Connection, Protocol, ServerTime, still_in};
use super::settings::{Address, Place, Settings};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::fork::{self, ForkLocal};
use crate::store::recovery::{Admitted, Guard};
use crate::store::{Epoch, Failure, Op, Recovery, Reply, Sent, Survives};

/// How long a server counts as silent after a request that it did not answer. The time must cover
/// the exit of a program that holds many locks, and be short enough that a drop long after a single
/// timeout tries again.
const SILENCE: Duration = Duration::from_secs(10);

/// A server that is asked whether it answers, does, and then does not answer a batch, is left alone for
/// 10 s, and the next times in a row for 20 s.
const MOST_RELAPSES: u32 = 2;

/// A connection to a member of a quorum is used for this long, if another one can be opened. Its
/// reading of the server's clock gets less exact with time: by one second in 5,000, as far as is known.
const FRESH: Duration = Duration::from_secs(600);

type Life<P> = <<P as Protocol>::Connection as Connection>::Life;

/// One server of the URL.
#[derive(Debug)]
pub(super) struct Server<P: Protocol> {
    address: Address,
    guard: Option<Guard>,
    /// The quorum that the server belongs to, for all clients to agree on.
    quorum: Option<Arc<Membership>>,
    clock: Arc<dyn Clock>,
    idle: ForkLocal<Mutex<Idle<P::Connection>>>,
}

/// A connection that was taken into use for a batch.
struct InUse<P: Protocol> {
    connection: Box<P::Connection>,
    /// The number of the pool that it belongs to.
    epoch: u64,
    /// The process of the call, and when it took the connection into use.
    process: u64,
    began: Moment,
    /// If it was opened for that: the life of the server that was seen before.
    dialled: Option<Option<Life<P>>>,
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
        quorum: Option<Arc<Membership>>,
        clock: Arc<dyn Clock>,
    ) -> Server<P> {
        let address = Address::new(place, settings);
        Server { address, guard, quorum, clock, idle: ForkLocal::new() }
    }

    /// The address of the server.
    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// The local address of the last connection.
    pub(super) fn local_address(&self) -> Option<IpAddr> {
        self.idle().local
    }

    /// Closes all connections; those in use are closed when their batch ends.
    pub(super) fn disconnect(&self) {
        self.forget_idle();
    }

    /// Whether the last batch timed out, less than [`SILENCE`] ago.
    pub(super) fn is_silent(&self) -> bool {
        let silent_until = self.idle().silent_until;
        silent_until.is_some_and(|until| self.clock.now() < until)
    }

    /// Asks a silent server whether it answers again, without waiting for that. `anew`: if it was
    /// asked longer ago than this, it is asked anew; and also one that is left alone for a while.
    pub(super) fn probe(&self, request: &[u8], anew: Option<Duration>) {
        let mut idle = self.idle();
        let now = self.clock.now();
        if anew.is_none() && idle.rests_until.is_some_and(|until| now < until) {
            return;
        }
        if idle.silent_until.is_none_or(|until| now >= until) || request.is_empty() {
            return;
        }
        let Idle { probe, silent_until, pinned, .. } = &mut *idle;
        // What was sent into a network that was cut is not answered soon after that is mended.
        if anew.is_some_and(|age| probe.as_ref().is_some_and(|probe| probe.age(now) > age)) {
            *probe = None;
            pinned.iter().for_each(Pin::doubt);
        }
        let asks = || Probe::begin(&self.address, pinned.clone(), request, self.clock.as_ref());
        match probe.get_or_insert_with(asks).answer(now) {
            Answered::Yes => {
                (*silent_until, *probe) = (None, None);
                idle.was_probed = true;
            }
            // It is asked anew, and not to be waited for until then.
            Answered::No => {
                (*silent_until, *probe) = (Some(now + SILENCE), None);
                pinned.iter().for_each(Pin::doubt);
            }
            Answered::NotYet => *silent_until = Some(now + SILENCE),
        }
    }

    /// The server's time, by [`ServerTime::at`].
    pub(super) fn time(&self) -> Option<Duration> {
        let time = self.idle().time;
        time.map(|time| time.at(self.clock.now()))
    }

    /// Whether the server gave no new grants yet in the life in which the last connection was
    /// opened.
    pub(super) fn recovery(&self) -> Option<Recovery> {
        self.guard.and_then(|guard| self.idle().observed.recovery(guard, self.clock.now()))
    }

    /// Whether the server still recovers in the life in which the connection was opened.
    pub(super) fn recovers(&self, epoch: Epoch) -> bool {
        self.guard.is_some() && self.idle().observed.recovers(epoch, self.clock.now())
    }

    /// Runs a batch on this server.
    pub(super) fn run(
        &self,
        protocol: &P,
        ops: &[Op<'_>],
        meanwhile: &dyn Fn(),
    ) -> std::result::Result<Vec<Reply>, Failure> {
        self.try_twice(|pooled, epoch| {
            let mut in_use = self.take_into_use(protocol, pooled, epoch)?;
            let admitted = self.admitted(&in_use, ops);
            let ended = admitted.run(|ops| in_use.connection.run(ops, meanwhile));
            self.end(protocol, in_use, ended)
        })
    }

    /// Sends a batch to this server. Tried again is only what fails before it was sent. Who drops what is
    /// returned has the connection closed.
    pub(super) fn send<'a>(&'a self, protocol: &'a P, ops: &'a [Op<'a>]) -> Sent<'a> {
        if !P::Connection::SENDS_AHEAD {
            return Sent::new(move || self.run(protocol, ops, &|| {}));
        }
        let sent = self.try_twice(|pooled, epoch| {
            let mut in_use = self.take_into_use(protocol, pooled, epoch)?;
            let admitted = self.admitted(&in_use, ops);
            match in_use.connection.send(admitted.ops()) {
                Ok(()) => Ok((in_use, admitted)),
                Err(failure) => self.end(protocol, in_use, Err(failure)),
            }
        });
        Sent::new(move || {
            let (mut in_use, admitted) = sent?;
            // A child that was forked meanwhile must not read its parent's replies.
            let ended = still_in(in_use.process)
                .and_then(|()| admitted.run(|ops| in_use.connection.receive(ops)));
            self.end(protocol, in_use, ended)
        })
    }

    /// An idle connection may have been closed without notice. If this is found before the request
    /// was sent, it is tried once more on a new connection.
    fn try_twice<T>(
        &self,
        attempt: impl Fn(Option<Box<P::Connection>>, u64) -> std::result::Result<T, Failure>,
    ) -> std::result::Result<T, Failure> {
        let (pooled, epoch) = self.take();
        let was_pooled = pooled.is_some();
        let failure = match attempt(pooled, epoch) {
            Ok(done) => return Ok(done),
            Err(failure) => failure,
        };
        let is_suspect = was_pooled && self.idle().epoch != epoch;
        if is_suspect && !failure.sent && failure.error.is_outage() && !fork::is_astray() {
            let epoch = self.idle().epoch;
            return attempt(None, epoch);
        }
        Err(failure)
    }

    fn take_into_use(
        &self,
        protocol: &P,
        pooled: Option<Box<P::Connection>>,
        epoch: u64,
    ) -> std::result::Result<InUse<P>, Failure> {
        let process = fork::process();
        // A child that a logger has forked sends nothing.
        still_in(process)?;
        let began = pooled.as_ref().map_or_else(|| self.clock.now(), |pooled| pooled.last_used());
        let (connection, dialled) = match pooled {
            Some(connection) if self.is_fresh(&connection) => (connection, None),
            old => match (self.dial(protocol), old) {
                (Ok((connection, before)), _) => (Box::new(connection), Some(before)),
                // A server that refuses another connection may serve the old one.
                (Err(_), Some(old)) if !self.timed_out(began) => (old, None),
                (Err(error), _) => {
                    return Err(self.failed(Failure { error, sent: false }, began, true));
                }
            },
        };
        still_in(process)?;
        Ok(InUse { connection, epoch, process, began, dialled })
    }

    fn admitted<'o, 'a>(&self, in_use: &InUse<P>, ops: &'o [Op<'a>]) -> Admitted<'o, 'a> {
        let life = in_use.connection.epoch();
        Admitted::new(ops, life, self.recovers(life))
    }

    /// Ends the use of a connection.
    fn end<T>(
        &self,
        protocol: &P,
        in_use: InUse<P>,
        ended: std::result::Result<T, Failure>,
    ) -> std::result::Result<T, Failure> {
        let InUse { connection, epoch, process, began, dialled } = in_use;
        // Logged after the request, because a logger may take long, and a request that renews a
        // lease may not have the time.
        if let Some(before) = dialled {
            self.note_contact(protocol, before, connection.life());
        }
        // The logger may have forked, too: the connection is the parent's.
        still_in(process)?;
        match ended {
            Ok(done) => {
                self.give_back(connection, epoch);
                Ok(done)
            }
            Err(failure) if connection.was_refused() => {
                let mut idle = self.idle();
                self.keep(&mut idle, connection, epoch);
                let is_again = std::mem::replace(&mut idle.was_refused, true);
                drop(idle);
                Err(self.failed(failure, began, is_again))
            }
            Err(failure) => {
                self.forget_idle();
                Err(self.failed(failure, began, true))
            }
        }
    }

    /// The failure, with the server's name. `is_silence`: it may be an outage, that began then.
    fn failed(&self, failure: Failure, began: Moment, is_silence: bool) -> Failure {
        let Failure { error, sent } = failure;
        let error = error.during(format_args!("{}", self.title()));
        if is_silence && error.is_outage() {
            self.note_outage(&error, began);
        }
        Failure { error, sent }
    }

    /// Opens a connection. Also returns the life of the server that was seen before.
    fn dial(&self, protocol: &P) -> Result<(P::Connection, Option<Life<P>>)> {
        let pinned = self.idle().pinned.clone();
        // Connecting changes no lock, so a failure is never worse than "unreachable".
        let dialled = protocol.dial(&self.address, pinned.clone(), &self.clock);
        let mut connection = dialled.map_err(|error| {
            // A primary that has become a standby refuses clients, too.
            if matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Protocol) {
                pinned.iter().for_each(Pin::doubt);
            }
            Failure { error, sent: false }.of_read()
        })?;
        let agreed = match protocol.config() {
            Some(key) => {
                let quorum = self.quorum.as_deref().map(|quorum| (quorum, self.address.name()));
                Some(agree(protocol, &mut connection, key, self.guard, quorum, &self.clock)?)
            }
            None => None,
        };
        let (local, address) = connection.ends();
        let life = connection.life();
        let mut idle = self.idle();
        let left = idle.pin(pinned.as_ref(), address)?;
        if let (Some(guard), Some((age, at))) = (self.guard, agreed) {
            idle.observed.connected(guard, connection.epoch(), age, at);
        }
        (idle.local, idle.time) = (local, Some(connection.time()));
        let before = idle.life.replace(life);
        drop(idle);
        let Some((from, connections)) = left else { return Ok((connection, before)) };
        drop(connections);
        let to = address.map(|address| address.to_string()).unwrap_or_default();
        log::warn!("{} is at {to} now, and not at {from} any more.", self.title());
        Ok((connection, None))
    }

    fn note_contact(&self, protocol: &P, before: Option<Life<P>>, now: Life<P>) {
        if before.is_some_and(|before| before != now) {
            let lost = match protocol.guarantees().survives {
                _ if self.guard.is_some() => "its holders put their locks back",
                // What survives a clean restart has another life only after a crash.
                Survives::Nothing | Survives::CleanRestart => "all its locks are lost",
                Survives::Persisted => "locks that it had not saved are lost",
                Survives::Restart | Survives::Crash => "its locks are still held",
            };
            log::warn!("{} was started anew: {lost}.", self.title());
        } else {
            log::debug!("Connected to {}.", self.title());
        }
    }

    /// Whether what began then, and has failed, was not answered in time: a refused or broken
    /// connection is noticed at once.
    fn timed_out(&self, began: Moment) -> bool {
        let Settings { connect_timeout, io_timeout, .. } = self.address.settings;
        self.clock.now().since(began) >= connect_timeout.min(io_timeout) / 2
    }

    fn note_outage(&self, error: &Error, began: Moment) {
        let now = self.clock.now();
        let timed_out = self.timed_out(began);
        let mut idle = self.idle();
        let was_down = std::mem::replace(&mut idle.is_down, true);
        if timed_out {
            idle.silent_until = Some(now + SILENCE);
            // It answers small questions, or too late: so it is left alone for longer each time.
            if std::mem::take(&mut idle.was_probed) {
                idle.relapses = (idle.relapses + 1).min(MOST_RELAPSES);
                let rest = SILENCE * 2_u32.pow(idle.relapses - 1);
                (idle.rests_until, idle.silent_until) =
                    (Some(now + rest), Some(now + rest + SILENCE));
            }
        }
        drop(idle);
        if was_down {
            log::debug!("{error}");
        } else {
            log::info!("{error}");
        }
    }

    /// Whether what the connection says of the server's clock is exact enough. It was taken into use just
    /// now.
    fn is_fresh(&self, connection: &P::Connection) -> bool {
        let age = connection.last_used().since(connection.time().read_at());
        self.quorum.is_none() || age < FRESH
    }

    fn take(&self) -> (Option<Box<P::Connection>>, u64) {
        let mut idle = self.idle();
        let (connection, epoch) = (idle.connections.pop(), idle.epoch);
        drop(idle);
        let Some(mut connection) = connection else { return (None, epoch) };
        // A connection that the server has closed is detected before anything is sent on it: a dead
        // server is then "unreachable, nothing was changed" and not "outcome unknown".
        if connection.was_closed() {
            return (None, self.forget_idle());
        }
        (Some(connection), epoch)
    }

    /// Keeps the connection for another batch.
    fn keep(&self, idle: &mut Idle<P::Connection>, connection: Box<P::Connection>, epoch: u64) {
        if connection.is_quiet()
            && idle.epoch == epoch
            && idle.connections.len() < self.address.settings.pool
        {
            idle.connections.push(connection);
        }
    }

    fn give_back(&self, connection: Box<P::Connection>, epoch: u64) {
        let mut idle = self.idle();
        self.keep(&mut idle, connection, epoch);
        let was_down = std::mem::take(&mut idle.is_down);
        (idle.silent_until, idle.probe, idle.was_refused) = (None, None, false);
        (idle.was_probed, idle.relapses, idle.rests_until) = (false, 0, None);
        drop(idle);
        if was_down {
            log::info!("{} answers again.", self.title());
        }
    }

    fn forget_idle(&self) -> u64 {
        let mut idle = self.idle();
        idle.epoch += 1;
        let (epoch, suspects) = (idle.epoch, std::mem::take(&mut idle.connections));
        drop(idle);
        drop(suspects);
        epoch
    }

    fn title(&self) -> String {
        self.address.title(P::SERVER)
    }

    fn idle(&self) -> MutexGuard<'_, Idle<P::Connection>> {
        self.idle.get().lock().unwrap_or_else(PoisonError::into_inner)
    }
}
