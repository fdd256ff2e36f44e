//! `memlock.CancelHandle`: ends single waits from another thread.

use std::sync::Arc;

use memlock_core::{Answer, Cancel};
use pyo3::prelude::*;

use crate::error::raise;
use crate::shared_client::SharedClient;

/// Ends waits from another thread: those that were passed this handle as `cancel`. Made by
/// Client.cancel_handle().
///
/// cancel() ends the waits that are in progress; a wait that begins later with this handle raises
/// Interrupted at once. Make a new handle for each task that may be cancelled. Any number of waits
/// may share a handle, and any number of threads may use it.
#[pyclass(frozen, weakref, module = "memlock")]
pub(crate) struct CancelHandle {
    core: Cancel,
    client: Arc<SharedClient>,
}

impl CancelHandle {
    pub(crate) fn new(client: &Arc<SharedClient>) -> CancelHandle {
        CancelHandle { core: client.core.cancel_handle(), client: Arc::clone(client) }
    }

    /// The core's handle, for a wait of this client.
    fn of(&self, py: Python<'_>, client: &Arc<SharedClient>) -> PyResult<&Cancel> {
        if Arc::ptr_eq(&self.client, client) {
            return Ok(&self.core);
        }
        let sentence = "The cancel handle belongs to another client: make one by cancel_handle() \
                        of the client that waits.";
        Err(raise(py, Answer::Invalid, sentence))
    }
}

/// The core's handle of the argument `cancel`.
pub(crate) fn given<'a>(
    py: Python<'_>,
    cancel: Option<&'a Bound<'_, CancelHandle>>,
    client: &Arc<SharedClient>,
) -> PyResult<Option<&'a Cancel>> {
    cancel.map(|cancel| cancel.get().of(py, client)).transpose()
}

#[pymethods]
impl CancelHandle {
    /// End all waits that use this handle, and every later one.
    ///
    /// Each wait raises Interrupted; nothing is held then, and no entry is left in the queue. A
    /// cancelled handle stays cancelled. Any thread may call this, also more than once. No I/O.
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
