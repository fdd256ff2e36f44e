//! The terms in which a policy and its driver speak.

use std::time::Duration;

use crate::clock::Moment;

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Try to acquire the target.
    Try,
    /// Join the queue, and inspect the target in the same request.
    Join {
        /// Before all others: our turn had come, and another client was faster.
        front: bool,
    },
    /// Inspect, without acquiring anything.
    Inspect {
        /// The target.
        target: bool,
        /// Our place in the queue.
        queue: bool,
    },
    /// Leave the queue, which is too long, and go on waiting.
    StepOut,
    /// Leave the queue for good, and pass on a wake-up that came too late.
    Leave,
    /// Sleep until a wake-up or an interruption, at most until this moment.
    Sleep(Moment),
    /// The wait is over.
    End(Ended),
}

/// How a wait ended that got nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its limit passed.
    TimedOut,
    /// It was cancelled.
    Interrupted,
    /// The server was out of reach for too long.
    Outage,
}

/// The state of the target, as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetState {
    /// It is available.
    Free,
    /// It was granted to this waiter by a request whose reply was lost.
    Ours,
    /// It is reserved for this waiter: no other can acquire it.
    Reserved,
    /// It is reserved for another waiter, which is taken for dead after this time.
    ReservedForOther(Duration),
    /// Others hold it.
    Held {
        /// Whether its holder will send a wake-up when it releases it.
        notifies: bool,
        /// The time until the holder's item expires.
        left: Option<Duration>,
    },
}

impl TargetState {
    /// Whether an attempt may succeed.
    pub(super) fn is_available(self) -> bool {
        matches!(self, TargetState::Free | TargetState::Ours)
    }
}

/// Our place in the queue, as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueView {
    /// We are in it, behind so many.
    Behind(usize),
    /// We are not in it: our entry was removed, and a wake-up was sent.
    Removed {
        /// How many are in it.
        waiters: usize,
    },
    /// There is no queue: the server lost it.
    Lost,
}

/// An event of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The attempt failed: others hold it.
    Missed,
    /// We have joined the queue.
    Joined {
        /// How many are before us.
        before: usize,
        /// The state of the target after we had joined.
        state: TargetState,
    },
    /// The server has no room for us in the queue.
    Refused,
    /// The result of an inspection, of what it was to inspect.
    Inspected {
        /// Our place in the queue.
        view: Option<QueueView>,
        /// The state of the target.
        state: Option<TargetState>,
    },
    /// A wake-up was received: we are to try after this time.
    Woken(Duration),
    /// We have left the queue, or are not in it.
    Left,
    /// The wait was cancelled.
    Interrupted,
    /// The server could not be reached.
    Failed,
}

/// What a process knows of the queue when a wait begins.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// Others were waiting at our last release: so join the queue behind them, without an attempt
    /// before.
    pub fair_reentry: bool,
    /// One of them was woken, and goes first: it has so long to acquire the target.
    pub grace: Duration,
    /// How long the queue took for one waiter.
    pub pace: Option<Duration>,
    /// Several can hold the target: waiters far from their turn often see some permits available.
    pub shared: bool,
    /// The number of waiters a moment ago, if it is so large that a few more or less do not matter.
    pub waiting: Option<usize>,
}
