//! What happens when the interpreter is about to exit: waits are ended, and callbacks completed.

use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::{acquiring, shared_client, shutdown};

/// How long an exit waits at most until all acquisitions have ended: they do when a server has
/// answered, and one that does not answer delays the exit by this. Shorter than
/// `acquiring::SILENCE`, within which the interpreter should be finalizing.
const PATIENCE: Duration = Duration::from_millis(500);

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
    while acquiring::any() && began.elapsed() < PATIENCE {
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
