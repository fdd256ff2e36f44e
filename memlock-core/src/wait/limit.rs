//! How long a wait may take, what may end it early, and how it ended.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::context::Context;
use crate::error::Answer;

/// How long to wait for a lock, and what may end the wait early.
#[derive(Clone, Copy, Default)]
pub struct Wait<'a> {
    pub(super) limit: Option<Duration>,
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
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(Cancel::is_cancelled)
    }

    /// Whether its caller wants it to end.
    pub(super) fn is_interrupted(&self) -> bool {
        self.is_cancelled() || self.interrupted.is_some_and(|interrupted| interrupted())
    }

    /// Whether a callback has to be asked, which cannot wake the waiter.
    pub(super) fn asks(&self) -> bool {
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
    /// Another client holds it, and the call was to try once.
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
/// this handle, and all that will be. Made by
/// [`Client::cancel_handle`](crate::Client::cancel_handle).
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
