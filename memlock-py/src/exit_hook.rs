//! What happens when the interpreter is about to exit: waits are ended, and callbacks completed.

use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::{acquiring, shared_client, shutdown};

/// Registers the hook. `atexit` calls it before the handlers that were registered earlier.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    py.import("atexit")?.call_method1("register", (wrap_pyfunction!(close, module)?,))?;
    Ok(())
}

#[pyfunction(name = "_close")]
fn close(py: Python<'_>) -> PyResult<()> {
    shutdown::begin();
    let began = Instant::now();
    while acquiring::any() && began.elapsed() < acquiring::PATIENCE {
        // Repeatedly, because a wait that is only just beginning is not ended by this.
        shared_client::cancel_all_waits(py);
        pause(py)?;
    }
    while shutdown::any_awaited() {
        pause(py)?;
    }
    Ok(())
}

/// Lets other threads run. Ctrl-C ends the exit's waiting.
fn pause(py: Python<'_>) -> PyResult<()> {
    py.detach(|| thread::sleep(Duration::from_millis(1)));
    py.check_signals()
}
