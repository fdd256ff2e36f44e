//! Acquiring permits.

use std::fmt;
use std::time::Duration;

use crate::error::{Answer, Error, ErrorKind, Result};
use crate::fork::{self, call_or};
use crate::guard::orphan;
use crate::primitives::acquisition::{Acquisition, Awaited};
use crate::primitives::first_try;
use crate::report::{self, ObservedHolder, Report};
use crate::target::Target;
use crate::wait::entries::Request;
use crate::wait::{Acquire, Wait, Waited};
use crate::worker::{self, Pending};

use super::attempt::{Attempt, Patience};
use super::handle::Semaphore;
use super::permit::Permit;
use super::snapshot::Refusal;
use super::wake::REAPER;

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
        acquired.map_err(|report| Error::new(ErrorKind::Interrupted, report.to_string()))
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
    /// [`ErrorKind::Invalid`] if no permits are requested, or more than the semaphore has; and if
    /// the semaphore exists with another number of permits than the handle was opened with.
    /// [`ErrorKind::NotFound`] if the handle was opened without a number, and the semaphore was not
    /// set up. [`ErrorKind::Unreachable`], [`ErrorKind::Unknown`] and [`ErrorKind::Protocol`] as
    /// for [`Mutex::lock_with`](crate::Mutex::lock_with).
    pub fn acquire_with(&self, request: Request, wait: &Wait<'_>) -> Result<Waited<Permit>> {
        self.wait_for(request, wait, &mut None)
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
        let mut snapshot = None;
        let waited = self.wait_for(request, wait, &mut snapshot)?;
        Ok(self.report(waited, request, wait.limit(), snapshot))
    }

    /// Acquires permits without blocking the caller: a thread of the client does it. `limit`: how long
    /// to wait at most; `None`: as long as necessary; zero: a single attempt. If nothing is acquired, the
    /// report tells why.
    ///
    /// The errors are those of [`Semaphore::acquire_with`]. Dropping the result before it has come cancels
    /// the call: permits that are granted all the same are released at once, and the next waiters are
    /// woken.
    pub fn acquire_async(
        &self,
        request: Request,
        limit: Option<Duration>,
    ) -> Pending<std::result::Result<Permit, Report>> {
        let Target { context, route, .. } = &self.target;
        let wait = limit.map_or(Wait::FOREVER, Wait::at_most);
        let attempt = at_least_one(request)
            .and_then(|()| {
                let patience = Patience::of(&wait, context.clock());
                Attempt::new(self.clone(), request, patience)
            })
            .map(Attempt::without_parking);
        worker::pending(context, *route, |completer| match attempt {
            Ok(attempt) => Box::new(Acquisition::new(attempt, limit, completer)),
            Err(error) => Box::new(worker::Failed::new(completer, self.said("Acquiring", error))),
        })
    }

    fn report(
        &self,
        waited: Waited<Permit>,
        request: Request,
        limit: Option<Duration>,
        snapshot: Option<Refusal>,
    ) -> std::result::Result<Permit, Report> {
        let answer = match waited.into_result() {
            Ok(permit) => return Ok(permit),
            Err(Answer::Recovering) => return Err(report::recovering(&self.subject())),
            Err(answer) => answer,
        };
        Err(self.refused(answer, request, limit, snapshot))
    }

    fn refused(
        &self,
        answer: Answer,
        request: Request,
        limit: Option<Duration>,
        snapshot: Option<Refusal>,
    ) -> Report {
        let (subject, wanted) = (self.subject(), Wanted(request.permits));
        let unknown = ObservedHolder::Unknown;
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
        report::refused(answer, limit, format_args!("{wanted} of the {subject}"), busy, holder)
    }

    /// `snapshot` is set to the semaphore's state at the last refusal, if there was one.
    fn wait_for(
        &self,
        request: Request,
        wait: &Wait<'_>,
        snapshot: &mut Option<Refusal>,
    ) -> Result<Waited<Permit>> {
        call_or(Waited::Interrupted, || {
            at_least_one(request)?;
            let process = fork::generation();
            let patience = Patience::of(wait, self.target.context.clock());
            let mut attempt = Attempt::new(self.clone(), request, patience)?;
            let waited = first_try::acquire(&mut attempt, wait);
            *snapshot = attempt.refusal();
            attempt.settle(process, waited)
        })
    }
}

fn at_least_one(request: Request) -> Result<()> {
    match request.permits {
        0 => Err(Error::invalid("No permits were asked for: ask for at least one.")),
        _ => Ok(()),
    }
}

impl Attempt {
    /// Ends the call: remembers what a lost reply may have left.
    fn settle(&self, process: u64, waited: Result<Waited<Permit>>) -> Result<Waited<Permit>> {
        let target = self.target();
        if let Some(until) = self.orphan_until()
            && !matches!(waited, Ok(Waited::Done(_)))
            && fork::generation() == process
        {
            orphan::remember(target, &REAPER, self.token(), until);
        }
        waited.map_err(|error| match error.kind() {
            ErrorKind::Unreachable if self.may_have_left_something() => {
                target.said("Acquiring", Error::unresolved(Some(error), "semaphore"))
            }
            _ => target.said("Acquiring", error),
        })
    }
}

impl Awaited for Attempt {
    fn skip_silent(&mut self, skips: bool) {
        Attempt::skip_silent(self, skips);
    }

    fn settle(
        &mut self,
        limit: Option<Duration>,
        process: u64,
        waited: Result<Waited<Permit>>,
    ) -> Result<std::result::Result<Permit, Report>> {
        let waited = Attempt::settle(self, process, waited)?;
        let (request, refusal) = (self.request(), self.refusal());
        let told = self.semaphore().report(waited, request, limit, refusal);
        Ok(told.map(Permit::for_calls))
    }
}
