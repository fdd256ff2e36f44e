//! `memlock.Counter`: a plain number of free permits, shared with programs that do not use memlock.

use std::sync::Arc;

use memlock_core::Waited;
use pyo3::prelude::*;

use crate::args::{Name, Whole, effective_timeout};
use crate::cancel::{self, CancelHandle};
use crate::shared_client::SharedClient;
use crate::subject::{Kind, Subject, creation_error};

/// A plain counter of free permits: one item with their number in decimal, for use beside programs
/// that already have such an item. Made by Client.counter(). Prefer a Semaphore where you can.
///
/// It has no leases. The item contains the number of free permits and nothing about the holders of
/// the others: the permits of a program that died are lost until the item is written anew, and a
/// program that releases twice creates a permit. Therefore there is no `with`, and the object holds
/// nothing. Any thread and any forked child may use it.
///
/// Every call may raise Unreachable, when nothing was changed, and ProtocolError, also when the
/// item is not a number. Calls that change the item may raise OutcomeUnknown: the request was sent
/// and no reply arrived, so a permit may have been taken that no caller holds.
#[pyclass(frozen, module = "memlock")]
pub(crate) struct Counter {
    core: memlock_core::Counter,
    client: Arc<SharedClient>,
    subject: Subject,
}

/// A permit that was taken, until the caller receives it.
struct Taken<'a>(Option<&'a memlock_core::Counter>);

impl Taken<'_> {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // A signal handler's exception or the interpreter's exit ended the call; a failure here
        // cannot be reported as well.
        let _ = self.0.map(memlock_core::Counter::release);
    }
}

impl Counter {
    pub(crate) fn new(py: Python<'_>, client: &Arc<SharedClient>, key: &Name) -> PyResult<Counter> {
        let fail = |error| creation_error(py, client, "counter", key, &error);
        let core = client.core.counter(&key.0).map_err(fail)?;
        let subject = Subject::new(client, Kind::Counter, key, core.subject());
        Ok(Counter { core, client: Arc::clone(client), subject })
    }
}

#[pymethods]
impl Counter {
    /// Create the item with `n` free permits. The item never expires.
    ///
    /// Returns False if there is already such an item, which stays unchanged.
    #[pyo3(text_signature = "($self, n)")]
    fn set_up(&self, py: Python<'_>, n: Whole<u64>) -> PyResult<bool> {
        self.subject.call(py, || self.core.set_up(n.0))
    }

    /// Acquire one permit if one is free, and return whether one was. Two round trips.
    ///
    /// Raises CounterNotFound when there is no such item.
    fn try_acquire(&self, py: Python<'_>) -> PyResult<bool> {
        let taken = self
            .subject
            .acquire(py, || Ok(self.core.try_acquire()?.then(|| Taken(Some(&self.core)))))?;
        Ok(taken.map(Taken::keep).is_some())
    }

    /// Wait for one permit for `timeout` seconds, or without a limit for -1 or None.
    ///
    /// Returns False if the timeout expired. Without `priority` it retries, with pauses that grow
    /// from 1 to 50 ms, without a queue or fairness. With `priority` it waits in a queue, in the
    /// order of priority, higher first, and of arrival among equals; a release by memlock, in any
    /// process, wakes the first waiter. Callers that retry may overtake the queue.
    ///
    /// `cancel` is a CancelHandle of the same client, by which another thread may end the wait.
    ///
    /// Raises Interrupted when the wait was cancelled; ValueError or OverflowError for a timeout
    /// that threading.Lock refuses too; CounterNotFound when there is no such item. An exception
    /// from a signal handler, such as KeyboardInterrupt, ends a wait of the main thread within 100
    /// ms.
    #[pyo3(
        signature = (timeout = Some(-1.0), priority = None, *, cancel = None),
        text_signature = "($self, timeout=-1, priority=None, *, cancel=None)"
    )]
    fn acquire(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        priority: Option<Whole<i64>>,
        cancel: Option<&Bound<'_, CancelHandle>>,
    ) -> PyResult<bool> {
        let timeout = effective_timeout(py, None, timeout, None)?;
        let cancel = cancel::given(py, cancel, &self.client)?;
        let taken = self.subject.wait(py, timeout, cancel, |wait| {
            let waited = match priority {
                Some(priority) => self.core.acquire_parked(priority.0, wait)?,
                None => self.core.acquire_retrying(wait)?,
            };
            Ok(match waited {
                Waited::Done(()) => Ok(Taken(Some(&self.core))),
                waited => Err(self.core.report(waited, wait)),
            })
        })?;
        Ok(taken.map(Taken::keep).is_ok())
    }

    /// Release one permit, whichever process acquired it, wake the first waiter in the queue, and
    /// return the number of free permits. One round trip.
    ///
    /// Raises CounterNotFound when there is no such item. After OutcomeUnknown the permit may or
    /// may not have been released.
    fn release(&self, py: Python<'_>) -> PyResult<u64> {
        self.subject.call(py, || self.core.release())
    }

    /// The number of free permits. A snapshot. One round trip.
    ///
    /// Raises CounterNotFound when there is no such item.
    #[getter]
    fn available(&self, py: Python<'_>) -> PyResult<u64> {
        let available = self.subject.call(py, || self.core.available())?;
        available.ok_or_else(|| self.subject.not_found(py))
    }

    fn __repr__(&self) -> String {
        format!("<memlock.Counter {:?}>", self.subject.name)
    }
}
