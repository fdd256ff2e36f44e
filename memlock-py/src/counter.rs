//! `memlock.Counter`: a plain number of free permits, shared with programs that know nothing of
//! memlock.

use std::sync::Arc;

use memlock_core::Waited;
use pyo3::prelude::*;

use crate::args::{Name, Whole, limit};
use crate::cancel::{self, CancelHandle};
use crate::subject::{Kind, Shared, Subject, unmade};

/// A plain counter of free permits: one item that holds their number in decimal, for use together
/// with programs that already do so. Made by Client.counter(). Take a Semaphore wherever you are
/// free to.
///
/// It has no leases. The item says how many permits are free and nothing about who has the others:
/// those of a program that dies are gone until somebody writes the item anew, and whoever releases
/// twice makes one up. So there is no `with`, and the object holds nothing. Any thread and any
/// forked child may use it.
///
/// Besides what is said of each, every call may raise Unreachable, when nothing was changed, and
/// ProtocolError, also when the item is not a number; and those that change it OutcomeUnknown:
/// sent, and no reply came, so that a permit may be gone that nobody has.
#[pyclass(frozen, module = "memlock")]
pub(crate) struct Counter {
    core: memlock_core::Counter,
    client: Arc<Shared>,
    subject: Subject,
}

/// A permit that was taken, until somebody is told so.
struct Taken<'a>(Option<&'a memlock_core::Counter>);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // A signal's exception came instead; there is nobody to tell that this failed too.
        let _ = self.0.map(memlock_core::Counter::release);
    }
}

impl Counter {
    pub(crate) fn new(py: Python<'_>, client: &Arc<Shared>, key: &Name) -> PyResult<Counter> {
        let fail = |error| unmade(py, client, "counter", key, &error);
        let core = client.core.counter(&key.0).map_err(fail)?;
        let item = client.core.keys().plain(&key.0).map_err(fail)?;
        let subject = Subject::new(client, Kind::Counter, key, &item);
        Ok(Counter { core, client: Arc::clone(client), subject })
    }
}

#[pymethods]
impl Counter {
    /// Creates the item with `n` free permits, to be kept for ever. False when there is one, which
    /// is left as it is.
    #[pyo3(text_signature = "($self, n)")]
    fn set_up(&self, py: Python<'_>, n: Whole<u64>) -> PyResult<bool> {
        self.subject.call(py, || self.core.set_up(n.0))
    }

    /// Takes one permit if there is one: True, or False when none is free. Two round trips.
    ///
    /// Raises CounterNotFound when there is no such item.
    fn try_acquire(&self, py: Python<'_>) -> PyResult<bool> {
        self.subject.call(py, || self.core.try_acquire())
    }

    /// Waits for one permit, for `timeout` seconds, or for ever where that is -1 or None: True, or
    /// False when they passed.
    ///
    /// Without a `priority` it tries again and again, with pauses that grow from 1 to 50 ms: who is
    /// lucky comes first. With one it is parked in a queue, those of higher priority first and
    /// among equals who came first; whoever releases by memlock, in any process, wakes the next
    /// one. Who is parked comes after those who retry and happen to be faster.
    ///
    /// `cancel` is a CancelHandle of the same client, by which another thread may end the wait.
    ///
    /// Raises Interrupted when the wait was cancelled; ValueError or OverflowError for a timeout
    /// that threading.Lock would not take either; CounterNotFound when there is no such item. An
    /// exception from a signal handler, such as KeyboardInterrupt, ends a wait of the main thread
    /// within 100 ms.
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
        let limit = limit(py, None, timeout, None)?;
        let cancel = cancel::given(py, cancel, &self.client)?;
        let taken = self.subject.wait(py, limit, cancel, |wait| {
            let waited = match priority {
                Some(priority) => self.core.acquire_parked(priority.0, wait)?,
                None => self.core.acquire_retrying(wait)?,
            };
            Ok(match waited {
                Waited::Done(()) => Waited::Done(Taken(Some(&self.core))),
                Waited::Interrupted => Waited::Interrupted,
                Waited::Busy | Waited::TimedOut => Waited::TimedOut,
            })
        })?;
        Ok(taken.map(|mut taken| taken.0 = None).is_some())
    }

    /// Gives one permit back, whoever took it, wakes the next one who is parked, and gives how many
    /// are free now. One round trip.
    ///
    /// Raises CounterNotFound when there is no such item. After OutcomeUnknown it may or may not
    /// have been given back.
    fn release(&self, py: Python<'_>) -> PyResult<u64> {
        self.subject.call(py, || self.core.release())
    }

    /// How many permits are free. One round trip. The answer is already past.
    ///
    /// Raises CounterNotFound when there is no such item.
    #[getter]
    fn available(&self, py: Python<'_>) -> PyResult<u64> {
        let available = self.subject.call(py, || self.core.available())?;
        available.ok_or_else(|| self.subject.missing(py))
    }

    fn __repr__(&self) -> String {
        format!("<memlock.Counter {:?}>", self.subject.name)
    }
}
