//! The limit of a wait, the conditions that end it early, and its result.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::bound;
use crate::context::Context;
use crate::error::{Answer, Error};
use crate::owner::Token;

/// The longest outage that a wait tolerates unless somebody says otherwise.
const DEFAULT_OUTAGE: Duration = Duration::from_secs(5);

/// How long to wait for a lock, what may end the wait early, and what it tolerates.
#[derive(Clone, Copy, Default)]
pub struct Wait<'a> {
    pub(super) limit: Option<Duration>,
    interrupted: Option<&'a dyn Fn() -> bool>,
    cancel: Option<&'a Cancel>,
    outage: Option<Duration>,
    on_outage: Option<&'a dyn Fn(&Error)>,
    event_loop: Option<usize>,
}

impl<'a> Wait<'a> {
    /// Wait without a limit. The call fails with [`ErrorKind::Deadlock`](crate::ErrorKind::Deadlock) if
    /// it would wait for what is [`Bound`](crate::Bound) to the waiting thread.
    pub const FOREVER: Wait<'static> = Wait {
        limit: None,
        interrupted: None,
        cancel: None,
        outage: None,
        on_outage: None,
        event_loop: None,
    };
    /// Make one attempt.
    pub const NEVER: Wait<'static> = Wait { limit: Some(Duration::ZERO), ..Wait::FOREVER };

    /// Wait at most this long. Zero: make one attempt.
    pub fn at_most(limit: Duration) -> Wait<'a> {
        Wait { limit: Some(limit), ..Wait::FOREVER }
    }

    /// Whether the limit is zero: one attempt, without waiting.
    pub fn is_once(&self) -> bool {
        self.limit == Some(Duration::ZERO)
    }

    /// Ends the wait when `interrupted` returns true. The callback is called about every 50 ms, and
    /// at once when a signal handler has run in the waiting thread. Prefer
    /// [`Wait::unless_cancelled`] where possible: a cancellation wakes the waiter, which sleeps
    /// until then.
    #[must_use]
    pub fn unless(mut self, interrupted: &'a dyn Fn() -> bool) -> Wait<'a> {
        self.interrupted = Some(interrupted);
        self
    }

    /// Ends the wait when the handle is cancelled. If it was cancelled before, the wait does not
    /// begin. The handle must belong to the client that waits.
    #[must_use]
    pub fn unless_cancelled(mut self, cancel: &'a Cancel) -> Wait<'a> {
        self.cancel = Some(cancel);
        self
    }

    /// Tolerates outages of up to `longest`, also one in which the wait begins, unless the URL has an
    /// `outage` of its own. The limit of the wait counts as before.
    #[must_use]
    pub fn through_outages(mut self, longest: Duration) -> Wait<'a> {
        self.outage = Some(longest);
        self
    }

    /// Calls `began`, with the reason, at the beginning of each outage that the wait is to tolerate.
    #[must_use]
    pub fn on_outage(mut self, began: &'a dyn Fn(&Error)) -> Wait<'a> {
        self.on_outage = Some(began);
        self
    }

    /// The wait keeps this event loop, which runs in the waiting thread, from going on: see
    /// [`Releaser::EventLoop`](bound::Releaser::EventLoop).
    #[must_use]
    pub fn in_event_loop(mut self, event_loop: usize) -> Wait<'a> {
        self.event_loop = Some(event_loop);
        self
    }

    /// What is released only after this wait, unless its limit or its cancel handle ends it.
    pub(crate) fn released_afterwards(&self) -> Vec<Token> {
        if self.limit.is_some() || self.cancel.is_some() {
            return Vec::new();
        }
        bound::tokens(self.event_loop)
    }

    /// The longest outage that the wait tolerates.
    pub(super) fn outage(&self, context: &Context) -> Duration {
        context.outage().or(self.outage).unwrap_or(DEFAULT_OUTAGE)
    }

    /// Whether the wait may begin in the outage that this error tells of. By default the error is
    /// the better answer: a wrong address is more likely. A server that takes no more connections
    /// is there, and others come to an end.
    pub(crate) fn may_begin(&self, error: &Error, context: &Context) -> bool {
        let may_always = self.outage.is_some() || context.outage().is_some();
        !self.is_once() && (may_always || error.is_crowded())
    }

    /// Called at the beginning of an outage.
    pub(super) fn tell_of_outage(&self, why: &Error) {
        if let Some(began) = self.on_outage {
            began(why);
        }
    }

    /// The limit of the wait; `None`: no limit.
    pub(crate) fn limit(&self) -> Option<Duration> {
        self.limit
    }

    /// Whether the cancel handle was cancelled.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(Cancel::is_cancelled)
    }

    /// Whether the caller has ended the wait, by the cancel handle or the callback.
    pub(super) fn is_interrupted(&self) -> bool {
        self.is_cancelled() || self.interrupted.is_some_and(|interrupted| interrupted())
    }

    /// Whether the wait has a callback, which must be polled because it cannot wake the waiter.
    pub(super) fn asks(&self) -> bool {
        self.interrupted.is_some()
    }
}

impl fmt::Debug for Wait<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait").field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// How a wait ended, unless it failed.
#[must_use = "only `Waited::Done` brings what was waited for"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited<T> {
    /// Acquired.
    Done(T),
    /// Another client holds it, and the call was to make one attempt.
    Busy,
    /// The limit passed.
    TimedOut,
    /// The wait was cancelled.
    Interrupted,
    /// The server gives no new grants yet, and the call was to make one attempt: see
    /// [`Answer::Recovering`].
    Recovering,
}

impl<T> Waited<T> {
    /// The acquired value, if there is one.
    pub fn done(self) -> Option<T> {
        match self {
            Waited::Done(value) => Some(value),
            _ => None,
        }
    }

    /// The acquired value, or the answer that explains why there is none.
    ///
    /// # Errors
    /// [`Answer::Busy`], [`Answer::TimedOut`], [`Answer::Interrupted`] or [`Answer::Recovering`].
    pub fn into_result(self) -> Result<T, Answer> {
        match self {
            Waited::Done(value) => Ok(value),
            Waited::Busy => Err(Answer::Busy),
            Waited::TimedOut => Err(Answer::TimedOut),
            Waited::Interrupted => Err(Answer::Interrupted),
            Waited::Recovering => Err(Answer::Recovering),
        }
    }
}

/// Ends waits from any thread: all waits that were or will be started with
/// [`Wait::unless_cancelled`] and this handle. Created by
/// [`Client::cancel_handle`](crate::Client::cancel_handle).
pub struct Cancel {
    context: Context,
    cancelled: AtomicBool,
}

impl Cancel {
    pub(crate) fn new(context: Context) -> Cancel {
        Cancel { context, cancelled: AtomicBool::new(false) }
    }

    /// Cancels the handle. A cancelled handle stays cancelled. A signal handler may call this.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        self.context.notifier().interrupt_all();
    }

    /// Whether the handle was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancel").field("cancelled", &self.is_cancelled()).finish_non_exhaustive()
    }
}
