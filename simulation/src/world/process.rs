//! Processes, their tasks and their listeners.

use std::collections::VecDeque;

use memlock_core::notify::{ReachRecord, WakeMessage};
use memlock_core::store::memcached::Life;
use memlock_core::store::recovery::Observed;
use memlock_core::wait_id::WaitId;

use crate::time::Nanos;

/// The body of a thread.
pub(crate) type Body = Box<dyn FnOnce() + Send>;

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) host: usize,
    pub(crate) alive: bool,
    pub(crate) generation: u64,
    pub(crate) paused_until: Nanos,
    /// The incarnation of the server that it is connected to.
    pub(crate) connection: Option<Life>,
    /// What it has seen of the server's recovery.
    pub(crate) observed: Observed,
    pub(crate) reach: ReachRecord,
}

#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) process: usize,
    pub(super) epoch: u64,
    pub(crate) done: bool,
}

#[derive(Debug, Default)]
pub(crate) struct ListenerState {
    pub(crate) process: usize,
    pub(crate) taken: bool,
    pub(crate) opened: bool,
    pub(crate) inbox: VecDeque<(WaitId, WakeMessage)>,
    pub(crate) interrupted: bool,
    pub(crate) test: Option<WaitId>,
    pub(crate) sleeper: Option<usize>,
}
