//! A request on its way to the server.

use std::collections::VecDeque;

use memlock_core::store::{Incarnation, Reply};

use crate::server::Command;
use crate::time::Nanos;

#[derive(Debug)]
pub(crate) struct Request {
    pub(super) sent: Nanos,
    pub(super) task: usize,
    pub(super) process: usize,
    pub(super) life: Incarnation,
    /// What is not carried out yet.
    pub(super) commands: VecDeque<Command>,
    /// The number that the first of them has drawn for its version.
    pub(super) drawn: Option<u64>,
    pub(super) sent_all: Vec<Command>,
    pub(super) replies: Vec<Reply>,
    pub(super) fate: Fate,
    /// How it ended for the client: `Some(true)` when all replies are there.
    pub(super) ended: Option<bool>,
    /// The client waits for it no longer.
    pub(super) given_up: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Fine,
    LostOnTheWay,
    ReplyLost,
    /// The connection breaks when the reply should have come.
    Reset,
    /// It arrives when nobody waits for it any more.
    Late,
}
