//! `memlock.Semaphore`: has the interface of `threading.BoundedSemaphore`.

use std::sync::Arc;
use std::time::Duration;

use memlock_core::semaphore::Status;
use memlock_core::{Answer, Mismatch, Release, Report, Request, SetUp};
use pyo3::prelude::*;
use pyo3::types::PyString;
use pyo3::{PyTraverseError, PyVisit};

use crate::acquisition::Acquisition;
use crate::args::{Name, Seconds, Whole, effective_timeout};
use crate::call::wait_lost;
use crate::cancel::{self, CancelHandle};
use crate::context_exit::context_exit;
use crate::dealloc::release_on_dealloc;
use crate::deferral::Scope;
use crate::deferred_release::DeferredRelease;
use crate::error::raise;
use crate::held_permits::{HeldPermits, release_all};
use crate::holder::Holder;
use crate::permit::Permit;
use crate::renew::{Renew, loss_name};
use crate::shared_client::SharedClient;
use crate::subject::{Kind, Subject, creation_error};

/// A semaphore by its name: limits the number of permits that are held at the same time by all
/// processes. Made by Client.semaphore().
///
/// It is used like threading.BoundedSemaphore, in a `with` statement or by acquire() and release().
/// Threads may share the object, which may hold any number of acquisitions at once. "The
/// acquisition" to which release(), extend(), `remaining` and others apply is the latest one of the
/// calling thread or, in a thread that has none, the oldest one of the object. permit() returns an
/// acquisition as an object of its own.
///
/// A holder keeps its permits for at most the lease, unless it extends the lease; the permits of a
/// program that died become available when its lease ends. After that another holder may acquire
/// them: check `remaining`.
///
/// Inside a `with` statement that holds permits, a wait without a limit that could end only after that
/// statement raises Deadlock.
///
/// With renew=True leases are renewed automatically while permits are held, also those of permit(),
/// until they are released or lost.
///
/// An object that is deallocated while it holds permits releases them on a best-effort basis. In a
/// forked child it holds nothing, and neither releasing nor deallocating it affects what the parent
/// holds.
///
/// All users of a semaphore share its number of permits: see `permits`. An object that was made
/// without that number raises SemaphoreNotFound if the semaphore was not set up; one that was made
/// with another number follows the semaphore's, and logs a warning, unless its `mismatch` says
/// otherwise.
#[pyclass(frozen, weakref, module = "memlock")]
pub(crate) struct Semaphore {
    core: memlock_core::Semaphore,
    client: Arc<SharedClient>,
    subject: Subject,
    permits: Option<u32>,
    lease: Duration,
    timeout: Option<Duration>,
    renew: Option<Renew>,
    held_permits: Arc<HeldPermits>,
}

/// What to do about another number of permits, by its name.
pub(crate) struct OnMismatch(pub(crate) Mismatch);

impl FromPyObject<'_, '_> for OnMismatch {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, '_, PyAny>) -> PyResult<OnMismatch> {
        match &*given.cast::<PyString>()?.to_string_lossy() {
            "follow" => Ok(OnMismatch(Mismatch::Follow)),
            "resize" => Ok(OnMismatch(Mismatch::Resize)),
            "refuse" => Ok(OnMismatch(Mismatch::Refuse)),
            other => {
                let text =
                    format!("mismatch is {other:?}: give \"follow\", \"resize\" or \"refuse\".");
                Err(raise(given.py(), Answer::Invalid, text))
            }
        }
    }
}

impl Semaphore {
    pub(crate) fn new(
        py: Python<'_>,
        client: &Arc<SharedClient>,
        name: &Name,
        (permits, mismatch): (Option<Whole<u32>>, OnMismatch),
        lease: Seconds,
        timeout: Option<Seconds>,
        renew: Option<Renew>,
    ) -> PyResult<Semaphore> {
        let permits = permits.map(|permits| permits.0);
        let core = match permits {
            Some(permits) => client
                .core
                .semaphore(&name.0, permits, lease.0)
                .map(|core| core.with_mismatch(mismatch.0)),
            None => client.core.open_semaphore(&name.0, lease.0),
        };
        let core = core.map_err(|error| creation_error(py, client, "semaphore", name, &error))?;
        Ok(Semaphore {
            subject: Subject::new(client, Kind::Semaphore, name, core.subject()),
            core,
            client: Arc::clone(client),
            permits,
            lease: lease.0,
            timeout: timeout.map(|timeout| timeout.0),
            renew,
            held_permits: HeldPermits::new(py),
        })
    }

