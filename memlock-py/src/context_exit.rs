//! The end of an acquisition: what is raised, and what is logged where a `with` must not hide its
//! body's exception.

use memlock_core::Release;
use pyo3::prelude::*;

use crate::subject::Subject;

/// Ends a `with` by `release`. When the body raised, its exception goes on, and a failure to
/// release is only logged.
pub(crate) fn context_exit(
    py: Python<'_>,
    exc_type: &Bound<'_, PyAny>,
    subject: &Subject,
    release: impl FnOnce() -> PyResult<Release>,
) -> PyResult<()> {
    let released = release();
    if exc_type.is_none() {
        return subject.tell(py, released?);
    }
    let failed = match released {
        // A forked child leaves its parent's `with` so: nothing was left held, nothing is to be
        // said.
        Ok(Release::NotHeld) => return Ok(()),
        released => released.and_then(|released| subject.tell(py, released)),
    };
    if let Err(error) = failed
        && let Err(unlogged) = log(py, &error)
    {
        unlogged.write_unraisable(py, None);
    }
    Ok(())
}

fn log(py: Python<'_>, error: &PyErr) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", ("memlock",))?;
    let kind = error.get_type(py).name()?;
    let text = "Not released after the body of its `with` statement raised. %s: %s";
    logger.call_method1("warning", (text, kind, error.value(py)))?;
    Ok(())
}
