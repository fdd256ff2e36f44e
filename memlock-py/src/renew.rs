//! Renewal by the core's keeper, and what it calls: functions of Python's, in a thread that Python does not know.

use std::sync::Arc;
use std::time::Duration;

use memlock_core::{Answer, Keep, Loss, Notice};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use crate::args::Seconds;
use crate::error::raise;
use crate::gate;

/// How what is acquired is renewed.
pub(crate) struct Renew {
    max_hold: Option<Duration>,
    callbacks: Arc<Callbacks>,
}

struct Callbacks {
    on_danger: Option<Py<PyAny>>,
    on_lost: Option<Py<PyAny>>,
}

impl Renew {
    /// `None` when it is not to be renewed.
    pub(crate) fn new(
        py: Python<'_>,
        renew: bool,
        max_hold: Option<Seconds>,
        on_danger: Option<Py<PyAny>>,
        on_lost: Option<Py<PyAny>>,
    ) -> PyResult<Option<Renew>> {
        if !renew {
            if max_hold.is_some() || on_danger.is_some() || on_lost.is_some() {
                let sentence = "max_hold, on_danger and on_lost are for what is renewed: give renew=True.";
                return Err(raise(py, Answer::Invalid, sentence));
            }
            return Ok(None);
        }
        if max_hold.is_some_and(|longest| longest.0.is_zero()) {
            return Err(raise(py, Answer::Invalid, "max_hold is a time above 0, or None for no bound."));
        }
        for callback in [&on_danger, &on_lost].into_iter().flatten() {
            if !callback.bind(py).is_callable() {
                return Err(PyTypeError::new_err("on_danger and on_lost are functions, or None"));
            }
        }
        let callbacks = Arc::new(Callbacks { on_danger, on_lost });
        Ok(Some(Renew { max_hold: max_hold.map(|longest| longest.0), callbacks }))
    }

    pub(crate) fn keep(&self) -> Keep {
        let callbacks = Arc::clone(&self.callbacks);
        Keep { max_hold: self.max_hold, tell: Some(Box::new(move |notice| callbacks.tell(notice))) }
    }

    /// For the garbage collector. What the keeper may call is not garbage.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        if Arc::strong_count(&self.callbacks) == 1 {
            visit.call(&self.callbacks.on_danger)?;
            visit.call(&self.callbacks.on_lost)?;
        }
        Ok(())
    }
}

impl Callbacks {
    fn tell(&self, notice: Notice) {
        let callback = match notice {
            Notice::Danger(_) => &self.on_danger,
            Notice::Lost(_) => &self.on_lost,
        };
        let Some(callback) = callback else { return };
        let Some(_inside) = gate::enter() else { return };
        let _ = Python::try_attach(|py| {
            let called = match notice {
                Notice::Danger(left) => callback.call1(py, (left.as_secs_f64(),)),
                Notice::Lost(loss) => callback.call1(py, (why(loss),)),
            };
            if let Err(error) = called {
                error.write_unraisable(py, Some(callback.bind(py)));
            }
        });
    }
}

/// What Python calls a loss.
pub(crate) fn why(loss: Loss) -> &'static str {
    match loss {
        Loss::Expired => "expired",
        Loss::Gone => "gone",
        Loss::MaxHold => "max_hold",
    }
}
