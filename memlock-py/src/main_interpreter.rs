//! The module works in the main interpreter only: exit, signals, logging and the exceptions are
//! state of the process, which belongs to one interpreter.

use pyo3::exceptions::PyImportError;
use pyo3::ffi::{PyInterpreterState_Get, PyInterpreterState_GetID};
use pyo3::prelude::*;

/// The id of the main interpreter. `PyInterpreterState_Main` is not part of the stable ABI.
const MAIN: i64 = 0;

/// Raises ImportError in any other interpreter.
pub(crate) fn check(py: Python<'_>) -> PyResult<()> {
    // SAFETY: this thread is attached, so it has an interpreter.
    match unsafe { PyInterpreterState_GetID(PyInterpreterState_Get()) } {
        MAIN => Ok(()),
        -1 => Err(PyErr::fetch(py)),
        _ => Err(PyImportError::new_err(
            "memlock does not support sub-interpreters: import it in the main interpreter.",
        )),
    }
}
