//! The end of an acquisition: what is raised, and what is logged where a `with` must not hide its body's exception.

use memlock_core::{Answer, Release};
use pyo3::prelude::*;

use crate::error::raise_plain;

/// Raises what release() raises.
pub(crate) fn tell(py: Python<'_>, released: Release) -> PyResult<()> {
    match released {
        Release::Released => Ok(()),
        Release::Lost => Err(raise_plain(py, Answer::Lost)),
        Release::NotHeld => Err(raise_plain(py, Answer::NotHeld)),
    }
}

/// Ends a `with` by `release`. When the body raised, its exception goes on, and a failure to release `what` is only logged.
pub(crate) fn leave(
    py: Python<'_>,
    exc_type: &Bound<'_, PyAny>,
    what: &str,
    release: impl FnOnce() -> PyResult<Release>,
) -> PyResult<()> {
    let released = release();
    if exc_type.is_none() {
        return tell(py, released?);
    }
    let failed = match released {
        // A forked child leaves its parent's `with` so: nothing was left held, nothing is to be said.
        Ok(Release::NotHeld) => return Ok(()),
        released => released.and_then(|released| tell(py, released)),
    };
    if let Err(error) = failed
        && let Err(unlogged) = log(py, what, &error)
    {
        unlogged.write_unraisable(py, None);
    }
    Ok(())
}

fn log(py: Python<'_>, what: &str, error: &PyErr) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", ("memlock",))?;
    let kind = error.get_type(py).name()?;
    let text = "The %s was not released after its body raised. %s: %s";
    logger.call_method1("warning", (text, what, kind, error.value(py)))?;
    Ok(())
}