    fn take(
        &self,
        py: Python<'_>,
        timeout: Option<Duration>,
        request: Request,
        cancel: Option<&Bound<'_, CancelHandle>>,
        scope: Scope,
    ) -> PyResult<std::result::Result<Acquisition, Report>> {
        let cancel = cancel::given(py, cancel, &self.client)?;
        self.subject.wait(py, timeout, cancel, |wait| {
            Ok(match self.core.acquire_or_report(request, wait)? {
                Ok(permit) => Ok(Acquisition::new(Box::new(permit), self.renew.as_ref(), scope)?),
                Err(report) => Err(report),
            })
        })
    }

    /// Releases `n` acquisitions, or none if there are fewer.
    fn release_current(&self, py: Python<'_>, n: usize) -> PyResult<Release> {
        let Some(entries) = self.held_permits.take(py, n) else { return Ok(Release::NotHeld) };
        let (unreleased, outcome, failed) =
            self.subject.call_held(py, || Ok(release_all(entries)))?;
        self.held_permits.put_back(py, unreleased);
        let Err(error) = failed else { return Ok(outcome) };
        let error = self.subject.failed(py, &error);
        if outcome == Release::Lost {
            error.set_cause(py, Some(self.subject.raise_plain(py, Answer::Lost)));
        }
        Err(error)
    }

    /// Reads the state of the semaphore; or `unused`, if the semaphore was not set up and the
    /// number of its permits is known.
    fn read_status<T>(
        &self,
        py: Python<'_>,
        read: impl FnOnce(Status) -> T,
        unused: impl FnOnce(u32) -> T,
    ) -> PyResult<T> {
        match (self.subject.call(py, || self.core.status())?, self.permits) {
            (Some(status), _) => Ok(read(status)),
            (None, Some(permits)) => Ok(unused(permits)),
            (None, None) => Err(self.subject.not_found(py)),
        }
    }
}

