//! The deallocation of an object that still holds a lock or permits.
//!
//! It may happen at any moment: while an exception propagates, which is when an object that is
//! referenced only by a `with` statement is deallocated; in the garbage collector; and at
//! interpreter exit. Releasing runs Python code, the handlers of `logging`, which must find no
//! pending exception and must leave none. Therefore the pending exception is saved meanwhile, and
//! an exception of a handler goes to `sys.unraisablehook`, as for `__del__`.

use std::ptr::null_mut;

use pyo3::ffi::{PyErr_Fetch, PyErr_Restore, PyObject};
use pyo3::prelude::*;

use crate::log;

/// Releases what an object held, which may send requests to the server, with the GIL released.
pub(crate) fn release_on_dealloc(release: impl FnOnce() + Send) {
    Python::attach(|py| {
        let _pending = Pending::take(py);
        log::unraisable(|| py.detach(release));
    });
}

/// The pending exception, restored on drop.
struct Pending<'py> {
    kind: *mut PyObject,
    value: *mut PyObject,
    traceback: *mut PyObject,
    _py: Python<'py>,
}

impl<'py> Pending<'py> {
    /// Not `PyErr::take`, which resumes a panic that it finds.
    fn take(py: Python<'py>) -> Pending<'py> {
        let (mut kind, mut value, mut traceback) = (null_mut(), null_mut(), null_mut());
        // SAFETY: this thread is attached. The references are owned from here until they are
        // restored.
        unsafe { PyErr_Fetch(&raw mut kind, &raw mut value, &raw mut traceback) };
        Pending { kind, value, traceback, _py: py }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        // SAFETY: attached, and these are the references that were taken. All NULL means that no
        // exception was pending.
        unsafe { PyErr_Restore(self.kind, self.value, self.traceback) };
    }
}
