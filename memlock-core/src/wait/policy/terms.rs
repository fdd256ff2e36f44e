//! The vocabulary of a policy and its driver.

use std::time::Duration;

use crate::clock::Moment;

/// The next step of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Try to acquire the target.
    Try,
    /// Join the queue, and inspect the target in the same request.
    Join {
        /// In front of all others: this waiter's turn had come, and another client was faster.
        front: bool,
    },
    /// Inspect without acquiring.
    Inspect {
        /// The target.
        target: bool,
        /// This waiter's position in the queue.
        queue: bool,
    },
    /// Leave the queue, which is too long, and continue to wait.
    StepOut,
    /// Leave the queue for good, and forward a wake-up that came too late.
    Leave,
    /// Sleep until a wake-up or an interruption, at most until this moment.
    Sleep(Moment),
    /// The wait is over.
    End(Ended),
}

/// How a wait ended without acquiring the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The limit passed.
    TimedOut,
    /// The wait was cancelled.
    Interrupted,
    /// The server was unreachable for too long.
    Outage,
}

/// The state of the target at the last inspection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetState {
    /// The target is available.
    Free,
    /// The target was granted to this waiter by a request whose reply was lost.
    Ours,
    /// The target is reserved for this waiter: no other waiter can acquire it.
    Reserved,
    /// The target is reserved for another waiter, which is presumed dead after this time.
    ReservedForOther(Duration),
    /// Other holders have the target.
    Held {
        /// Whether the holder will send a wake-up when it releases the target.
        notifies: bool,
        /// The time until the holder's item expires.
        left: Option<Duration>,
    },
}

impl TargetState {
    /// The state of a target without an item. `recovers`: for how long the server gives nothing new
    /// yet, which is as a holder whose lease ends then.
    pub(crate) fn of_missing(recovers: Option<Duration>) -> TargetState {
        let held = |left| TargetState::Held { notifies: true, left: Some(left) };
        recovers.map_or(TargetState::Free, held)
    }

    /// Whether an attempt may succeed.
    pub(super) fn is_available(self) -> bool {
        matches!(self, TargetState::Free | TargetState::Ours)
    }
}

/// This waiter's position in the queue at the last inspection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueView {
    /// In the queue, behind this many others.
    Behind(usize),
    /// Not in the queue: the entry was removed, and a wake-up was sent.
    Removed {
        /// How many waiters are in the queue.
        waiters: usize,
    },
    /// There is no queue: the server lost it.
    Lost,
}

/// An event of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The attempt failed: other holders have the target.
    Missed,
    /// This waiter has joined the queue.
    Joined {
        /// How many waiters are before this one.
        before: usize,
        /// The state of the target after the join.
        state: TargetState,
    },
    /// The server has no room for this waiter's entry.
    Refused,
    /// The result of an inspection. A part that was not inspected is `None`.
    Inspected {
        /// This waiter's position in the queue.
        view: Option<QueueView>,
        /// The state of the target.
        state: Option<TargetState>,
    },
    /// A wake-up was received: this waiter is to try after this delay.
    Woken(Duration),
    /// This waiter has left the queue, or was not in it.
    Left,
    /// The wait was cancelled.
    Interrupted,
    /// The server could not be reached.
    Failed,
    /// The server takes no more connections.
    Crowded,
}

/// What a process knows of the queue when a wait begins.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// Others were waiting at this process's last release: join the queue behind them, without an
    /// attempt before.
    pub fair_reentry: bool,
    /// How long the waiter that this process woke has to acquire the target first.
    pub grace: Duration,
    /// How long the queue took to advance by one waiter.
    pub pace: Option<Duration>,
    /// Several holders can hold the target: waiters far from their turn often see available
    /// permits.
    pub shared: bool,
    /// The number of waiters a moment ago, if it is so large that a few more or less do not matter.
    pub waiting: Option<usize>,
}
