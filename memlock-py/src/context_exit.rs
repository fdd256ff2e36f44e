//! The end of a `with` statement: what is raised, and what is only logged in order not to hide an
//! exception of the body.

use memlock_core::Release;
use pyo3::prelude::*;

use crate::subject::Subject;

/// Ends a `with` statement by `release`. When the body raised an exception, that exception
/// propagates, and a failure to release is only logged.
pub(crate) fn context_exit(
    py: Python<'_>,
    exc_type: &Bound<'_, PyAny>,
    subject: &Subject,
    release: impl FnOnce() -> PyResult<Release>,
) -> PyResult<()> {
    let released = release();
    if exc_type.is_none() {
        return subject.check_released(py, released?);
    }
    let failed = match released {
        // A forked child leaves its parent's `with` statement. It holds nothing, so there is
        // nothing to report.
        Ok(Release::NotHeld) => return Ok(()),
        released => released.and_then(|released| subject.check_released(py, released)),
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
