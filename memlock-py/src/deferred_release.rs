//! The object that runs a release at the end of a transaction. See `deferral`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memlock_core::{Answer, Loss, Release, Result};
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use crate::acquisition::Acquisition;
use crate::dealloc::release_on_dealloc;
use crate::leftover;
use crate::subject::Subject;

/// What holds an acquisition whose release is deferred.
pub(crate) trait Defers: Send + Sync {
    /// The release is about to be run. Nobody else has the lock yet.
    fn is_over(&self, py: Python<'_>, held: &Arc<Acquisition>);
}

/// The release of one acquisition, which the end of a transaction runs. Deallocating it runs it,
/// too: then the transaction cannot end any more, because its connection is gone.
#[pyclass(frozen, module = "memlock._memlock")]
pub(crate) struct DeferredRelease {
    held: Arc<Acquisition>,
    holder: Option<Arc<dyn Defers>>,
    subject: Subject,
    is_done: AtomicBool,
    /// The mutex, semaphore or permit: its callbacks are needed until the release.
    object: Py<PyAny>,
}

impl DeferredRelease {
    /// Defers the release of what `object` holds.
    pub(crate) fn new(
        object: &Bound<'_, PyAny>,
        held: Arc<Acquisition>,
        holder: Option<Arc<dyn Defers>>,
        subject: &Subject,
    ) -> DeferredRelease {
        let py = object.py();
        held.deferral.begin();
        // The object may let go of the acquisition before the transaction ends.
        leftover::add(py, &held);
        let (subject, object) = (subject.clone(), object.clone().unbind());
        DeferredRelease { held, holder, subject, is_done: AtomicBool::new(false), object }
    }

    /// Whether the acquisition is to be released now.
    fn is_last(&self, py: Python<'_>) -> bool {
        if self.is_done.swap(true, Ordering::Relaxed) || !self.held.deferral.end_one() {
            return false;
        }
        if let Some(holder) = &self.holder {
            holder.is_over(py, &self.held);
        }
        true
    }
}

#[pymethods]
impl DeferredRelease {
    /// Release, once. Failures are logged, as warnings of the logger "memlock".
    fn release(&self, py: Python<'_>) {
        if !self.is_last(py) {
            return;
        }
        let failed = match self.subject.call_held(py, || Ok(end(&self.held))) {
            Ok(Ok(Release::Lost)) => self.subject.raise_plain(py, Answer::Lost),
            // Not held: by a forked child, or because the interpreter exits.
            Ok(Ok(Release::Released | Release::NotHeld)) => return,
            Ok(Err(error)) => self.subject.failed(py, &error),
            Err(error) => error,
        };
        if let Err(unlogged) = log(py, &failed) {
            unlogged.write_unraisable(py, None);
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        visit.call(&self.object)
    }
}

impl Drop for DeferredRelease {
    fn drop(&mut self) {
        if Python::attach(|py| self.is_last(py)) {
            release_on_dealloc(|| _ = end(&self.held));
        }
    }
}

/// Releases, and records a loss. What cannot be released is dropped, so that the next contact with
/// the server, or the end of the lease, frees it. Sends requests: to be called without the GIL.
fn end(held: &Acquisition) -> Result<Release> {
    let was_expired = held.remaining().is_zero();
    let released = held.release();
    if released.is_err() {
        held.let_go();
    }
    if matches!(released, Ok(Release::Lost)) {
        let found = if was_expired { Loss::Expired } else { Loss::Gone };
        held.deferral.record_loss(held.lost().unwrap_or(found));
    }
    released
}

fn log(py: Python<'_>, error: &PyErr) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", ("memlock",))?;
    let kind = error.get_type(py).name()?;
    let text = "Not released after the end of the transaction. %s: %s";
    logger.call_method1("warning", (text, kind, error.value(py)))?;
    Ok(())
}
