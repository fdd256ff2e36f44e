//! Waiting: in a queue, rung by a bell, and asking the server only where that fails.
//!
//! What is waited for is an item that its holder lets go of. Beside it is the queue, which is
//! advice: the item alone decides. A waiter is in one of these states:
//!
//! | a waiter | what is true | who may move it on |
//! | --- | --- | --- |
//! | has not joined | nobody knows of it | itself, by trying, or by joining and looking in one packet |
//! | in the queue | its line is in the item, and its bell is open under that line's id | whoever lets go, by ringing it and taking its line off; itself, by a look that finds its turn come |
//! | rung | its line is off, or about to be; it owes the next one a ring until it has tried | itself: it takes what it waits for, or joins again in front |
//! | out | it got it, or gave up; no line of it is left, or it is remembered as left behind | itself, by taking its line off; whoever rings it in vain, by ringing the next |
//!
//! What can go wrong between them, and what then holds. Each row has its test in `tests/waiting`,
//! and the simulation walks through all of them:
//!
//! | race | why it does no harm | test |
//! | --- | --- | --- |
//! | let go of between our try and our joining (the lost wake-up) | the look is behind the line in one packet: either it sees the item gone, or whoever lets go later sees the line | `a_release_at_any_step_of_joining_is_not_missed` |
//! | the holder does not know that anybody waits | the waiter changes its record, so that its release is answered "changed" and it reads why | `a_lock_that_nobody_wants_costs_two_commands`, `a_holder_whose_grant_was_read_back_knows_of_its_waiters` |
//! | the releaser dies before it rings | the first in the queue looks once a second | `a_releaser_that_dies_before_it_rings_is_noticed` |
//! | the head is dead, on this host | its port is closed, which the ringer hears at once: it rings the next | `a_dead_head_is_passed` |
//! | the head is dead, elsewhere | whoever sees the item free and others before it waits 25 to 40 ms for them, and takes it | `a_head_that_died_elsewhere_is_noticed` |
//! | a bell is lost, or they all are | looks; after the first bell that was missed, they come more often | `lost_bells_cost_time_and_nothing_else`, `without_bells_a_short_wait_ends_soon_and_a_long_one_somewhat_later` |
//! | somebody barges in before the one that was rung | that joins again in front of all others | `a_rung_waiter_that_missed_is_the_next` |
//! | the one that was rung ahead is not the next any more | what the release reads of the queue says who is, and that one is rung as well | `whoever_is_next_by_now_is_rung_as_well`, `ringing_ahead_loses_nobody` |
//! | whoever rang is slow to write, and the one it rang is done already | that one finds its line there, and writes first; if others stand before it, it rings the one behind it too | `a_holder_whose_entry_is_still_there_rings_the_one_behind_it_too` |
//! | two ring at once | lines are taken off by id and by compare-and-swap: one of them reads anew. Where several can be let in, the second one rings another | `two_releasers_at_once_lose_nobody`, `as_many_are_rung_as_there_is_room_for` |
//! | the queue is evicted or flushed | those who look find that they are not in it, and join in front | `a_lost_queue_is_built_anew` |
//! | the queue is full, or garbage | newcomers poll until there is room; whoever writes it drops what cannot be read | `a_queue_that_is_full_takes_no_more_until_there_is_room`, `a_queue_that_is_garbage_is_cleaned_by_whoever_writes_it` |
//! | the limit passes while the bell rings | whoever leaves looks once more behind its leaving, and rings the next | `a_bell_that_comes_too_late_is_passed_on` |
//! | the first one wants more than there is room for | nobody behind it is rung, and newcomers stand behind it | `a_waiter_for_many_is_not_overtaken_by_waiters_for_one` |
mod acquire;
mod driver;
pub mod entries;
pub(crate) mod local;
pub mod policy;
mod poll;
pub(crate) mod queue;
mod wake;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::context::Context;
use crate::error::Answer;

pub(crate) use acquire::{Acquire, QueueReceipt};
pub(crate) use driver::wait_for;
pub(crate) use poll::poll;
pub(crate) use wake::{Reserve, Waker};

