//! The release of an acquisition that is left to the end of a transaction.
//!
//! `memlock.django` and `memlock.sqlalchemy` defer a release, and run it when the transaction has
//! ended. Until then the acquisition stays with its object: it is renewed, can be extended, and
//! answers `remaining` and `lost`.
//!
//! | state | release(), or the end of the `with` statement | the end of the transaction |
//! | --- | --- | --- |
//! | not deferred | releases | – |
//! | pending | releases nothing, and is then *left*: a second release() raises NotHeld | releases: *over* |
//! | over | does nothing, once: the transaction may end before the `with` statement | – |
//!
//! A release that is deferred several times, for transactions of several databases, is run when the
//! last of them has ended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memlock_core::{Answer, Loss, Release, Result};
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use crate::acquisition::Acquisition;
use crate::dealloc::release_on_dealloc;
use crate::leftover;
use crate::subject::Subject;

/// How many acquisitions that are over an object remembers, for a release() that may never come.
pub(crate) const REMEMBERED: usize = 256;

/// How an acquisition was made, and so whether an end of it is certain to come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// By a `with` statement.
    With,
    /// By a call.
    Call,
}

/// The state of one acquisition. Locked as `HeldLock` is: see `acquisition`.
#[derive(Default)]
pub(crate) struct Deferral(Mutex<State>);

#[derive(Default)]
struct State {
    /// The transactions that have not ended.
    pending: u32,
    is_left: bool,
    is_over: bool,
    /// The loss that the release has found.
    loss: Option<Loss>,
}

impl Deferral {
    fn begin(&self) {
        self.locked().pending += 1;
    }

    /// One transaction has ended. Returns whether it was the last.
    fn end_one(&self) -> bool {
        let mut state = self.locked();
        state.pending -= 1;
        state.is_over = state.pending == 0;
        state.is_over
    }

    /// The object is released. Returns whether this is the first time.
    pub(crate) fn leave(&self) -> bool {
        !std::mem::replace(&mut self.locked().is_left, true)
    }

    pub(crate) fn is_deferred(&self) -> bool {
        let state = self.locked();
        state.pending > 0 || state.is_over
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.locked().pending > 0
    }

    pub(crate) fn is_over(&self) -> bool {
        self.locked().is_over
    }

    pub(crate) fn is_left(&self) -> bool {
        self.locked().is_left
    }

    pub(crate) fn loss(&self) -> Option<Loss> {
        self.locked().loss
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
        held.deferral.locked().loss = held.lost().or(Some(found));
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
