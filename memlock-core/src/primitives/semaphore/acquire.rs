//! Acquiring permits.

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use crate::error::{Answer, Error, ErrorKind, Result};
use crate::guard::orphan;
use crate::primitives::first_try;
use crate::report::{self, ObservedHolder, Report};
use crate::wait::entries::Request;
use crate::wait::{Wait, Waited};

use super::attempt::Attempt;
use super::handle::Semaphore;
use super::permit::Permit;
use super::snapshot::Refusal;
use super::wake::{REAPER, local_waiters};

/// A number of permits, for people.
struct Wanted(u32);

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("a permit"),
            permits => write!(f, "{permits} permits"),
        }
    }
}

impl Semaphore {
    /// Acquires one permit, waiting as long as necessary.
    ///
    /// # Errors
    /// See [`Semaphore::acquire_with`]; and [`ErrorKind::Interrupted`] if
    /// [`Client::cancel_waits`](crate::Client::cancel_waits) ended the wait.
    pub fn acquire(&self) -> Result<Permit> {
        let acquired = self.acquire_or_report(Request::default(), &Wait::FOREVER)?;
        acquired.map_err(|report| report.into_error(ErrorKind::Interrupted))
    }

    /// Tries once to acquire one permit; `None` if none is available, or if the available ones are
    /// reserved for a waiter for several.
    ///
    /// # Errors
    /// See [`Semaphore::acquire_with`].
    pub fn try_acquire(&self) -> Result<Option<Permit>> {
        Ok(self.acquire_with(Request::default(), &Wait::NEVER)?.done())
    }

    /// Waits at most `limit` for one permit; `None` if the limit has passed.
    ///
    /// # Errors
    /// See [`Semaphore::acquire_with`].
    pub fn acquire_for(&self, limit: Duration) -> Result<Option<Permit>> {
        Ok(self.acquire_with(Request::default(), &Wait::at_most(limit))?.done())
    }

    /// Waits as specified by `wait` for the permits in `request`. Several permits are acquired
    /// together or not at all, and waiters of higher priority come first. If the permits are
    /// available, this takes one or two round trips.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if no permits are requested, or more than the semaphore has; and with
    /// [`Mismatch::Refuse`](super::Mismatch), if the semaphore exists with another number of
    /// permits than the handle was opened with.
    /// [`ErrorKind::NotFound`] if the handle was opened without a number, and the semaphore was not
    /// set up. [`ErrorKind::Unreachable`], [`ErrorKind::Unknown`] and [`ErrorKind::Protocol`] as
    /// for [`Mutex::lock_with`](crate::Mutex::lock_with).
    pub fn acquire_with(&self, request: Request, wait: &Wait<'_>) -> Result<Waited<Permit>> {
        self.wait_for(request, wait, &Cell::default())
    }

    /// As [`Semaphore::acquire_with`]. If nothing is acquired, the report names the semaphore, the
    /// server, the number of available permits, and a holder that was seen.
    ///
    /// # Errors
    /// As [`Semaphore::acquire_with`].
    pub fn acquire_or_report(
        &self,
        request: Request,
        wait: &Wait<'_>,
    ) -> Result<std::result::Result<Permit, Report>> {
        let snapshot = Cell::default();
        match self.wait_for(request, wait, &snapshot) {
            Ok(Waited::Done(permit)) => Ok(Ok(permit)),
            Ok(Waited::Busy) => Ok(Err(self.refused(Answer::Busy, request, wait, snapshot.take()))),
            Ok(Waited::TimedOut) => {
                Ok(Err(self.refused(Answer::TimedOut, request, wait, snapshot.take())))
            }
            Ok(Waited::Interrupted) => {
                Ok(Err(self.refused(Answer::Interrupted, request, wait, snapshot.take())))
            }
            Ok(Waited::Recovering) => Ok(Err(report::recovering(&self.target))),
            Err(error) => Err(error),
        }
    }

    fn refused(
        &self,
        answer: Answer,
        request: Request,
        wait: &Wait<'_>,
        snapshot: Option<Refusal>,
    ) -> Report {
        let (subject, wanted) = (self.subject(), Wanted(request.permits));
        // Without a record: it may be put back.
        let recovery = self.recovery().map(|recovery| ObservedHolder::Recovering(recovery.left));
        let unknown = recovery.unwrap_or(ObservedHolder::Unknown);
        let holder = snapshot.as_ref().map_or(&unknown, |snapshot| &snapshot.holder);
        let busy = || match &snapshot {
            Some(Refusal { available, permits: all, .. }) if *available < request.permits => {
                let verb = if request.permits == 1 { "was" } else { "were" };
                format!(
                    "The {subject} has {available} of {all} permits available, and {wanted} {verb} \
                     asked for"
                )
            }
            Some(Refusal { available, permits: all, is_full: true, .. }) => {
                format!(
                    "The {subject} has {available} of {all} permits available, but cannot have \
                     another holder"
                )
            }
            Some(_) => {
                format!(
                    "The permits of the {subject} that are available are reserved for another \
                     waiter"
                )
            }
            None => format!("The {subject} has not {wanted} available"),
        };
        report::refused(
            &subject,
            answer,
            wait.limit(),
            format_args!("{wanted} of the {subject}"),
            busy,
            holder,
        )
    }

    /// `snapshot` is set to the semaphore's state at the last refusal, if there was one.
    fn wait_for(
        &self,
        request: Request,
        wait: &Wait<'_>,
        snapshot: &Cell<Option<Refusal>>,
    ) -> Result<Waited<Permit>> {
        if request.permits == 0 {
            let error = Error::invalid("None were asked for: ask for at least one.");
            return Err(self.said("Acquiring permits of", error));
        }
        // A single attempt needs no limit.
        let limit = wait.limit().filter(|_| !wait.is_once());
        let until = limit.map(|limit| self.target.now() + limit);
        let once =
            wait.is_once().then(|| Semaphore { target: self.target.for_try(), ..self.clone() });
        let semaphore = once.as_ref().unwrap_or(self);
        let mut attempt = Attempt::new(semaphore, request, until, snapshot)?;
        let local = local_waiters(&self.target.context);
        let mut waited = first_try::acquire(&mut attempt, wait, &semaphore.target, local);
        if let (Some(_), Ok(Waited::Done(permit))) = (&once, &mut waited) {
            permit.kind.semaphore = self.clone();
        }
        if let Ok(waited) = &waited {
            let granted = if let Waited::Done(permit) = waited { Some(permit.token) } else { None };
            attempt.end(granted);
        }
        if let Some(until) = attempt.orphan_until()
            && !matches!(waited, Ok(Waited::Done(_)))
        {
            orphan::remember(&self.target, &REAPER, attempt.token(), until);
        }
        waited.map_err(|error| match error.kind() {
            ErrorKind::Unreachable if attempt.may_have_left_something() => {
                self.said("Acquiring permits of", Error::unresolved(Some(error), "semaphore"))
            }
            _ => self.said("Acquiring permits of", error),
        })
    }
}
