//! Which threads run Python's signal handlers, and whose waits the interpreter may want to end.

use std::cell::Cell;

use memlock_core::fork;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Whether the interpreter may want to end a wait of this thread. If not, the wait can sleep until
/// it is woken, instead of looking twenty times a second.
///
/// | thread | what may end its wait |
/// | --- | --- |
/// | the main thread | a signal handler: the interpreter runs them nowhere else |
/// | a daemon thread, or one that Python does not know | the end of the interpreter, which does not wait for it |
/// | any other | nothing: the interpreter waits for it before it ends |
pub(crate) fn has_to_look(py: Python<'_>) -> bool {
    thread_local! {
        /// The answer, and for which process: a child's main thread is the one that forked.
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
/// embedded: to set a handler that is none is a ValueError in a thread that runs no handlers, and a
/// TypeError in the one that does.
pub(crate) fn runs_handlers(py: Python<'_>) -> bool {
    let refused = py.import("signal").and_then(|signal| {
        let sigint = signal.getattr("SIGINT")?;
        signal.call_method1("signal", (sigint, py.None()))
    });
    !refused.is_err_and(|error| error.is_instance_of::<PyValueError>(py))
}

fn is_daemon(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    // Not `current_thread()`, which makes an object for a thread that it does not know, and keeps
    // that.
    let ours = threading.call_method0("get_ident")?;
    let thread = threading.getattr("_active")?.call_method1("get", (ours,))?;
    Ok(thread.is_none() || thread.getattr("daemon")?.is_truthy()?)
}
