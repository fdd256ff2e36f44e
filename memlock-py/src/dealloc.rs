//! The deallocation of an object that still holds something.
//!
//! It may happen at any moment: while an exception is on its way up, which an object that only a
//! `with` statement holds does not survive; in the garbage collector; and at the interpreter's end.
//! Releasing runs Python code, the handlers of `logging`, which must find no exception pending and
//! must leave none behind. So the pending one is put aside meanwhile, and what a handler raises
//! goes to `sys.unraisablehook`, as it does for `__del__`.

use std::ptr::null_mut;

use pyo3::ffi::{PyErr_Fetch, PyErr_Restore, PyObject};
use pyo3::prelude::*;

use crate::log;

/// Drops what an object held, which may speak to the server: meanwhile others may run.
pub(crate) fn give_back(held: impl Send) {
    Python::attach(|py| {
        let _pending = Pending::take(py);
        log::unraisable(|| py.detach(|| drop(held)));
    });
}

/// The exception that was pending, until this is dropped.
struct Pending<'py> {
    kind: *mut PyObject,
    value: *mut PyObject,
    traceback: *mut PyObject,
    _py: Python<'py>,
}

impl<'py> Pending<'py> {
    /// Not `PyErr::take`, which goes on with a panic that it finds.
    fn take(py: Python<'py>) -> Pending<'py> {
        let (mut kind, mut value, mut traceback) = (null_mut(), null_mut(), null_mut());
        // SAFETY: this thread is attached. The references are ours from now on, until they are
        // given back.
        unsafe { PyErr_Fetch(&raw mut kind, &raw mut value, &raw mut traceback) };
        Pending { kind, value, traceback, _py: py }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        // SAFETY: attached, and these are the references that were taken. All NULL means that
        // nothing was pending.
        unsafe { PyErr_Restore(self.kind, self.value, self.traceback) };
    }
}
