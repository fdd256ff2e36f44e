//! One server: its idle connections, and when a failed batch is sent again.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::connection::Connection;
use super::handshake::ServerTime;
use super::life::Life;
use super::settings::{Address, Settings};
use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};
use crate::fork::{self, ForkLocal};
use crate::name::Key;
use crate::store::{Failure, Op, Reply};

/// For how long a server counts as silent after a request that it did not answer. It must cover the
/// exit of a program that holds many locks, and be short enough that a drop long after a single
/// timeout is tried again.
const SILENCE: Duration = Duration::from_secs(10);

/// One server of the URL.
#[derive(Debug)]
pub(super) struct Server {
    name: String,
    host: String,
    port: u16,
    settings: Settings,
    /// The item that stamps are drawn from.
    stamp: Key,
    clock: Arc<dyn Clock>,
    idle: ForkLocal<Mutex<Idle>>,
}

/// Idle connections. A failure raises the epoch: a connection that was dialled before is suspect
/// and not reused.
#[derive(Debug, Default)]
struct Idle {
    epoch: u64,
    /// Which of a name's addresses answered first: the server stays the same one from then on.
    address: Option<SocketAddr>,
    /// Our own end of the connection that was dialled last.
    local: Option<IpAddr>,
    /// What time it was there when the last connection was dialled.
    time: Option<ServerTime>,
    /// Which life of the server the last connection was dialled in.
    life: Option<Life>,
    /// The last batch found it out of reach.
    is_down: bool,
    /// The last batch waited in vain for the server, which counts as silent until then.
    silent_until: Option<Moment>,
    #[expect(clippy::vec_box, reason = "a connection is moved in and out for every batch")]
    connections: Vec<Box<Connection>>,
}

impl Server {
    pub(super) fn new(
        host: String,
        port: u16,
        settings: Settings,
        stamp: Key,
        clock: Arc<dyn Clock>,
    ) -> Server {
        let name =
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        Server { name, host, port, settings, stamp, clock, idle: ForkLocal::new() }
    }

    /// `host:port`, by which hashing and people know it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Where it is.
    pub(super) fn address(&self) -> Address {
        let Settings { connect_timeout, io_timeout, .. } = self.settings;
        let (name, host) = (self.name.clone(), self.host.clone());
        Address { name, host, port: self.port, connect_timeout, io_timeout }
    }

    /// Our own end of the connection that was dialled last.
    pub(super) fn local_address(&self) -> Option<IpAddr> {
        self.idle().local
    }

    /// Closes all connections, those that are in use as soon as that is over.
    pub(super) fn disconnect(&self) {
        self.forget_idle();
    }

    /// Whether the last batch waited in vain, less than [`SILENCE`] ago.
    pub(super) fn is_silent(&self) -> bool {
        let silent_until = self.idle().silent_until;
        silent_until.is_some_and(|until| self.clock.now() < until)
    }

    /// The server's time, as of [`ServerTime::now`].
    pub(super) fn time(&self) -> Option<Duration> {
        let time = self.idle().time;
        time.map(|time| Duration::from_secs(time.now(self.clock.now())))
    }