/// How long to wait for a lock, and what may end the wait early.
#[derive(Clone, Copy, Default)]
pub struct Wait<'a> {
    limit: Option<Duration>,
    interrupted: Option<&'a dyn Fn() -> bool>,
    cancel: Option<&'a Cancel>,
}

impl<'a> Wait<'a> {
    /// Wait for as long as it takes.
    pub const FOREVER: Wait<'static> = Wait { limit: None, interrupted: None, cancel: None };
    /// Try once.
    pub const NEVER: Wait<'static> = Wait { limit: Some(Duration::ZERO), ..Wait::FOREVER };

    /// Wait at most this long. Zero means: try once.
    pub fn at_most(limit: Duration) -> Wait<'a> {
        Wait { limit: Some(limit), ..Wait::FOREVER }
    }

    /// Whether it means: try once.
    pub fn is_once(&self) -> bool {
        self.limit == Some(Duration::ZERO)
    }

    /// Ends the wait when `interrupted` answers true. It is asked about every 50 ms, and at once
    /// when a signal handler ran in the waiting thread. Where it can be, [`Wait::unless_cancelled`]
    /// is better: it wakes the waiter, and lets it sleep until then.
    #[must_use]
    pub fn unless(mut self, interrupted: &'a dyn Fn() -> bool) -> Wait<'a> {
        self.interrupted = Some(interrupted);
        self
    }

    /// Ends the wait when the handle is cancelled, before it begins if that was done already. The
    /// handle must be one of the client that waits.
    #[must_use]
    pub fn unless_cancelled(mut self, cancel: &'a Cancel) -> Wait<'a> {
        self.cancel = Some(cancel);
        self
    }

    /// How long it waits at most; `None`: for as long as it takes.
    pub(crate) fn limit(&self) -> Option<Duration> {
        self.limit
    }

    /// Whether its handle was cancelled.
    fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(Cancel::is_cancelled)
    }

    /// Whether somebody wants it ended.
    fn is_interrupted(&self) -> bool {
        self.is_cancelled() || self.interrupted.is_some_and(|interrupted| interrupted())
    }

    /// Whether somebody has to be asked, who cannot wake the waiter.
    fn asks(&self) -> bool {
        self.interrupted.is_some()
    }
}

impl fmt::Debug for Wait<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait").field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// How a wait ended, other than by a failure.
#[must_use = "only `Waited::Done` brings what was waited for"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited<T> {
    /// We have it.
    Done(T),
    /// Somebody else has it, and the call was told to try once.
    Busy,
    /// The limit passed.
    TimedOut,
    /// The wait was cancelled.
    Interrupted,
}

impl<T> Waited<T> {
    /// What was waited for, if it came.
    pub fn done(self) -> Option<T> {
        match self {
            Waited::Done(value) => Some(value),
            _ => None,
        }
    }

    /// What was waited for, or the answer that came instead.
    ///
    /// # Errors
    /// [`Answer::Busy`], [`Answer::TimedOut`] or [`Answer::Interrupted`].
    pub fn into_result(self) -> Result<T, Answer> {
        match self {
            Waited::Done(value) => Ok(value),
            Waited::Busy => Err(Answer::Busy),
            Waited::TimedOut => Err(Answer::TimedOut),
            Waited::Interrupted => Err(Answer::Interrupted),
        }
    }
}

/// Ends single waits, from any thread: those that were begun with [`Wait::unless_cancelled`] of
/// this handle, and all that will be. Made by [`Client::cancel_handle`](crate::Client::cancel_handle).
pub struct Cancel {
    context: Context,
    cancelled: AtomicBool,
}

impl Cancel {
    pub(crate) fn new(context: Context) -> Cancel {
        Cancel { context, cancelled: AtomicBool::new(false) }
    }

    /// Ends them. It is done once and for all. A signal handler may call it.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        self.context.notifier().interrupt_all();
    }

    /// Whether they were ended.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancel").field("cancelled", &self.is_cancelled()).finish_non_exhaustive()
    }
}