#[pymethods]
impl Semaphore {
    /// Acquire one permit, or several together or not at all, and return whether they were
    /// acquired.
    ///
    /// blocking=False tries once, and returns False when they are not available. Otherwise it waits
    /// for `timeout` seconds, and returns False when they have passed. The defaults, -1 and None,
    /// mean the semaphore's own `timeout`, by default no limit.
    ///
    /// Waiters of higher `priority` are served first, and waiters of the same priority in FIFO
    /// order. A waiter that was overtaken 16 times is served next whatever its priority, unless it
    /// waits with ages=False. A waiter for several permits is not overtaken by waiters of the same
    /// or a lower priority that want fewer. Acquiring available permits takes one or two round
    /// trips.
    ///
    /// `cancel` is a CancelHandle of the same client, by which another thread may end the wait.
    ///
    /// Raises Interrupted when the wait was cancelled, and ClientClosed when the client is closed;
    /// with blocking=False or timeout=0, Recovering when the server gives no new permits yet;
    /// ValueError or OverflowError for a timeout that threading.Lock refuses too; Invalid for 0
    /// permits, for more than the semaphore has, and with mismatch="refuse" when the object was
    /// made with another number of permits than the semaphore has; SemaphoreNotFound when it was
    /// made without a number and the semaphore was not set up; Unreachable when there is no server
    /// at the first attempt, or for longer than 5 seconds while waiting; with `outage` in the URL,
    /// for longer than that, the first attempt included; OutcomeUnknown; ProtocolError. An exception
    /// from a signal handler, such as KeyboardInterrupt, ends a wait of the main thread within 100
    /// ms; nothing is held then, and no entry is left in the queue.
    #[pyo3(
        signature = (
            blocking = None, timeout = Some(-1.0), *, permits = Whole(1), priority = Whole(0),
            ages = true, cancel = None
        ),
        text_signature = "($self, blocking=True, timeout=-1, *, permits=1, priority=0, ages=True, cancel=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are Python's keyword arguments")]
    fn acquire(
        &self,
        py: Python<'_>,
        blocking: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        permits: Whole<u32>,
        priority: Whole<i64>,
        ages: bool,
        cancel: Option<&Bound<'_, CancelHandle>>,
    ) -> PyResult<bool> {
        let timeout = effective_timeout(py, blocking, timeout, self.timeout)?;
        let request = Request { permits: permits.0, priority: priority.0, ages };
        let held = self.take(py, timeout, request, cancel, Scope::Call)?;
        Ok(held.map(|held| self.held_permits.push(py, Arc::new(held))).is_ok())
    }

    /// Release the last `n` acquisitions, each in one or two round trips. Any thread may call this.
    ///
    /// An acquisition of several permits counts as one, and all its permits are released: so
    /// release() undoes acquire(), whatever its arguments. The latest acquisitions of the calling
    /// thread are released first; if it has fewer than `n`, also the oldest ones of the object. If
    /// the object holds fewer than `n`, none is released.
    ///
    /// Raises NotHeld, a RuntimeError, when the object holds fewer than `n`; LockLost when the
    /// lease of one had expired or the server had lost it, so that another holder may have had the
    /// permits meanwhile; Invalid, a ValueError, for n below 1. Shortly after the end of a lease
    /// that is not renewed the server may still have the permits for this holder: release() then
    /// succeeds, and no other holder has had them. After Unreachable, OutcomeUnknown and
    /// ProtocolError the acquisitions that could not be released are still held, and release() can
    /// be called again.
    ///
    /// An acquisition whose release was left to the end of a transaction counts, and is released
    /// there: see docs/transactions.md.
    #[pyo3(signature = (n = Whole(1)), text_signature = "($self, n=1)")]
    fn release(&self, py: Python<'_>, n: Whole<i64>) -> PyResult<()> {
        if n.0 < 1 {
            return Err(self.subject.raise(py, Answer::Invalid, "n must be 1 or more."));
        }
        self.subject.check_released(
            py,
            self.release_current(py, usize::try_from(n.0).unwrap_or(usize::MAX))?,
        )
    }

    /// Acquire as acquire() does, and return a Permit: this acquisition as an object of its own,
    /// for a `with` statement or to pass to another thread.
    ///
    /// The semaphore's own release(), extend() and `remaining` do not apply to it. Raises TimedOut
    /// when `timeout` seconds have passed, and otherwise as acquire(). timeout=0 tries once.
    #[pyo3(
        signature = (
            timeout = Some(-1.0), *, permits = Whole(1), priority = Whole(0), ages = true,
            cancel = None
        ),
        text_signature = "($self, timeout=-1, *, permits=1, priority=0, ages=True, cancel=None)"
    )]
    fn permit(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        permits: Whole<u32>,
        priority: Whole<i64>,
        ages: bool,
        cancel: Option<&Bound<'_, CancelHandle>>,
    ) -> PyResult<Permit> {
        let timeout = effective_timeout(py, None, timeout, self.timeout)?;
        let request = Request { permits: permits.0, priority: priority.0, ages };
        let held = self.take(py, timeout, request, cancel, Scope::Call)?;
        let held = held.map_err(|report| self.subject.timed_out(py, &report))?;
        let callbacks = self.renew.as_ref().map(|renew| renew.callbacks(py));
        let held = (held, request.permits);
        Ok(Permit::new(py, held, self.subject.clone(), self.lease, callbacks))
    }

    /// Give the acquisition a new lease, counted from now; by default as long as the first. One or
    /// two round trips.
    ///
    /// Raises NotHeld; LockLost, as release() does; Invalid for a lease out of range or with
    /// renew=True; Unreachable when nothing was changed; OutcomeUnknown or ProtocolError when it
    /// may have been: the old lease may then still apply, and `remaining` assumes the shorter of
    /// the two.
    #[pyo3(signature = (lease = None), text_signature = "($self, lease=None)")]
    fn extend(&self, py: Python<'_>, lease: Option<Seconds>) -> PyResult<()> {
        let held = self
            .held_permits
            .current(py)
            .ok_or_else(|| self.subject.raise_plain(py, Answer::NotHeld))?;
        let lease = lease.map_or(self.lease, |lease| lease.0);
        // The clone moves in there too: dropping the last one may send a request.
        self.subject.check_extended(py, self.subject.call_held(py, move || held.extend(lease))?)
    }

    /// The number of seconds for which the acquisition is guaranteed to be held, provided that the
    /// server does not lose it; 0.0 when it is not held. Counted locally, from before the request
    /// was sent. No I/O.
    #[getter]
    fn remaining(&self, py: Python<'_>) -> f64 {
        self.held_permits.remaining(py).unwrap_or_default().as_secs_f64()
    }

    /// Whether the acquisition is guaranteed to be held, provided that the server has not lost it.
    /// No I/O: decided by the clock and by what earlier calls and renewals have found.
    #[getter]
    fn is_held(&self, py: Python<'_>) -> bool {
        self.remaining(py) > 0.0
    }

    /// Ask the server whether the acquisition is still held. One round trip, or none when the lease
    /// has expired: the answer is then False, although release() and extend() may still succeed.
    ///
    /// A renewed acquisition that is not held any more is lost for good. Raises NotHeld when the
    /// object holds nothing; Unreachable or ProtocolError.
    fn check(&self, py: Python<'_>) -> PyResult<bool> {
        let held = self
            .held_permits
            .current(py)
            .ok_or_else(|| self.subject.raise_plain(py, Answer::NotHeld))?;
        self.subject.call_held(py, move || held.check())
    }

    /// Why the acquisition was lost; None while no loss is known. No I/O.
    ///
    /// "expired": the lease has expired, or was not renewed in time; "gone": the server lost the
    /// permits, or they were taken away; "max_hold": the maximum hold time has passed.
    #[getter]
    fn lost(&self, py: Python<'_>) -> Option<&'static str> {
        self.held_permits.lost(py).map(loss_name)
    }

    /// Wait for a loss for at most `timeout` seconds, and return the reason as `lost` does.
    ///
    /// Returns None when the time has passed, or when the permits were released meanwhile. An
    /// exception from a signal handler ends the wait in the main thread.
    #[pyo3(signature = (timeout = None), text_signature = "($self, timeout=None)")]
    fn wait_lost(
        &self,
        py: Python<'_>,
        timeout: Option<Seconds>,
    ) -> PyResult<Option<&'static str>> {
        match self.held_permits.current(py) {
            Some(held) => wait_lost(py, held, timeout.map(|timeout| timeout.0)),
            None => Ok(None),
        }
    }

    /// The number of permits of the semaphore, held or not, which may not be the number that this
    /// object was made with. One round trip.
    ///
    /// Raises SemaphoreNotFound when the semaphore was not set up and this object was made without
    /// the number; Unreachable or ProtocolError.
    #[getter]
    fn permits(&self, py: Python<'_>) -> PyResult<u32> {
        self.read_status(py, |status| status.permits, |permits| permits)
    }

    /// The number of permits that no process holds. A snapshot, for diagnostics and not for
    /// decisions. One round trip.
    ///
    /// Raises as `permits`.
    #[getter]
    fn available(&self, py: Python<'_>) -> PyResult<u32> {
        self.read_status(py, |status| status.available, |permits| permits)
    }

    /// A list of Holder, one for each acquisition, in all processes. A snapshot. One round trip.
    ///
    /// Raises as `permits`.
    fn holders(&self, py: Python<'_>) -> PyResult<Vec<Holder>> {
        self.read_status(
            py,
            |status| status.holders.into_iter().map(Holder::from).collect(),
            |_| Vec::new(),
        )
    }

    /// Change the number of permits for all processes, and return the previous number.
    ///
    /// The new number may be lower than the number of held permits: no holder loses any, and no
    /// permit is granted until enough were released.
    ///
    /// Raises Invalid for n below 1; SemaphoreNotFound when there is no such semaphore;
    /// Unreachable, OutcomeUnknown or ProtocolError.
    #[pyo3(text_signature = "($self, n)")]
    fn resize(&self, py: Python<'_>, n: Whole<u32>) -> PyResult<u32> {
        self.subject.call(py, || self.core.resize(n.0))?.ok_or_else(|| self.subject.not_found(py))
    }

    /// Set up the semaphore with the number of permits with which this object was made.
    ///
    /// The semaphore expires `life` (1 second to 366 days) after its last use. Returns True if it
    /// is new, False if it already existed; its life and number of permits are then unchanged,
    /// unless this object was made with mismatch="resize". If this is not called, the first process
    /// that acquires sets it up, with a lifetime of one day.
    ///
    /// Raises Invalid for a life out of range, and with mismatch="refuse" when the semaphore has
    /// another number of permits; SemaphoreNotFound when there is none and this object was made
    /// without a number; Unreachable, OutcomeUnknown or ProtocolError.
    #[pyo3(text_signature = "($self, life)")]
    fn set_up(&self, py: Python<'_>, life: Seconds) -> PyResult<bool> {
        Ok(self.subject.call(py, || self.core.set_up(life.0))? == SetUp::Created)
    }

    /// Remove the semaphore for all processes. Returns False if there was none.
    ///
    /// Holders lose their permits. Waiters whose object was made without the number of permits get
    /// SemaphoreNotFound.
    ///
    /// Raises Unreachable, OutcomeUnknown or ProtocolError.
    fn tear_down(&self, py: Python<'_>) -> PyResult<bool> {
        self.subject.call(py, || self.core.tear_down())
    }

    /// Acquire one permit with the semaphore's `timeout`, and return the semaphore itself.
    ///
    /// Raises TimedOut when the timeout expired, and otherwise as acquire().
    fn __enter__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let (py, semaphore) = (slf.py(), slf.get());
        match semaphore.take(py, semaphore.timeout, Request::default(), None, Scope::With)? {
            Ok(held) => {
                let held = Arc::new(held);
                held.enter(py);
                semaphore.held_permits.push(py, held);
            }
            Err(report) => return Err(semaphore.subject.timed_out(py, &report)),
        }
        Ok(slf)
    }

    /// Release the acquisition.
    ///
    /// When the body raised an exception, that exception propagates, and a failure to release is
    /// only logged, as a warning of the logger "memlock"; otherwise the failure is raised, as by
    /// release().
    #[pyo3(signature = (exc_type, exc_value, traceback, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: &Bound<'_, PyAny>,
        exc_value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (exc_value, traceback);
        context_exit(py, exc_type, &self.subject, || self.release_current(py, 1))
    }

    /// Leave the release to the returned object. For memlock.django and memlock.sqlalchemy.
    fn _defer_release(slf: &Bound<'_, Self>) -> PyResult<DeferredRelease> {
        let (py, semaphore) = (slf.py(), slf.get());
        let held = semaphore.held_permits.to_defer(py);
        let held = held.ok_or_else(|| semaphore.subject.raise_plain(py, Answer::NotHeld))?;
        let holder = Arc::clone(&semaphore.held_permits);
        Ok(DeferredRelease::new(slf.as_any(), held, Some(holder), &semaphore.subject))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.renew.as_ref().map_or(Ok(()), |renew| renew.traverse(&visit))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.held_permits.len(py) {
            0 => format!("<memlock.Semaphore {:?} not held>", self.subject.name),
            1 => format!("<memlock.Semaphore {:?} held once>", self.subject.name),
            times => format!("<memlock.Semaphore {:?} held {times} times>", self.subject.name),
        }
    }
}

impl Drop for Semaphore {
    fn drop(&mut self) {
        let held = self.held_permits.take_all();
        if !held.is_empty() {
            release_on_dealloc(|| drop(held));
        }
    }
}
