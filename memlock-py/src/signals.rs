//! Which threads run Python's signal handlers, and which waits the interpreter may need to end.

use std::cell::Cell;

use memlock_core::fork;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Whether the interpreter may need to end a wait of this thread. If not, the wait can sleep until
/// it is woken, instead of checking fifty times a second.
///
/// | thread | what may end its wait |
/// | --- | --- |
/// | the main thread | a signal handler: the interpreter runs them only there |
/// | a daemon thread, or a thread that Python did not create | interpreter exit, which does not wait for it |
/// | any other thread | nothing: the interpreter waits for it before it exits |
pub(crate) fn must_check_signals(py: Python<'_>) -> bool {
    thread_local! {
        /// The result, and the process for which it holds: a child's main thread is the thread that
        /// forked.
        static KNOWN: Cell<Option<(u64, bool)>> = const { Cell::new(None) };
    }
    let process = fork::generation();
    match KNOWN.get() {
        Some((known, answer)) if known == process => answer,
        _ => {
            let answer = runs_handlers(py) || is_daemon(py).unwrap_or(true);
            KNOWN.set(Some((process, answer)));
            answer
        }
    }
}

/// Asks the interpreter itself, because `threading.main_thread()` is a guess where Python is
/// embedded: setting an invalid handler raises ValueError in a thread that runs no handlers, and
/// TypeError in the thread that does.
pub(crate) fn runs_handlers(py: Python<'_>) -> bool {
    let refused = py.import("signal").and_then(|signal| {
        let sigint = signal.getattr("SIGINT")?;
        signal.call_method1("signal", (sigint, py.None()))
    });
    !refused.is_err_and(|error| error.is_instance_of::<PyValueError>(py))
}

fn is_daemon(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    // Not `current_thread()`, which creates and keeps an object for a thread that it does not know.
    let ident = threading.call_method0("get_ident")?;
    let thread = threading.getattr("_active")?.call_method1("get", (ident,))?;
    Ok(thread.is_none() || thread.getattr("daemon")?.is_truthy()?)
}
