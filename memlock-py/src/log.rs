//! Log messages, as records of Python's `logging`: logger `memlock.renewal` for the renewal thread,
//! and so on.
//!
//! A record is handled at once, in the thread that logs, which takes the GIL for that time, and
//! with the levels that are set at that moment. Levels are not cached, because `setLevel` does not
//! notify anyone. This would be too slow for frequent messages, and there are none: an acquisition
//! and a release without problems log nothing.
//!
//! | state of the thread | what happens to a message |
//! | --- | --- |
//! | normal | handled at once |
//! | holds a lock of this module: see [`deferred`] | handled after unlocking |
//! | in a handler that uses memlock | dropped, to prevent endless recursion |
//! | the interpreter is exiting | dropped: see `shutdown` |
//!
//! An exception that a handler or filter lets out may come from a signal handler, as
//! KeyboardInterrupt does. In the main thread it therefore ends a wait, and is otherwise raised as
//! soon as the call has returned; the result of the call is not affected. Other threads run no
//! signal handlers: there the exception goes to `sys.unraisablehook`, as it does while an object is
//! deallocated.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};

use log::{Level, LevelFilter, Log, Metadata, Record};
use memlock_core::logs;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::shutdown;
use crate::signals::runs_handlers;

static GET_LOGGER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

thread_local! {
    /// This thread is in a handler.
    static IN_HANDLER: Cell<bool> = const { Cell::new(false) };
    /// The messages to emit when this thread has unlocked what it holds.
    static DEFERRED: RefCell<Option<Vec<Message>>> = const { RefCell::new(None) };
    /// This thread deallocates an object, so exceptions cannot be raised.
    static UNRAISABLE: Cell<bool> = const { Cell::new(false) };
    static RAISED: RefCell<Raised> = const { RefCell::new(Raised::Unwatched) };
}

/// What a handler raised during a wait of this thread that checks for it.
enum Raised {
    Unwatched,
    Nothing,
    Error(PyErr),
}

struct Message {
    level: Level,
    logger: String,
    text: String,
}

/// Installs the logger. `logging` is imported first, so that its exit handler runs after ours.
pub(crate) fn install(py: Python<'_>) -> PyResult<()> {
    let get_logger = py.import("logging")?.getattr("getLogger")?.unbind();
    // Done already if the module is imported anew.
    if GET_LOGGER.set(py, get_logger).is_ok() && log::set_logger(&ToLogging).is_ok() {
        log::set_max_level(LevelFilter::Debug);
    }
    Ok(())
}

/// While this exists, this thread is in a wait that calls [`raised`] from time to time.
pub(crate) struct Watched<'py> {
    outer: Option<Raised>,
    py: Python<'py>,
}

/// Begins such a wait.
pub(crate) fn watch(py: Python<'_>) -> Watched<'_> {
    Watched { outer: Some(RAISED.replace(Raised::Nothing)), py }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        let outer = self.outer.take().unwrap_or(Raised::Unwatched);
        if let Raised::Error(late) = RAISED.replace(outer) {
            raise_later(self.py, late);
        }
    }
}

/// Takes the exception that a handler has raised during this wait.
pub(crate) fn raised() -> Option<PyErr> {
    RAISED.with_borrow_mut(|raised| match std::mem::replace(raised, Raised::Nothing) {
        Raised::Error(error) => Some(error),
        other => {
            *raised = other;
            None
        }
    })
}

/// Runs a body that holds a lock of this module; emits its messages afterwards.
pub(crate) fn deferred<T>(locked: impl FnOnce() -> T) -> T {
    struct EmitOnDrop;
    impl Drop for EmitOnDrop {
        fn drop(&mut self) {
            DEFERRED.take().into_iter().flatten().for_each(|message| emit(&message));
        }
    }
    DEFERRED.set(Some(Vec::new()));
    let _emit = EmitOnDrop;
    locked()
}

/// Runs a deallocation: exceptions of handlers go to `sys.unraisablehook`.
pub(crate) fn unraisable<T>(deallocation: impl FnOnce() -> T) -> T {
    let outer = UNRAISABLE.replace(true);
    let result = deallocation();
    UNRAISABLE.set(outer);
    result
}

struct ToLogging;

impl Log for ToLogging {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let Some(logger) = logs::name(record.target()) else { return };
        let message = Message { level: record.level(), logger, text: record.args().to_string() };
        // A thread that is about to exit has no thread-locals any more; it holds no lock either.
        let immediate = DEFERRED.try_with(|deferred| match &mut *deferred.borrow_mut() {
            Some(deferred) => {
                deferred.push(message);
                None
            }
            None => Some(message),
        });
        if let Ok(Some(message)) = immediate {
            emit(&message);
        }
    }

    fn flush(&self) {}
}

fn emit(message: &Message) {
    if IN_HANDLER.replace(true) {
        return;
    }
    if let Some(_active) = shutdown::enter() {
        let _ = Python::try_attach(|py| {
            if let Err(error) = message.emit(py) {
                raise(py, error);
            }
        });
    }
    IN_HANDLER.set(false);
}

impl Message {
    fn emit(&self, py: Python<'_>) -> PyResult<()> {
        let Some(get_logger) = GET_LOGGER.get(py) else { return Ok(()) };
        let level = match self.level {
            Level::Error => 40,
            Level::Warn => 30,
            Level::Info => 20,
            Level::Debug | Level::Trace => 10,
        };
        get_logger.call1(py, (&self.logger,))?.call_method1(py, "log", (level, &self.text))?;
        Ok(())
    }
}

fn raise(py: Python<'_>, error: PyErr) {
    if UNRAISABLE.get() {
        return error.write_unraisable(py, None);
    }
    let unstored = RAISED.with_borrow_mut(|raised| match raised {
        Raised::Nothing => {
            *raised = Raised::Error(error);
            None
        }
        Raised::Error(_) | Raised::Unwatched => Some(error),
    });
    if let Some(error) = unstored {
        raise_later(py, error);
    }
}

/// Raises the exception in the main thread, as soon as that thread runs Python code again; in other
/// threads it is unraisable.
fn raise_later(py: Python<'_>, error: PyErr) {
    extern "C" fn restore(error: *mut c_void) -> c_int {
        // SAFETY: the pointer made below, which is passed exactly once.
        let error: Box<PyErr> = unsafe { Box::from_raw(error.cast()) };
        Python::attach(|py| error.restore(py));
        -1
    }
    if !runs_handlers(py) {
        return error.write_unraisable(py, None);
    }
    let error = Box::into_raw(Box::new(error));
    // SAFETY: may be called by any thread; the main thread passes the pointer to `restore`, with
    // the GIL.
    if unsafe { pyo3::ffi::Py_AddPendingCall(Some(restore), error.cast()) } != 0 {
        // SAFETY: made above, and not passed on.
        unsafe { Box::from_raw(error) }.write_unraisable(py, None);
    }
}
