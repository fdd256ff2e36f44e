//! The gate before the interpreter, for threads that come from outside.
//!
//! A thread that asks for the interpreter when that has begun to end never comes back, and through
//! Rust's frames not even in good order. So the interpreter's end begins with closing this gate,
//! and waiting for those that are inside; as it waits for threads that are no daemons.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use memlock_core::active_calls::{ActiveCall, ActiveCalls};
use pyo3::prelude::*;

/// The interpreter is about to end.
static CLOSED: AtomicBool = AtomicBool::new(false);
static INSIDE: ActiveCalls = ActiveCalls::new();

thread_local! {
    /// This is the thread that ends the interpreter: it has it as long as there is one.
    static CLOSER: Cell<bool> = const { Cell::new(false) };
}

/// `None` when the interpreter must not be asked for any more.
pub(crate) fn enter() -> Option<ActiveCall<'static>> {
    // Either this is counted before the end looks, or the gate is found closed here.
    let active_calls = INSIDE.enter();
    (!CLOSED.load(Ordering::SeqCst) || CLOSER.get()).then_some(active_calls)
}

/// Has the gate closed when the interpreter ends.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    py.import("atexit")?.call_method1("register", (wrap_pyfunction!(close, module)?,))?;
    Ok(())
}

#[pyfunction(name = "_close")]
fn close(py: Python<'_>) -> PyResult<()> {
    CLOSER.set(true);
    CLOSED.store(true, Ordering::SeqCst);
    while INSIDE.any() {
        py.detach(|| thread::sleep(Duration::from_millis(1)));
        // Ctrl-C ends this.
        py.check_signals()?;
    }
    Ok(())
}
