//! `memlock.CancelHandle`: ends single waits from another thread.

use std::sync::Arc;

use memlock_core::{Answer, Cancel};
use pyo3::prelude::*;

use crate::error::raise;
use crate::subject::Shared;

/// Ends waits from another thread: those that were given this handle as `cancel`. Made by
/// Client.cancel_handle().
///
/// cancel() ends the waits that are going on, and all that begin later with this handle raise
/// Interrupted at once. So it is made anew for each task that is to be cancelled. Any number of
/// waits may share a handle.
#[pyclass(frozen, weakref, module = "memlock")]
pub(crate) struct CancelHandle {
    core: Cancel,
    client: Arc<Shared>,
}

impl CancelHandle {
    pub(crate) fn new(client: &Arc<Shared>) -> CancelHandle {
        CancelHandle { core: client.core.cancel_handle(), client: Arc::clone(client) }
    }

    /// For a wait of this client.
    fn of(&self, py: Python<'_>, client: &Arc<Shared>) -> PyResult<&Cancel> {
        if Arc::ptr_eq(&self.client, client) {
            return Ok(&self.core);
        }
        let sentence = "The cancel handle is of another client: make one by the client that waits.";
        Err(raise(py, Answer::Invalid, sentence))
    }
}

/// The core's handle of what was given as `cancel`.
pub(crate) fn given<'a>(
    py: Python<'_>,
    cancel: Option<&'a Bound<'_, CancelHandle>>,
    client: &Arc<Shared>,
) -> PyResult<Option<&'a Cancel>> {
    cancel.map(|cancel| cancel.get().of(py, client)).transpose()
}

#[pymethods]
impl CancelHandle {
    /// Ends the waits, and all that begin later with this handle: each raises Interrupted, with
    /// nothing held and nothing left in the queue. Done once and for all; any thread may, also more
    /// than once. No I/O.
    fn cancel(&self) {
        self.core.cancel();
    }

    /// Whether cancel() was called.
    #[getter]
    fn cancelled(&self) -> bool {
        self.core.is_cancelled()
    }

    fn __repr__(&self) -> &'static str {
        if self.core.is_cancelled() {
            "<memlock.CancelHandle cancelled>"
        } else {
            "<memlock.CancelHandle not cancelled>"
        }
    }
}
