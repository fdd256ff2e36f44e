//! An item and how to reach it: the target of acquisitions, waits, reports and reaping.

use std::time::Duration;

use crate::clock::Moment;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::Lease;
use crate::name::Key;
use crate::store::{
    Failure, Item, Op, Pending, Replies, Reply, Request, Route, Silence, TimeLimit, Version,
};
use crate::subject::Subject;

/// How often in a row a step is sent before its outcome counts as unknown.
pub(crate) const ATTEMPTS: usize = 3;

/// An item of a store, as a client reaches it.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) context: Context,
    pub(crate) route: Route,
    pub(crate) key: Key,
    /// What it is, such as `lock`.
    kind: &'static str,
    silent: SilentServer,
}

/// Whether a server is asked that did not answer a short while ago.
#[derive(Clone, Copy, Debug)]
enum SilentServer {
    /// It is asked: for a call of the user.
    Asked,
    /// It is not asked: see [`Target::for_drop`].
    Skipped,
    /// If it fell silent after this moment, it is asked briefly: see [`Target::for_try`].
    AskedBriefly(Moment),
}

impl Target {
    /// For calls of the user, which are always tried.
    pub(crate) fn new(context: Context, kind: &'static str, key: Key) -> Target {
        Target { context, route: Route::of(&key), key, kind, silent: SilentServer::Asked }
    }

    /// The same item for calls of the user.
    pub(crate) fn for_calls(&self) -> Target {
        Target { silent: SilentServer::Asked, ..self.clone() }
    }

    /// The same item for a call that tries once and begins now. Once the server falls silent, it is
    /// given a quarter of a timeout more, to resolve what became of a request without a reply.
    pub(crate) fn for_try(&self) -> Target {
        Target { silent: SilentServer::AskedBriefly(self.now()), ..self.clone() }
    }

    /// The same item for requests without a call of the user: for dropping locks, and for cleaning
    /// up. Nothing is sent to a server that did not answer a short while ago, so that dropping any
    /// number of locks costs one timeout per server.
    pub(crate) fn for_drop(&self) -> Target {
        Target { silent: SilentServer::Skipped, ..self.clone() }
    }

    /// Whether it is used by a call that tries once.
    pub(crate) fn tries_once(&self) -> bool {
        matches!(self.silent, SilentServer::AskedBriefly(_))
    }

    pub(crate) fn kind(&self) -> &'static str {
        self.kind
    }

    pub(crate) fn now(&self) -> Moment {
        self.context.clock().now()
    }

    /// When the store has dropped, at the latest, an item whose request is sent now.
    pub(crate) fn gone(&self, lease: Lease) -> Moment {
        self.context.guarantees().gone(lease, self.now())
    }

    /// For how long the item's server gives no new grants yet in the life that gave this version.
    /// Zero if it gives them.
    pub(crate) fn recovers_for(&self, version: Version) -> Duration {
        self.context.recovers_for(self.route, version.epoch())
    }

    /// Whether nothing is sent to the item's server, for now.
    pub(crate) fn is_skipped(&self) -> bool {
        match self.silent {
            SilentServer::Asked => false,
            SilentServer::Skipped => self.context.silence(self.route).is_some(),
            SilentServer::AskedBriefly(began) => {
                self.fell_silent().is_some_and(|silence| began + silence.patience <= self.now())
            }
        }
    }

    /// The silence of the server, if it began during the one try that this is for.
    fn fell_silent(&self) -> Option<Silence> {
        let SilentServer::AskedBriefly(began) = self.silent else { return None };
        self.context.silence(self.route).filter(|silence| silence.since >= began)
    }

    /// # Errors
    /// If nothing is sent to the item's server, for now.
    pub(crate) fn skip_if_silent(&self) -> std::result::Result<(), Failure> {
        if !self.is_skipped() {
            return Ok(());
        }
        let text = "The server did not answer a moment ago, so it was not asked again.";
        Err(Failure::unsent(Error::new(ErrorKind::Unreachable, text).at(self.server())))
    }

    /// Sends operations to the item's server.
    pub(crate) fn send<'a>(&'a self, ops: &'a [Op<'a>]) -> Pending<'a> {
        if let Err(failure) = self.skip_if_silent() {
            return Pending::ended(Err(failure));
        }
        let limit = self.fell_silent().map_or(TimeLimit::Usual, |_| TimeLimit::Brief);
        self.context.send(Request { route: self.route, ops, limit })
    }

    /// Runs operations on the item's server.
    pub(crate) fn run(&self, ops: &[Op<'_>]) -> Replies {
        self.send(ops).receive()
    }

    /// Runs one operation on the item's server.
    pub(crate) fn one(&self, op: Op<'_>) -> std::result::Result<Reply, Failure> {
        self.run(&[op])?.into_iter().next().ok_or_else(Failure::no_reply)
    }

    /// Runs operations that change nothing, and retries them: their outcome cannot be unknown.
    pub(crate) fn read(&self, ops: &[Op<'_>]) -> Result<Vec<Reply>> {
        let mut failures = 0;
        loop {
            match self.run(ops) {
                Ok(replies) => return Ok(replies),
                Err(failure) => {
                    failures += 1;
                    if failures == ATTEMPTS || !failure.sent {
                        return Err(failure.of_read());
                    }
                }
            }
        }
    }

    /// Reads the item.
    pub(crate) fn get(&self) -> Result<Option<Item>> {
        self.get_other(&self.key)
    }

    /// Reads another item of the same server.
    pub(crate) fn get_other(&self, key: &Key) -> Result<Option<Item>> {
        match self.read(&[Op::get(key)])?.pop() {
            Some(Reply::Value(item)) => Ok(Some(item)),
            _ => Ok(None),
        }
    }

    /// Reads the queue of the item's waiters.
    pub(crate) fn queue(&self) -> Result<Option<Item>> {
        self.get_other(&self.key.waiters())
    }

    /// The name that the key was made from, for people.
    pub(crate) fn name(&self) -> String {
        self.context.name_of(&self.key)
    }

    /// The item's server, for people.
    pub(crate) fn server(&self) -> String {
        self.context.server_name(self.route)
    }

    /// The item, for people.
    pub(crate) fn subject(&self) -> Subject {
        let node = self.context.node(self.route);
        let (server, is_container) =
            node.map_or_else(Default::default, |it| (it.title, it.is_container));
        Subject::new(self.kind, self.name(), server, is_container)
    }

    /// A lease of this length. `doing`: what it is needed for, for the error.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it is out of range.
    pub(crate) fn lease(&self, doing: &str, duration: Duration) -> Result<Lease> {
        self.context.guarantees().lease(duration).map_err(|error| self.said(doing, error))
    }

    /// Adds to the error which operation on the item failed, unless it names the item.
    pub(crate) fn said(&self, doing: &str, error: Error) -> Error {
        error.about(doing, self.subject())
    }
}