    /// Runs a batch on this server.
    ///
    /// A connection that sat idle may be dead without our knowing. If it turns out so before the
    /// request left, the batch is run once more on a fresh one.
    pub(super) fn run(
        &self,
        ops: &[Op<'_>],
        meanwhile: &dyn Fn(),
    ) -> std::result::Result<Vec<Reply>, Failure> {
        let (pooled, epoch) = self.take();
        let was_pooled = pooled.is_some();
        let failure = match self.attempt(pooled, epoch, ops, meanwhile) {
            Ok(replies) => return Ok(replies),
            Err(failure) => failure,
        };
        if was_pooled && !failure.sent && failure.error.is_outage() && !fork::is_astray() {
            let epoch = self.idle().epoch;
            return self.attempt(None, epoch, ops, meanwhile);
        }
        Err(failure)
    }

    fn attempt(
        &self,
        pooled: Option<Box<Connection>>,
        epoch: u64,
        ops: &[Op<'_>],
        meanwhile: &dyn Fn(),
    ) -> std::result::Result<Vec<Reply>, Failure> {
        let process = fork::generation();
        let began = pooled.as_ref().map_or_else(|| self.clock.now(), |pooled| pooled.last_used());
        let name = |mut failure: Failure| {
            failure.error = failure.error.during(format_args!("memcached at {}", self.name));
            if failure.error.is_outage() {
                self.note_outage(&failure.error, began);
            }
            failure
        };
        let (mut connection, dialled) = match pooled {
            Some(connection) => (connection, None),
            None => {
                let (connection, before) =
                    self.dial().map_err(|error| name(Failure { error, sent: false }))?;
                (Box::new(connection), Some(before))
            }
        };
        let ended = connection.run(ops, &self.stamp, meanwhile);
        // A logger may take its time, and the request may not have it: a lease that is to be
        // renewed.
        if let Some(before) = dialled {
            self.note_contact(before, connection.life());
        }
        // It may have forked, too: the connection is the parent's.
        if fork::generation() != process {
            return Err(Failure { error: fork::astray(), sent: false });
        }
        match ended {
            Ok(replies) => {
                self.give_back(connection, epoch);
                Ok(replies)
            }
            Err(failure) => {
                self.forget_idle();
                Err(name(failure))
            }
        }
    }

    /// A new connection; and which life of the server was seen before.
    fn dial(&self) -> Result<(Connection, Option<Life>)> {
        let pinned = self.idle().address;
        let connection =
            Connection::dial(&self.host, self.port, pinned, &self.settings, &self.clock)?;
        let (local, address) = connection.ends();
        let life = connection.life();
        let mut idle = self.idle();
        idle.address = idle.address.or(address);
        (idle.local, idle.time) = (local, Some(connection.time()));
        let before = idle.life.replace(life);
        Ok((connection, before))
    }

    fn note_contact(&self, before: Option<Life>, now: Life) {
        if before.is_some_and(|before| before != now) {
            log::warn!("memcached at {} was started anew: what was held there is lost.", self.name);
        } else {
            log::debug!("Connected to memcached at {}.", self.name);
        }
    }

    fn note_outage(&self, error: &Error, began: Moment) {
        let now = self.clock.now();
        // A refused or broken connection is noticed at once. Everything that takes this long is a
        // wait in vain.
        let Settings { connect_timeout, io_timeout, .. } = self.settings;
        let timed_out = now.since(began) >= connect_timeout.min(io_timeout) / 2;
        let mut idle = self.idle();
        let was_down = std::mem::replace(&mut idle.is_down, true);
        if timed_out {
            idle.silent_until = Some(now + SILENCE);
        }
        drop(idle);
        if was_down {
            log::debug!("{error}");
        } else {
            log::info!("{error}");
        }
    }

    fn take(&self) -> (Option<Box<Connection>>, u64) {
        let mut idle = self.idle();
        let (connection, epoch) = (idle.connections.pop(), idle.epoch);
        drop(idle);
        // A connection that the server has closed is found out before anything is sent on it: then
        // a dead server is "unreachable, nothing was changed" and not "outcome unknown".
        match connection {
            Some(mut connection) => {
                if connection.was_closed() {
                    (None, self.forget_idle())
                } else {
                    (Some(connection), epoch)
                }
            }
            None => (None, epoch),
        }
    }

    fn give_back(&self, connection: Box<Connection>, epoch: u64) {
        let mut idle = self.idle();
        if connection.is_quiet()
            && idle.epoch == epoch
            && idle.connections.len() < self.settings.pool
        {
            idle.connections.push(connection);
        }
        let was_down = std::mem::take(&mut idle.is_down);
        idle.silent_until = None;
        drop(idle);
        if was_down {
            log::info!("memcached at {} answers again.", self.name);
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

    fn idle(&self) -> std::sync::MutexGuard<'_, Idle> {
        self.idle.get().lock().unwrap_or_else(PoisonError::into_inner)
    }
}
