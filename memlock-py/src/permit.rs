//! `memlock.Permit`: one acquisition of a semaphore.

use std::time::Duration;

use memlock_core::Answer;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use crate::args::Seconds;
use crate::call::wait_lost;
use crate::context_exit::context_exit;
use crate::dealloc::give_back;
use crate::held::Held;
use crate::renew::{Callbacks, why};
use crate::subject::Subject;

/// One acquisition of a semaphore, of one permit or several. Made by Semaphore.permit(), which
/// acquires.
///
/// It is held until release(), the end of its `with` statement, or the object's end; for its lease
/// at most, unless it is extended. Any thread may use it. In a forked child it holds nothing, and
/// neither releasing nor dropping it touches what the parent holds.
#[pyclass(frozen, weakref, module = "memlock")]
pub(crate) struct Permit {
    held: Held<memlock_core::Permit>,
    /// The semaphore.
    subject: Subject,
    lease: Duration,
    /// The semaphore's, if it is renewed.
    callbacks: Option<Callbacks>,
}

impl Permit {
    pub(crate) fn new(
        held: Held<memlock_core::Permit>,
        subject: Subject,
        lease: Duration,
        callbacks: Option<Callbacks>,
    ) -> Permit {
        Permit { held, subject, lease, callbacks }
    }
}

#[pymethods]
impl Permit {
    /// Gives the permits back, all together, in one or two round trips.
    ///
    /// Raises NotHeld, a RuntimeError, when they were released before; LockLost when the lease had
    /// run out or the server had lost them, so that another may have had them meanwhile. On
    /// Unreachable and OutcomeUnknown they are still held, and release() can be called again.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.subject.tell(py, self.subject.call_held(py, || self.held.release())?)
    }

    /// Gives the permits a new lease, counted from now; by default that of the semaphore. One or
    /// two round trips.
    ///
    /// Raises NotHeld; LockLost; Invalid for a lease out of range or with renew=True; Unreachable
    /// when nothing was changed, and OutcomeUnknown when it may have been: then the old lease may
    /// run on, and `remaining` counts on the shorter of the two.
    #[pyo3(signature = (lease = None), text_signature = "($self, lease=None)")]
    fn extend(&self, py: Python<'_>, lease: Option<Seconds>) -> PyResult<()> {
        let lease = lease.map_or(self.lease, |lease| lease.0);
        self.subject.tell_extended(py, self.subject.call_held(py, || self.held.extend(lease))?)
    }

    /// For how many seconds the permits are certainly ours yet, unless the server loses them; 0.0
    /// when they are not. Counted here, from before the request left, without any I/O.
    #[getter]
    fn remaining(&self) -> f64 {
        self.held.remaining().as_secs_f64()
    }

    /// Whether they are certainly ours, unless the server has lost them. No I/O: by the clock, and
    /// by what was found out so far.
    #[getter]
    fn is_held(&self) -> bool {
        self.remaining() > 0.0
    }

    /// Asks the server whether they are ours, in one round trip; what is renewed and is not ours
    /// any more is lost from then on.
    ///
    /// Raises NotHeld in a forked child; Unreachable or ProtocolError.
    fn check(&self, py: Python<'_>) -> PyResult<bool> {
        if !self.held.is_of_this_process() {
            return Err(self.subject.raise_plain(py, Answer::NotHeld));
        }
        self.subject.call_held(py, || self.held.check())
    }

    /// Why they were lost: "expired", when the lease was not renewed in time; "gone", when the
    /// server had lost them or somebody took them away; "max_hold". None while they are ours, as
    /// far as is known. No I/O.
    #[getter]
    fn lost(&self) -> Option<&'static str> {
        self.held.lost().map(why)
    }

    /// Waits until they are lost, for at most `timeout` seconds, and gives the reason as `lost`
    /// does; None when they have passed, or they were released meanwhile. An exception from a
    /// signal handler ends it in the main thread.
    #[pyo3(signature = (timeout = None), text_signature = "($self, timeout=None)")]
    fn wait_lost(
        &self,
        py: Python<'_>,
        timeout: Option<Seconds>,
    ) -> PyResult<Option<&'static str>> {
        wait_lost(py, &self.held, timeout.map(|timeout| timeout.0))
    }

    /// How many permits these are, or were.
    #[getter]
    fn permits(&self) -> u32 {
        let (_, permits) = self.held.facts;
        permits
    }

    /// Names this acquisition, as Holder.token does.
    #[getter]
    fn token(&self) -> String {
        let (token, _) = self.held.facts;
        token.to_string()
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Gives the permits back. When the body raised, its exception goes on, and a failure to
    /// release is only logged, as a warning of the logger "memlock"; otherwise it is raised, as by
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
        context_exit(py, exc_type, &self.subject, || {
            self.subject.call_held(py, || self.held.release())
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.callbacks.as_ref().map_or(Ok(()), |callbacks| callbacks.traverse(&visit))
    }

    fn __repr__(&self) -> String {
        let (name, permits, left) = (&self.subject.name, self.permits(), self.remaining());
        let state = if left > 0.0 { format!("{left:.1} s left") } else { "over".to_owned() };
        format!("<memlock.Permit of {name:?}, {permits} at once, {state}>")
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(permit) = self.held.empty() {
            give_back(permit);
        }
    }
}
