//! An item and how to reach it: the target of acquisitions, waits, reports and reaping.

use std::fmt;

use crate::clock::Moment;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::lease::Lease;
use crate::name::Key;
use crate::store::{Failure, Item, Op, Reply, Route};

/// An item of a store, as a client reaches it.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) context: Context,
    pub(crate) route: Route,
    pub(crate) key: Key,
}

impl Target {
    pub(crate) fn new(context: Context, key: Key) -> Target {
        Target { context, route: Route::of(&key), key }
    }

    /// The same item for calls of the user: see [`Context::for_calls`].
    pub(crate) fn for_calls(&self) -> Target {
        Target { context: self.context.for_calls(), ..self.clone() }
    }

    /// The same item for a call that tries once: see [`Context::for_try`].
    pub(crate) fn for_try(&self) -> Target {
        Target { context: self.context.for_try(), ..self.clone() }
    }

    pub(crate) fn now(&self) -> Moment {
        self.context.clock().now()
    }

    /// When the store has dropped, at the latest, an item whose request is sent now.
    pub(crate) fn gone(&self, lease: Lease) -> Moment {
        self.context.guarantees().gone(lease, self.now())
    }

    /// Runs operations on the item's server.
    pub(crate) fn run(&self, ops: &[Op<'_>]) -> std::result::Result<Vec<Reply>, Failure> {
        self.context.run(self.route, ops)
    }

    /// Runs one operation on the item's server.
    pub(crate) fn one(&self, op: Op<'_>) -> std::result::Result<Reply, Failure> {
        self.context.one(self.route, op)
    }

    /// Runs operations that change nothing, and retries them.
    pub(crate) fn read(&self, ops: &[Op<'_>]) -> Result<Vec<Reply>> {
        self.context.read(self.route, ops)
    }

    /// Reads the item.
    pub(crate) fn get(&self) -> Result<Option<Item>> {
        self.context.get(self.route, &self.key)
    }

    /// Reads the queue of the item's waiters.
    pub(crate) fn queue(&self) -> Result<Option<Item>> {
        self.context.get(self.route, &self.key.waiters())
    }

    /// The name that the key was made from, for people.
    pub(crate) fn name(&self) -> String {
        self.context.name_of(&self.key)
    }

    /// The item's server, for people.
    pub(crate) fn server(&self) -> String {
        self.context.server_name(self.route)
    }

    /// Adds to the error which operation on the item failed.
    pub(crate) fn said(&self, doing: impl fmt::Display, error: Error) -> Error {
        error.during(format_args!("{doing} {}", self.key))
    }
}
