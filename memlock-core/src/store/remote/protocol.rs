//! What a protocol implements.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::settings::{Address, Evictions};
use super::socket::Socket;
use crate::clock::{Clock, Moment};
use crate::error::Result;
use crate::lease::DRIFT;
use crate::name::Key;
#[cfg(feature = "admin")]
use crate::store::admin::Admin;
use crate::store::{Epoch, Expiry, Failure, Guarantees, Op, Replies};

/// A protocol by which servers store items.
pub(in crate::store) trait Protocol: fmt::Debug + Send + Sync + 'static {
    /// A connection that is ready for batches.
    type Connection: Connection;

    /// What its servers are, such as `memcached`.
    const SERVER: &'static str;

    /// Whether a server has only some hundred connections to give, so that a thread that sleeps for
    /// long closes one.
    const CONNECTIONS_ARE_FEW: bool = false;

    /// Connects to a server, and checks that it is suitable for locks. No lock is changed there.
    fn dial(&self, address: &Address, clock: &Arc<dyn Clock>) -> Result<Self::Connection>;

    /// What the servers promise.
    fn guarantees(&self) -> Guarantees;

    /// The item in which all clients of a server agree on a guard; `None`: the URL cannot have one.
    fn config(&self) -> Option<&Key> {
        None
    }

    /// What the URL says of servers that may evict locks.
    fn evictions(&self) -> Evictions {
        Evictions::Allowed
    }

    /// See [`Store::removal_sql`](crate::store::Store::removal_sql).
    fn removal_sql(&self, _key: &Key, _start: &[u8]) -> Option<String> {
        None
    }

    /// What is missing on a server as long as nothing has been stored there: see
    /// [`Store::missing`](crate::store::Store::missing).
    #[cfg(feature = "admin")]
    fn missing(&self, _address: &Address) -> Option<String> {
        None
    }

    /// A tool's own connection.
    #[cfg(feature = "admin")]
    fn admin(&self, address: &Address) -> Result<Box<dyn Admin>>;
}

/// A connection that is ready for batches.
pub(in crate::store) trait Connection: fmt::Debug + Send {
    /// One life of the server.
    type Life: Copy + PartialEq + fmt::Debug + Send;
    /// One reading of the server's clock.
    type Time: ServerTime;

    /// What is known of a request until its replies are received.
    type Sent;

    /// Sends a batch. After a failure the connection must be dropped.
    fn send(&mut self, ops: &[Op<'_>]) -> std::result::Result<Self::Sent, Failure>;

    /// Receives the replies to the batch that was sent, and carries out the rest of it, which did not
    /// fit into the request or was refused for the moment. After a failure the connection must be dropped, unless it
    /// [`was_refused`](Connection::was_refused).
    fn receive(&mut self, ops: &[Op<'_>], sent: Self::Sent) -> Replies;

    /// Runs a batch.
    fn run(&mut self, ops: &[Op<'_>]) -> Replies {
        let sent = self.send(ops)?;
        self.receive(ops, sent)
    }

    /// What it is carried by.
    fn socket(&self) -> &Socket;

    /// The same, to change it.
    fn socket_mut(&mut self) -> &mut Socket;

    /// The local address, and the server's.
    fn ends(&self) -> (Option<IpAddr>, Option<SocketAddr>) {
        self.socket().ends()
    }

    /// When the connection was last taken into use.
    fn last_used(&self) -> Moment {
        self.socket().last_used()
    }

    /// Takes the connection into use again. True if the server or the program has closed it
    /// meanwhile, or if the server sent unrequested bytes.
    fn was_closed(&mut self) -> bool {
        self.socket_mut().was_closed()
    }

    /// Whether nothing is left unread. Otherwise the server sent more than requested, and the
    /// connection cannot be trusted with another request.
    fn is_quiet(&self) -> bool {
        self.socket().unread().is_empty()
    }

    /// Whether the server refused the last batch for reasons that concern this batch alone: the
    /// connection is as good as before.
    fn was_refused(&self) -> bool {
        false
    }

    /// Whether the server said that it takes no writes when the connection was opened, and accepts
    /// connections all the same.
    fn is_read_only(&self) -> bool {
        false
    }

    /// The life of the server in which the connection was opened.
    fn life(&self) -> Self::Life;

    /// The same, as versions name it.
    fn epoch(&self) -> Epoch;

    /// How old that life was at the given moment, at least; `None` if the server does not tell: the
    /// [`config`](Protocol::config) item is then as old as the life.
    fn age(&self) -> Option<(Duration, Moment)> {
        None
    }

    /// The value of the [`config`](Protocol::config) item, as it was read when the connection was
    /// opened. It is given once.
    fn config(&mut self) -> Option<Vec<u8>> {
        None
    }

    /// The reading of the server's clock when the connection was opened.
    fn time(&self) -> Self::Time;

    /// Whether the server may evict every item: how it has to be started instead.
    fn may_evict(&self) -> Option<&'static str> {
        None
    }

    /// Fails if the server may evict an item that is stored for this long, by its settings as they
    /// were read.
    fn keeps(&self, _key: &Key, _expiry: Expiry) -> Result<()> {
        Ok(())
    }

    /// When those settings were read; `None`: they say that the server never evicts, and cannot
    /// change.
    fn retention_read(&self) -> Option<Moment> {
        None
    }

    /// Reads them again.
    fn read_retention(&mut self) -> Result<()> {
        Ok(())
    }
}

/// One reading of a server's clock.
pub(in crate::store) trait ServerTime: Copy + fmt::Debug + Send {
    /// The server's time at this moment, rather too late than too early.
    fn at(self, now: Moment) -> Duration;

    /// The time that the server's clock showed.
    fn shown(self) -> Duration;
}

/// One reading of a clock that is exact.
#[allow(dead_code, reason = "each store has the kind of clock that it has")]
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct Reading {
    /// The time that the clock showed, since 1970 by UTC.
    pub(in crate::store) shown: Duration,
    /// When the request for it was sent, on this host's clock.
    pub(in crate::store) sent: Moment,
}

impl ServerTime for Reading {
    fn shown(self) -> Duration {
        self.shown
    }

    fn at(self, now: Moment) -> Duration {
        let passed = now.since(self.sent);
        self.shown + passed + passed / DRIFT as u32
    }
}
