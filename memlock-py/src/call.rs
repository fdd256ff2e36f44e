//! The way into the core: without the interpreter's lock, and back with an exception where it failed.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use memlock_core::{Answer, Result, Wait};
use pyo3::prelude::*;

use crate::error::{raise_core, raise_plain};

/// How often a wait looks for signals. Looking takes the interpreter's lock, for which a busy program makes
/// us wait; so a wait that has just begun, or that is woken often, does not look each time.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Runs a call of the core while other Python threads run.
pub(crate) fn call<T: Send>(py: Python<'_>, body: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    match py.detach(|| catch_unwind(AssertUnwindSafe(body))) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(raise_core(py, &error)),
        Err(_) => Err(raise_plain(py, Answer::Internal)),
    }
}

/// Runs a wait of the core: at most `limit`, or for ever. When a signal handler written in Python raises, as
/// that of Ctrl-C does, the wait ends with its exception.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    limit: Option<Duration>,
    body: impl FnOnce(&Wait<'_>) -> Result<T> + Send,
) -> PyResult<T> {
    let (ended, raised) = call(py, || {
        let raised = Cell::new(None);
        let looked: Cell<Option<Instant>> = Cell::new(None);
        let interrupted = || {
            // A wait's first question comes when it has just begun.
            let last = looked.get();
            if last.is_none_or(|last| last.elapsed() < BETWEEN_LOOKS) {
                looked.set(last.or_else(|| Some(Instant::now())));
                return false;
            }
            let signals = Python::try_attach(|py| py.check_signals());
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
        let wait = limit.map_or(Wait::FOREVER, Wait::at_most).unless(&interrupted);
        let ended = body(&wait);
        Ok((ended, raised.into_inner()))
    })?;
    match raised {
        Some(error) => Err(error),
        None => ended.map_err(|error| raise_core(py, &error)),
    }
}
