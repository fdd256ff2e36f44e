//! An acquisition that a thread of the client drives, side by side with others.

use std::time::Duration;

use crate::clock::Moment;
use crate::error::Result;
use crate::fork;
use crate::report::Report;
use crate::wait::{Acquire, Interruption, Poller, Turn, Wait, Waited, Waiter};
use crate::wait_id::WaitId;
use crate::worker::{Completer, Job, Next, Reading, Turning};

use super::first_try::{self, First};

/// What can be acquired so.
pub(super) trait Awaited: Acquire<Guard: Send> + Send + 'static {
    /// Whether requests fail at once if the server did not answer a moment ago.
    fn skip_silent(&mut self, skips: bool);

    /// Ends the call: remembers what a lost reply may have left, and says why nothing was granted.
    fn settle(
        &mut self,
        limit: Option<Duration>,
        process: u64,
        waited: Result<Waited<Self::Guard>>,
    ) -> Result<std::result::Result<Self::Guard, Report>>;
}

/// One acquisition.
pub(super) struct Acquisition<A: Awaited> {
    stage: Stage<A>,
    limit: Option<Duration>,
    /// How often the client had been cancelled when the call began.
    cancellations: u64,
    process: u64,
    completer: Completer<std::result::Result<A::Guard, Report>>,
}

enum Stage<A: Awaited> {
    /// Nothing was sent yet.
    First(Box<A>),
    Waits(Box<Waiter<Box<A>>>),
    /// It is attempted again and again, without a queue.
    Retries(Poller, Box<A>),
    Over,
}

impl<A: Awaited> Acquisition<A> {
    /// `limit`: that of the wait; `None`: it has none; zero: a single attempt.
    pub(super) fn new(
        attempt: A,
        limit: Option<Duration>,
        completer: Completer<std::result::Result<A::Guard, Report>>,
    ) -> Acquisition<A> {
        Acquisition {
            cancellations: attempt.target().context.cancellations(),
            process: fork::generation(),
            stage: Stage::First(Box::new(attempt)),
            limit,
            completer,
        }
    }

    /// As [`Acquisition::new`], without a place in the queue.
    pub(super) fn retrying(
        attempt: A,
        limit: Option<Duration>,
        completer: Completer<std::result::Result<A::Guard, Report>>,
    ) -> Acquisition<A> {
        let context = &attempt.target().context;
        Acquisition {
            cancellations: context.cancellations(),
            process: fork::generation(),
            stage: Stage::Retries(Poller::new(context, limit), Box::new(attempt)),
            limit,
            completer,
        }
    }

    fn settle(&self, attempt: &mut A, waited: Result<Waited<A::Guard>>) -> Next {
        attempt.skip_silent(false);
        let waited = match waited {
            // Nobody waits for it any more.
            Ok(Waited::Done(guard)) if self.completer.is_cancelled() => {
                attempt.give_back(guard);
                Ok(Waited::Interrupted)
            }
            waited => waited,
        };
        let settled = attempt.settle(self.limit, self.process, waited);
        // It may have been cancelled at this very moment.
        if let Some(Ok(Ok(guard))) = self.completer.complete(settled) {
            attempt.give_back(guard);
        }
        Next::Done
    }
}

impl<A: Awaited> Job for Acquisition<A> {
    fn turn(&mut self, at: &Turning<'_>) -> Next {
        let is_cancelled = || self.completer.is_cancelled();
        let wait = match self.limit {
            None => Wait::FOREVER,
            Some(limit) => Wait::at_most(limit),
        };
        let wait = wait.unless(&is_cancelled);
        let context = at.context().clone();
        let interruption = Interruption::resumed(&wait, &context, self.cancellations);
        let mut waiter = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::First(mut attempt) => {
                if interruption.is_set() {
                    return self.settle(&mut attempt, Ok(Waited::Interrupted));
                }
                attempt.skip_silent(at.skips);
                let start = match first_try::attempt(attempt.as_mut(), &wait, &interruption) {
                    Ok(First::Waits(start)) => start,
                    Ok(First::Over(waited)) => return self.settle(&mut attempt, Ok(waited)),
                    Err(error) => return self.settle(&mut attempt, Err(error)),
                };
                match Waiter::enter(attempt, start, at.listener()) {
                    Ok(waiter) => Box::new(waiter),
                    Err(error) => {
                        self.completer.complete(Err(error));
                        return Next::Done;
                    }
                }
            }
            Stage::Waits(waiter) => waiter,
            Stage::Retries(mut poller, mut attempt) => {
                attempt.skip_silent(at.skips);
                let is_over = || interruption.is_set();
                let once = || attempt.attempt(false, &is_over);
                let waited = match poller.turn(&context, &interruption, once) {
                    Ok(Turn::Sleep(until)) => {
                        self.stage = Stage::Retries(poller, attempt);
                        return Next::Sleep(until);
                    }
                    Ok(Turn::Over(waited)) => Ok(waited),
                    Err(error) => Err(error),
                };
                return self.settle(&mut attempt, waited);
            }
            Stage::Over => return Next::Done,
        };
        waiter.acquire().skip_silent(at.skips);
        let waited = match waiter.turn(&interruption, at.take_ahead()) {
            Ok(Turn::Sleep(until)) => {
                let end = waiter.deadline();
                self.stage = Stage::Waits(waiter);
                return Next::SleepRoughly(until, end);
            }
            Ok(Turn::Over(waited)) => Ok(waited),
            Err(error) => Err(error),
        };
        waiter.end();
        self.settle(waiter.acquire(), waited)
    }

    fn may_wait(&self) -> bool {
        true
    }

    fn reading(&self, now: Moment) -> Option<Reading<'_>> {
        match &self.stage {
            Stage::Waits(waiter) => waiter.reading(now),
            _ => None,
        }
    }

    fn prepare_reading(&self) {
        if let Stage::Waits(waiter) = &self.stage {
            waiter.prepare_reading();
        }
    }

    fn ids(&self) -> &[WaitId] {
        match &self.stage {
            Stage::Waits(waiter) => waiter.ids(),
            _ => &[],
        }
    }
}
