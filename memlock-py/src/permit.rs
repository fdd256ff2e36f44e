//! `memlock.Permit`: one acquisition of a semaphore.

use std::sync::Arc;
use std::time::Duration;

use memlock_core::{Answer, Release};
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use crate::acquisition::Acquisition;
use crate::args::Seconds;
use crate::call::wait_lost;
use crate::context_exit::context_exit;
use crate::dealloc::release_on_dealloc;
use crate::deferred_release::DeferredRelease;
use crate::leftover;
use crate::renew::{Callbacks, loss_name};
use crate::subject::Subject;

/// One acquisition of a semaphore, of one permit or several. Made by Semaphore.permit(), which
/// acquires.
///
/// The permits are held until release(), the end of the `with` statement, or the deallocation of
/// the object, and for at most the lease, unless it is extended. Any thread may use the object. In
/// a forked child it holds nothing, and neither releasing nor deallocating it affects what the
/// parent holds.
#[pyclass(frozen, weakref, module = "memlock")]
pub(crate) struct Permit {
    held: Arc<Acquisition>,
    permits: u32,
    /// The semaphore.
    subject: Subject,
    lease: Duration,
    /// Those of the semaphore, if the lease is renewed.
    callbacks: Option<Callbacks>,
}

impl Permit {
    pub(crate) fn new(
        py: Python<'_>,
        (held, permits): (Acquisition, u32),
        subject: Subject,
        lease: Duration,
        callbacks: Option<Callbacks>,
    ) -> Permit {
        let held = Arc::new(held);
        leftover::add(py, &held);
        Permit { held, permits, subject, lease, callbacks }
    }

    fn release_unless_deferred(&self, py: Python<'_>) -> PyResult<Release> {
        if self.held.deferral.is_deferred() {
            return Ok(Release::Released);
        }
        self.subject.call_held(py, || self.held.release())
    }
}

#[pymethods]
impl Permit {
    /// Release the permits, all together, in one or two round trips.
    ///
    /// Raises NotHeld, a RuntimeError, when they were already released; LockLost when the lease had
    /// expired or the server had lost them, so that another holder may have had them meanwhile.
    /// Shortly after the end of a lease that is not renewed the server may still have them for this
    /// holder: release() then succeeds, and no other holder has had them. After Unreachable,
    /// OutcomeUnknown and ProtocolError they are still held, and release() can be called again.
    ///
    /// Does nothing when the release was left to the end of a transaction: see
    /// docs/transactions.md.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.subject.check_released(py, self.release_unless_deferred(py)?)
    }

    /// Give the permits a new lease, counted from now; by default that of the semaphore. One or two
    /// round trips.
    ///
    /// Raises NotHeld; LockLost, as release() does; Invalid for a lease out of range or with
    /// renew=True; Unreachable when nothing was changed; OutcomeUnknown or ProtocolError when it
    /// may have been: the old lease may then still apply, and `remaining` assumes the shorter of
    /// the two.
    #[pyo3(signature = (lease = None), text_signature = "($self, lease=None)")]
    fn extend(&self, py: Python<'_>, lease: Option<Seconds>) -> PyResult<()> {
        let lease = lease.map_or(self.lease, |lease| lease.0);
        self.subject.check_extended(py, self.subject.call_held(py, || self.held.extend(lease))?)
    }

    /// The number of seconds for which the permits are guaranteed to be held, provided that the
    /// server does not lose them; 0.0 when they are not held. Counted locally, from before the
    /// request was sent. No I/O.
    #[getter]
    fn remaining(&self) -> f64 {
        self.held.remaining().as_secs_f64()
    }

    /// Whether the permits are guaranteed to be held, provided that the server has not lost them.
    /// No I/O: decided by the clock and by what earlier calls and renewals have found.
    #[getter]
    fn is_held(&self) -> bool {
        self.remaining() > 0.0
    }

    /// Ask the server whether the permits are still held. One round trip, or none when the lease
    /// has expired: the answer is then False, although release() and extend() may still succeed.
    ///
    /// Renewed permits that are not held any more are lost for good. Raises NotHeld in a forked
    /// child; Unreachable or ProtocolError.
    fn check(&self, py: Python<'_>) -> PyResult<bool> {
        if !self.held.is_of_this_process() {
            return Err(self.subject.raise_plain(py, Answer::NotHeld));
        }
        self.subject.call_held(py, || self.held.check())
    }

    /// Why the permits were lost; None while no loss is known. No I/O.
    ///
    /// "expired": the lease has expired, or was not renewed in time; "gone": the server lost the
    /// permits, or they were taken away; "max_hold": the maximum hold time has passed.
    #[getter]
    fn lost(&self) -> Option<&'static str> {
        self.held.lost().or_else(|| self.held.deferral.loss()).map(loss_name)
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
        wait_lost(py, &*self.held, timeout.map(|timeout| timeout.0))
    }

    /// The number of permits that were acquired.
    #[getter]
    fn permits(&self) -> u32 {
        self.permits
    }

    /// Identifies this acquisition, as Holder.token does.
    #[getter]
    fn token(&self) -> String {
        self.held.token.to_string()
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf.get().held.enter(slf.py());
        slf
    }

    /// Release the permits.
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
        context_exit(py, exc_type, &self.subject, || self.release_unless_deferred(py))
    }

    /// Leave the release to the returned object. For memlock.django and memlock.sqlalchemy.
    fn _defer_release(slf: &Bound<'_, Self>) -> PyResult<DeferredRelease> {
        let (py, permit) = (slf.py(), slf.get());
        if permit.held.deferral.is_over() || !permit.held.is_unreleased() {
            return Err(permit.subject.raise_plain(py, Answer::NotHeld));
        }
        let held = Arc::clone(&permit.held);
        Ok(DeferredRelease::new(slf.as_any(), held, None, &permit.subject))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.callbacks.as_ref().map_or(Ok(()), |callbacks| callbacks.traverse(&visit))
    }

    fn __repr__(&self) -> String {
        let (name, permits, left) = (&self.subject.name, self.permits(), self.remaining());
        let state = if left > 0.0 {
            format!("{left:.1} s left")
        } else {
            "lease expired or released".to_owned()
        };
        format!("<memlock.Permit {name:?}, permits={permits}, {state}>")
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.held.may_hold() {
            release_on_dealloc(|| self.held.let_go());
        }
    }
}
