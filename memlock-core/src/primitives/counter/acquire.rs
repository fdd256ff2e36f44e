//! Acquiring in a queue, and without blocking the caller.

use std::time::Duration;

use super::{Counter, TakenPermit, local_waiters};
use crate::error::{Error, ErrorKind, Result};
use crate::fork::call_or;
use crate::primitives::acquisition::{Acquisition, Awaited};
use crate::primitives::first_try;
use crate::report::Report;
use crate::store::{Op, Reply};
use crate::target::Target;
use crate::wait::entries::Request;
use crate::wait::local::LocalWaiters;
use crate::wait::policy::TargetState;
use crate::wait::queue::{Capacity, Queue};
use crate::wait::{Acquire, QueueReceipt, Wait, Waited};
use crate::wait_id::WaitId;
use crate::worker::{self, Pending};

impl Counter {
    /// Waits in a queue for one permit, by priority, and among equals in the order of arrival. A
    /// release by memlock, in any process, wakes the next waiter. Clients that retry may overtake
    /// parked ones.
    ///
    /// # Errors
    /// As [`Counter::try_acquire`].
    pub fn acquire_parked(&self, priority: i64, wait: &Wait<'_>) -> Result<Waited<()>> {
        call_or(Waited::Interrupted, || {
            let mut attempt = Attempt::new(self.clone(), priority);
            let waited = first_try::acquire(&mut attempt, wait);
            Ok(waited.map_err(|error| self.said("Acquiring", error))?.map(TakenPermit::keep))
        })
    }

    /// As [`Counter::acquire_parked`], without blocking the caller: a thread of the client does it.
    /// `limit`: how long to wait at most; `None`: as long as necessary; zero: a single attempt. If
    /// nothing is acquired, the report tells why.
    ///
    /// The errors are those of [`Counter::try_acquire`]. Dropping the result before it has come cancels
    /// the call: a permit that is taken all the same is released.
    pub fn acquire_async(
        &self,
        priority: i64,
        limit: Option<Duration>,
    ) -> Pending<std::result::Result<TakenPermit, Report>> {
        worker::pending(&self.target.context, self.target.route, |completer| {
            let attempt = Attempt::new(self.clone(), priority);
            Box::new(Acquisition::new(attempt, limit, completer))
        })
    }

    /// As [`Counter::acquire_async`], by retries without a queue, as [`Counter::acquire_retrying`].
    pub fn acquire_retrying_async(
        &self,
        limit: Option<Duration>,
    ) -> Pending<std::result::Result<TakenPermit, Report>> {
        worker::pending(&self.target.context, self.target.route, |completer| {
            let attempt = Attempt::new(self.clone(), 0);
            Box::new(Acquisition::retrying(attempt, limit, completer))
        })
    }
}

/// One acquisition.
struct Attempt {
    counter: Counter,
    priority: i64,
    /// Whether the waiter was in the queue as one that may not receive its wake-up.
    unproven: bool,
}

impl Attempt {
    fn new(counter: Counter, priority: i64) -> Attempt {
        Attempt { counter, priority, unproven: false }
    }
}

impl Acquire for Attempt {
    type HandoffRequest = ();
    type Guard = TakenPermit;

    fn target(&self) -> &Target {
        &self.counter.target
    }

    fn local(&self) -> &LocalWaiters<(), TakenPermit> {
        local_waiters(&self.counter.target.context)
    }

    fn attempt(
        &mut self,
        _called: bool,
        _enough: &dyn Fn() -> bool,
    ) -> Result<Option<TakenPermit>> {
        Ok(self.counter.take()?.map(|()| TakenPermit(Some(self.counter.clone()))))
    }

    /// Permits are indistinguishable, so a lost reply cannot be resolved.
    fn can_go_on_after(&self, error: &Error) -> bool {
        error.kind() == ErrorKind::Unreachable
    }

    fn inspection(&self) -> Op<'_> {
        Op::get(&self.counter.target.key)
    }

    fn state(&mut self, reply: &Reply, _first: bool) -> Result<TargetState> {
        Ok(match self.capacity(reply, false) {
            Some(_) => TargetState::Free,
            // A plain client that releases wakes no waiter.
            None => TargetState::Held { notifies: false, left: None },
        })
    }

    fn capacity(&mut self, reply: &Reply, _leaves: bool) -> Option<Capacity> {
        let free = match reply {
            Reply::Value(item) => self.counter.number(item).unwrap_or(u64::MAX),
            // The next attempt reports that the item is missing.
            _ => u64::MAX,
        };
        let permits = u32::try_from(free).unwrap_or(u32::MAX);
        (permits > 0).then_some(Capacity { permits, shared: true })
    }

    fn request(&self) -> Request {
        Request { priority: self.priority, ..Request::default() }
    }

    fn joined(&mut self, _ids: &[WaitId], proven: bool) {
        self.unproven |= !proven;
    }

    fn handoff_request(&self) {}

    fn will_wait(&mut self) {}

    fn acquired_from_queue(
        &mut self,
        _taken: &mut TakenPermit,
        QueueReceipt { ids, unwoken, .. }: QueueReceipt,
    ) {
        // The releaser that woke this waiter removes its entry, if the entry said that the waiter
        // is reachable.
        if !(unwoken || self.unproven) || ids.is_empty() {
            return;
        }
        let target @ Target { context, key, .. } = &self.counter.target;
        let queue = Queue { target, key: &key.waiters() };
        if let Err(failure) = queue.leave(&ids, Op::get(key)) {
            log::debug!("The queue could not be left: {}", failure.error);
            local_waiters(context).leave_behind(key, &ids);
        }
    }

    fn give_back(&mut self, taken: TakenPermit) {
        drop(taken);
    }
}

impl Awaited for Attempt {
    fn skip_silent(&mut self, skips: bool) {
        let context = &mut self.counter.target.context;
        *context = if skips { context.for_drop() } else { context.for_calls() };
    }

    fn settle(
        &mut self,
        limit: Option<Duration>,
        _process: u64,
        waited: Result<Waited<TakenPermit>>,
    ) -> Result<std::result::Result<TakenPermit, Report>> {
        let waited = waited.map_err(|error| self.counter.said("Acquiring", error))?;
        Ok(waited.into_result().map_err(|answer| self.counter.refused(answer, limit)))
    }
}
