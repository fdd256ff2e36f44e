//! A server for tests of machines without I/O, which are given replies that no server gives on demand.

use std::sync::Arc;
use std::time::Duration;

use super::lock::{Grant, Lock, Tenure};
use crate::clock::{Clock, Moment, SystemClock};
use crate::context::Context;
use crate::error::{Error, ErrorKind};
use crate::lease::Lease;
use crate::name::Keyspace;
use crate::notify::NotifySetting;
use crate::notify::udp::UdpNotifier;
use crate::owner::Token;
use crate::store::memcached::GUARANTEES;
use crate::store::recovery::Guard;
use crate::store::{
    Epoch, Failure, Guarantees, Item, Node, Op, Order, Pending, Recovery, Reply, Request, Route,
    Store, Stored, Version,
};
use crate::target::Target;

pub(super) const OURS: &[u8] = b"memlock/1 00000000000000000000000000000001 web-3 4711 1795170000";
pub(super) const THEIRS: &[u8] =
    b"memlock/1 00000000000000000000000000000002 web-4 4712 1795170000";
/// The life of the server in which the lock was granted, and a later one.
pub(super) const LIFE: Epoch = Epoch::new(1, 1);
pub(super) const LATER: Epoch = Epoch::new(2, 1);
pub(super) const NOW: Moment = Moment::from_boot(Duration::from_secs(1000));
pub(super) const LEASE: Duration = Duration::from_secs(30);

/// It answers nothing: the tests give the replies.
#[derive(Debug)]
pub(super) struct Server {
    /// In which life it gives no new grants yet, if any.
    pub(super) recovers: Option<Epoch>,
    pub(super) order: Order,
    /// Whether it has answered before.
    pub(super) reached: bool,
    /// Whether it may have received what is sent to it.
    pub(super) receives: bool,
}

impl Default for Server {
    fn default() -> Server {
        Server { recovers: None, order: Order::Sent, reached: true, receives: false }
    }
}

impl Store for Server {
    fn send<'a>(&'a self, _request: Request<'a>) -> Pending<'a> {
        let kind = if self.receives { ErrorKind::Unknown } else { ErrorKind::Unreachable };
        Pending::ended(Err(failure(kind, self.receives)))
    }

    fn guarantees(&self) -> Guarantees {
        let guard = self.recovers.and_then(|_| Guard::new(2 * LEASE).ok());
        Guarantees { order: self.order, guard, ..GUARANTEES }
    }

    fn time(&self, _route: Route) -> Option<Duration> {
        self.reached.then_some(LEASE)
    }

    fn nodes(&self) -> Vec<Node> {
        Vec::new()
    }

    fn recovery(&self, _route: Route) -> Option<Recovery> {
        self.recovers.map(|life| Recovery { life, age: LEASE, left: LEASE })
    }

    fn recovers_for(&self, _route: Route, life: Epoch) -> Duration {
        if self.recovers == Some(life) { LEASE } else { Duration::ZERO }
    }
}

#[derive(Debug)]
struct Still;

impl Clock for Still {
    fn now(&self) -> Moment {
        NOW
    }

    fn unix_seconds(&self) -> u64 {
        1_795_170_000
    }

    fn sleep(&self, _duration: Duration) {}

    fn random(&self, bytes: &mut [u8]) -> std::io::Result<()> {
        SystemClock.random(bytes)
    }
}

pub(super) fn target(server: Server) -> Target {
    let notifier = Arc::new(UdpNotifier::new(NotifySetting::Near));
    let keys = Keyspace::default();
    let key = keys.lock(b"m");
    let context = Context::new(Arc::new(server), Arc::new(Still), keys, None, notifier);
    Target::new(context, "lock", key)
}

/// A lock that was granted just now, with the version 7.
pub(super) fn held_on(server: Server) -> Lock {
    let grant = Grant {
        target: target(server),
        token: Token::from_bits(1),
        value: OURS.to_vec(),
        notifies: false,
        version: version(7),
        fence: 1,
        lease: lease(),
        sent: NOW,
        orphan: None,
        tenure: Tenure { began: NOW, handoffs: 0 },
    };
    grant.into_lock()
}

pub(super) fn lease() -> Lease {
    Lease::new(LEASE).unwrap()
}

pub(super) fn version(number: u64) -> Version {
    Version::new(LIFE, number)
}

pub(super) fn value(value: &[u8], version: Version) -> Reply {
    let remaining = Some(LEASE);
    Reply::Value(Item { value: value.to_vec(), version, remaining, fence: 9 })
}

pub(super) fn stored(version: Version) -> Reply {
    Reply::Stored(Stored { version, fence: 9 })
}

/// Operations, in words.
pub(super) fn in_words(ops: &[Op<'_>]) -> String {
    let words = ops.iter().map(|op| match op {
        Op::Get { .. } => "get".into(),
        Op::Add { .. } => "add".into(),
        Op::Delete { version, .. } => format!("delete {}", version.number()),
        Op::CompareAndSet { version, .. } => format!("set {}", version.number()),
        other => format!("{other:?}"),
    });
    words.collect::<Vec<String>>().join(", ")
}

pub(super) fn failure(kind: ErrorKind, sent: bool) -> Failure {
    Failure { error: Error::new(kind, "no"), sent }
}
