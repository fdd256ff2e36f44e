//! The terms in which a plan and its driver speak.

use std::time::Duration;

use crate::clock::Moment;

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Try to take it.
    Try,
    /// Enter the queue, and look at it in the same packet.
    Join {
        /// Before all others: our turn had come, and somebody was faster.
        front: bool,
    },
    /// Look, without taking anything.
    Look {
        /// At what is waited for.
        lock: bool,
        /// At our place in the queue.
        queue: bool,
    },
    /// Leave the queue, for it is too long, and go on waiting.
    StepOut,
    /// Leave the queue for good, and pass on a wake-up that came too late.
    Leave,
    /// Sleep until the wake-up arrives, something else happens, or this moment has come.
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

/// What is waited for, as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetState {
    /// It can be had.
    Free,
    /// This waiter has it already.
    Ours,
    /// It is reserved for us: nobody else can have it.
    Reserved,
    /// It is reserved for another waiter, which is taken for dead after this time.
    Awaited(Duration),
    /// Somebody has it.
    Held {
        /// Whether its holder will wake when it lets go.
        notifies: bool,
        /// How long the server keeps it for the holder, at most.
        left: Option<Duration>,
    },
}

impl TargetState {
    /// Whether a try is worth it.
    pub(super) fn can_be_had(self) -> bool {
        matches!(self, TargetState::Free | TargetState::Ours)
    }
}

/// Our place in the queue, as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueView {
    /// We stand in it, and so many before us.
    Successors(usize),
    /// We do not stand in it: we were taken off, to be woken.
    Gone {
        /// How many stand in it.
        waiters: usize,
    },
    /// There is no queue: the server lost it.
    Lost,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The try failed: somebody has it.
    Missed,
    /// We stand in the queue.
    Joined {
        /// How many stand before us.
        before: usize,
        /// What is waited for, seen after we had joined.
        lock: TargetState,
    },
    /// The server has no room for us in the queue.
    Refused,
    /// What a look showed of what it was to show.
    Looked {
        /// Our place in the queue.
        stand: Option<QueueView>,
        /// What is waited for.
        lock: Option<TargetState>,
    },
    /// We were woken, to come when this time has passed.
    Woken(Duration),
    /// We left the queue, or are not in it.
    Left,
    /// The wait was cancelled.
    Interrupted,
    /// The server could not be reached.
    Failed,
}

/// What is known of the queue before a wait begins.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// Others were waiting when we let go the last time: so stand behind them at once, instead of
    /// trying first.
    pub fair_reentry: bool,
    /// One of them is off the queue and comes first; it has so long to come.
    pub invited: Duration,
    /// How long the queue took for one waiter.
    pub pace: Option<Duration>,
    /// There are several permits: to waiters far from their turn some often seem available.
    pub shared: bool,
    /// The number of waiters a moment ago, if it is so large that a few more or less do not matter.
    pub waiting: Option<usize>,
}
