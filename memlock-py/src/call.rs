//! Calls of the core, which run without the interpreter lock (GIL).
//!
//! A `with` statement gets to the core by `__enter__`, `Mutex::lock` (arguments), `Subject::wait`
//! (errors), [`wait`] (signals) and [`acquire`] (the GIL, and the interpreter's exit).

use std::cell::Cell;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use memlock_core::{Answer, Cancel, Wait};
use pyo3::prelude::*;

use crate::acquiring;
use crate::acquisition::Acquisition;
use crate::entered;
use crate::error::{raise, raise_plain};
use crate::log;
use crate::renew::loss_name;
use crate::shutdown;
use crate::signals::must_check_signals;

/// The interval at which a wait checks for signals. A check takes the GIL, which may be contended;
/// so a wait that has just begun, or that is woken often, does not check each time.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The length of one uninterrupted sleep of a wait that needs no signal checks.
const UNCHECKED_INTERVAL: Duration = Duration::from_secs(3600);

/// Runs a call of the core with the GIL released.
pub(crate) fn call<T: Send>(py: Python<'_>, body: impl FnOnce() -> T + Send) -> PyResult<T> {
    let called = py.detach(|| catch_unwind(AssertUnwindSafe(body)));
    called.map_err(|_| raise_plain(py, Answer::Internal))
}

/// Runs a call of the core that may acquire something. It is dropped, which must release it, when
/// this thread cannot take the GIL again because the interpreter exits: see `acquiring`.
pub(crate) fn acquire<T: Send>(py: Python<'_>, body: impl FnOnce() -> T + Send) -> PyResult<T> {
    // Either the exit sees that this call is active, or this call sees that the exit has begun.
    let mut active = Some(acquiring::enter());
    let unless_exiting = || {
        if !shutdown::abandons_this_thread() {
            let acquired = body();
            if !shutdown::abandons_this_thread() {
                return Some(acquired);
            }
        }
        active = None;
        thread::sleep(acquiring::SILENCE);
        None
    };
    match py.detach(|| catch_unwind(AssertUnwindSafe(unless_exiting))) {
        Ok(Some(acquired)) => Ok(acquired),
        Ok(None) => Err(raise(
            py,
            Answer::Interrupted,
            "The interpreter is exiting, so nothing was acquired: end the threads that use memlock \
             before the program exits.",
        )),
        Err(_) => Err(raise_plain(py, Answer::Internal)),
    }
}

/// Runs a wait of the core for at most `timeout`, until `cancel` is cancelled. When a signal
/// handler written in Python raises an exception, such as KeyboardInterrupt, the wait ends with
/// that exception. What was acquired is released as by [`acquire`].
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    cancel: Option<&Cancel>,
    body: impl FnOnce(&Wait<'_>) -> T + Send,
) -> PyResult<T> {
    let event_loop = entered::event_loop(py);
    let until = || {
        let until = timeout.map_or(Wait::FOREVER, Wait::at_most);
        let until = event_loop.map_or(until, |running| until.in_event_loop(running));
        cancel.map_or(until, |cancel| until.unless_cancelled(cancel))
    };
    if !must_check_signals(py) {
        return acquire(py, || body(&until()));
    }
    let checking_body = || {
        let (raised, last_check) = (Cell::new(None), Cell::new(None));
        let ended = body(&until().unless(&|| is_interrupted(&raised, &last_check)));
        (ended, raised.into_inner())
    };
    let watched = log::watch(py);
    let (ended, raised) = acquire(py, checking_body)?;
    drop(watched);
    match raised {
        Some(error) => {
            // A grant that arrived all the same is released.
            py.detach(|| drop(ended));
            Err(error)
        }
        None => Ok(ended),
    }
}

/// Whether a wait has to end: because the interpreter exits, or because a signal handler has `raised`
/// an exception.
fn is_interrupted(raised: &Cell<Option<PyErr>>, last_check: &Cell<Option<Instant>>) -> bool {
    if shutdown::has_begun() {
        return true;
    }
    // The core calls this first when the wait has just begun.
    let last = last_check.get();
    if last.is_none_or(|last| last.elapsed() < SIGNAL_CHECK_INTERVAL) {
        last_check.set(last.or_else(|| Some(Instant::now())));
        return false;
    }
    let signals = match log::raised() {
        Some(error) => Some(Err(error)),
        None => Python::try_attach(|py| py.check_signals()),
    };
    last_check.set(Some(Instant::now()));
    match signals {
        Some(Ok(())) => false,
        Some(Err(error)) => {
            raised.set(Some(error));
            true
        }
        // The interpreter exits without its exit handlers.
        None => true,
    }
}

/// Waits for a loss for at most `timeout`; `None` when the time has passed, or when the lock or
/// permits were released. `held` is dropped with the GIL released.
pub(crate) fn wait_lost<H>(
    py: Python<'_>,
    held: H,
    timeout: Option<Duration>,
) -> PyResult<Option<&'static str>>
where
    H: Deref<Target = Acquisition> + Send + Sync,
{
    let (slice, began) = (
        if must_check_signals(py) { SIGNAL_CHECK_INTERVAL } else { UNCHECKED_INTERVAL },
        Instant::now(),
    );
    let ended = loop {
        if let Some(loss) = held.lost() {
            break Ok(Some(loss_name(loss)));
        }
        let left =
            timeout.map_or(slice, |timeout| timeout.saturating_sub(began.elapsed()).min(slice));
        if left.is_zero() || held.remaining().is_zero() {
            // The lease may have ended since.
            break Ok(held.lost().map(loss_name));
        }
        py.detach(|| held.wait_lost(left));
        if let Err(error) = py.check_signals() {
            break Err(error);
        }
    };
    py.detach(|| drop(held));
    ended
}
