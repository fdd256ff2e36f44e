//! A request on its way to the server.

use std::collections::VecDeque;

use memlock_core::store::Reply;
use memlock_core::store::memcached::Life;

use crate::server::Command;
use crate::time::Nanos;

#[derive(Debug)]
pub(crate) struct Request {
    pub(super) sent: Nanos,
    pub(super) task: usize,
    pub(super) process: usize,
    /// To which server.
    pub(super) site: usize,
    pub(super) life: Life,
    /// The commands that are not executed yet.
    pub(super) commands: VecDeque<Command>,
    /// The version that the first of them has drawn.
    pub(super) drawn: Option<u64>,
    pub(super) sent_all: Vec<Command>,
    pub(super) replies: Vec<Reply>,
    pub(super) fate: Fate,
    /// The result for the client: `Some(true)` when all replies have arrived.
    pub(super) ended: Option<bool>,
    /// The client does not wait for it any more.
    pub(super) given_up: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Fine,
    LostOnTheWay,
    ReplyLost,
    /// The connection breaks when the reply should arrive.
    Reset,
    /// It arrives when the client does not wait any more.
    Late,
}

impl Request {
    /// Whether a command that stores this item is not executed yet.
    pub(super) fn may_store(&self, key: &str) -> bool {
        let stores = |command: &Command| {
            use Command::{Add, CompareAndSet, Put};
            matches!(command, Add { .. } | CompareAndSet { .. } | Put { .. })
                && command.key() == key
        };
        self.fate != Fate::LostOnTheWay && self.commands.iter().any(stores)
    }
}
