//! What memlock logs, as records of Python's `logging`: logger `memlock.renewal` for the renewer, and
//! so on.
//!
//! A record is handled at once, in the thread that has something to say: with the interpreter
//! attached for that long, and with the levels that hold at that moment. Nothing is remembered of
//! levels, since `setLevel` tells nobody. So this is not for what happens often; and nothing is: an
//! acquisition and a release without trouble say nothing.
//!
//! | state of the thread | what becomes of a message |
//! | --- | --- |
//! | as always | handled at once |
//! | it holds a lock of this module: see [`later`] | handled when that is unlocked |
//! | in a handler, which uses memlock | dropped: its own trouble would have no end |
//! | the interpreter is ending | dropped: see `shutdown` |
//!
//! What a handler or filter lets out may be a signal handler's exception, such as that of Ctrl-C.
//! So in the main thread it ends a wait as that would, and otherwise is raised as soon as the call
//! has returned, whose result it leaves alone. No signal handler runs in another thread: there it
//! goes to `sys.unraisablehook`, and so it does while an object is deallocated.

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
    static TELLING: Cell<bool> = const { Cell::new(false) };
    /// What is to be told when this thread has unlocked what it holds.
    static LATER: RefCell<Option<Vec<Message>>> = const { RefCell::new(None) };
    /// This thread deallocates an object, which nobody can be told of.
    static UNRAISABLE: Cell<bool> = const { Cell::new(false) };
    static RAISED: RefCell<Raised> = const { RefCell::new(Raised::Unwatched) };
}

/// What a handler raised in a wait of this thread that looks for that.
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

/// Begins to log. `logging` is imported first, so that it comes to its end after us.
pub(crate) fn begin(py: Python<'_>) -> PyResult<()> {
    let get_logger = py.import("logging")?.getattr("getLogger")?.unbind();
    // Another interpreter of this process may have been faster.
    if GET_LOGGER.set(py, get_logger).is_ok() && log::set_logger(&ToLogging).is_ok() {
        log::set_max_level(LevelFilter::Debug);
    }
    Ok(())
}

/// Runs a wait that asks [`raised`] now and then.
pub(crate) fn watched<T>(py: Python<'_>, wait: impl FnOnce() -> T) -> T {
    let outer = RAISED.replace(Raised::Nothing);
    let ended = wait();
    if let Raised::Error(late) = RAISED.replace(outer) {
        raise_soon(py, late);
    }
    ended
}

/// What a handler has raised in this wait. Once it is given, it is the caller's.
pub(crate) fn raised() -> Option<PyErr> {
    RAISED.with_borrow_mut(|raised| match std::mem::replace(raised, Raised::Nothing) {
        Raised::Error(error) => Some(error),
        other => {
            *raised = other;
            None
        }
    })
}

/// Runs what holds a lock of this module; what it logs is told afterwards.
pub(crate) fn later<T>(locked: impl FnOnce() -> T) -> T {
    struct Telling;
    impl Drop for Telling {
        fn drop(&mut self) {
            LATER.take().into_iter().flatten().for_each(|message| tell(&message));
        }
    }
    LATER.set(Some(Vec::new()));
    let _telling = Telling;
    locked()
}

/// Runs a deallocation: what handlers raise meanwhile goes to `sys.unraisablehook`.
pub(crate) fn unraisable<T>(deallocation: impl FnOnce() -> T) -> T {
    let outer = UNRAISABLE.replace(true);
    let ended = deallocation();
    UNRAISABLE.set(outer);
    ended
}

struct ToLogging;

impl Log for ToLogging {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let Some(logger) = logs::name(record.target()) else { return };
        let message = Message { level: record.level(), logger, text: record.args().to_string() };
        // Where a thread is so near its end that it has no such place any more, it holds no lock
        // either.
        let now = LATER.try_with(|later| match &mut *later.borrow_mut() {
            Some(later) => {
                later.push(message);
                None
            }
            None => Some(message),
        });
        if let Ok(Some(message)) = now {
            tell(&message);
        }
    }

    fn flush(&self) {}
}

fn tell(message: &Message) {
    if TELLING.replace(true) {
        return;
    }
    if let Some(_inside) = shutdown::enter() {
        let _ = Python::try_attach(|py| {
            if let Err(error) = message.tell(py) {
                raise(py, error);
            }
        });
    }
    TELLING.set(false);
}

impl Message {
    fn tell(&self, py: Python<'_>) -> PyResult<()> {
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
    let other = RAISED.with_borrow_mut(|raised| match raised {
        Raised::Nothing => {
            *raised = Raised::Error(error);
            None
        }
        Raised::Error(_) | Raised::Unwatched => Some(error),
    });
    if let Some(error) = other {
        raise_soon(py, error);
    }
}

/// Raises it in the main thread when that runs Python again; for others, that is nobody's business.
fn raise_soon(py: Python<'_>, error: PyErr) {
    extern "C" fn restore(error: *mut c_void) -> c_int {
        // SAFETY: it comes from below, once.
        let error: Box<PyErr> = unsafe { Box::from_raw(error.cast()) };
        Python::attach(|py| error.restore(py));
        -1
    }
    if !runs_handlers(py) {
        return error.write_unraisable(py, None);
    }
    let error = Box::into_raw(Box::new(error));
    // SAFETY: may be called by any thread; what is given is for `restore`, which is called by the
    // main thread, attached.
    if unsafe { pyo3::ffi::Py_AddPendingCall(Some(restore), error.cast()) } != 0 {
        // SAFETY: made above, and not taken.
        unsafe { Box::from_raw(error) }.write_unraisable(py, None);
    }
}
