//! Interpreter exit, for threads that Python did not create.
//!
//! A thread that takes the GIL after the interpreter has begun to finalize never returns, and its
//! Rust frames are not unwound properly. Therefore interpreter exit first closes this gate and
//! waits for the threads that are inside, as it waits for non-daemon threads.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use memlock_core::active_calls::{ActiveCall, ActiveCalls};
use pyo3::prelude::*;

/// The interpreter is about to exit.
static CLOSED: AtomicBool = AtomicBool::new(false);
static ACTIVE: ActiveCalls = ActiveCalls::new();

thread_local! {
    /// This is the thread that ends the interpreter: it holds the GIL until the end.
    static IS_EXITING_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// `None` when the GIL must not be taken any more.
pub(crate) fn enter() -> Option<ActiveCall<'static>> {
    // Either the exit sees that this call is active, or this call sees that the gate is closed.
    let active_call = ACTIVE.enter();
    (!CLOSED.load(Ordering::SeqCst) || IS_EXITING_THREAD.get()).then_some(active_call)
}

/// Registers the gate to be closed at interpreter exit.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    py.import("atexit")?.call_method1("register", (wrap_pyfunction!(close, module)?,))?;
    Ok(())
}

#[pyfunction(name = "_close")]
fn close(py: Python<'_>) -> PyResult<()> {
    IS_EXITING_THREAD.set(true);
    CLOSED.store(true, Ordering::SeqCst);
    while ACTIVE.any() {
        py.detach(|| thread::sleep(Duration::from_millis(1)));
        // Ctrl-C ends this wait.
        py.check_signals()?;
    }
    Ok(())
}
