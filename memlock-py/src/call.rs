//! The way into the core: without the interpreter's lock, and back with an exception where it
//! failed.

use std::cell::Cell;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use memlock_core::{Answer, Cancel, Result, Wait};
use pyo3::prelude::*;

use crate::error::{raise_core, raise_plain};
use crate::held::{Held, Leased};
use crate::log;
use crate::renew::why;
use crate::signals::has_to_look;

/// How often a wait looks for signals. Looking takes the interpreter's lock, for which a busy
/// program makes us wait; so a wait that has just begun, or that is woken often, does not look each
/// time.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// How long a wait that nobody may end goes on at a stretch.
const LONG: Duration = Duration::from_secs(3600);

/// Runs a call of the core while other Python threads run.
pub(crate) fn call<T: Send>(
    py: Python<'_>,
    body: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    match py.detach(|| catch_unwind(AssertUnwindSafe(body))) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(raise_core(py, &error)),
        Err(_) => Err(raise_plain(py, Answer::Internal)),
    }
}

/// Runs a wait of the core: at most `limit`, or for ever, and not once `cancel` is cancelled. When
/// a signal handler written in Python raises, as
/// that of Ctrl-C does, the wait ends with its exception.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    limit: Option<Duration>,
    cancel: Option<&Cancel>,
    body: impl FnOnce(&Wait<'_>) -> Result<T> + Send,
) -> PyResult<T> {
    let until = || {
        let until = limit.map_or(Wait::FOREVER, Wait::at_most);
        cancel.map_or(until, |cancel| until.unless_cancelled(cancel))
    };
    if !has_to_look(py) {
        return call(py, || body(&until()));
    }
    let look_too = || {
        let raised = Cell::new(None);
        let looked: Cell<Option<Instant>> = Cell::new(None);
        let interrupted = || {
            // A wait's first question comes when it has just begun.
            let last = looked.get();
            if last.is_none_or(|last| last.elapsed() < BETWEEN_LOOKS) {
                looked.set(last.or_else(|| Some(Instant::now())));
                return false;
            }
            let signals = match log::raised() {
                Some(error) => Some(Err(error)),
                None => Python::try_attach(|py| py.check_signals()),
            };
            looked.set(Some(Instant::now()));
            match signals {
                Some(Ok(())) => false,
                Some(Err(error)) => {
                    raised.set(Some(error));
                    true
                }
                // The interpreter is shutting down, and this is one of its daemon threads.
                None => true,
            }
        };
        let ended = body(&until().unless(&interrupted));
        Ok((ended, raised.into_inner()))
    };
    let (ended, raised) = log::watched(py, || call(py, look_too))?;
    match raised {
        Some(error) => {
            // What was granted all the same is given back.
            py.detach(|| drop(ended));
            Err(error)
        }
        None => ended.map_err(|error| raise_core(py, &error)),
    }
}

/// Waits until it is lost, for at most so long; `None` when that has passed, or when it was
/// released. `held` is dropped detached.
pub(crate) fn wait_lost<L, H>(
    py: Python<'_>,
    held: H,
    limit: Option<Duration>,
) -> PyResult<Option<&'static str>>
where
    L: Leased,
    H: Deref<Target = Held<L>> + Send + Sync,
    Held<L>: Sync,
{
    let (slice, began) = (if has_to_look(py) { BETWEEN_LOOKS } else { LONG }, Instant::now());
    let mut ended = Ok(None);
    loop {
        if let Some(loss) = held.lost() {
            ended = Ok(Some(why(loss)));
            break;
        }
        let left = limit.map_or(slice, |limit| limit.saturating_sub(began.elapsed()).min(slice));
        if left.is_zero() || held.remaining().is_zero() {
            break;
        }
        py.detach(|| held.wait_lost(left));
        if let Err(error) = py.check_signals() {
            ended = Err(error);
            break;
        }
    }
    py.detach(|| drop(held));
    ended
}
