//! Renewal by the core's renewer, and what it calls: functions of Python's, in a thread that Python
//! does not know.
//!
//! A callback is often a method of whoever owns the lock, who is garbage when nobody but the lock
//! knows him. So the callbacks belong to the objects that hold something, where the garbage
//! collector sees them, and the renewer has a weak reference of Python's. The collector ends that
//! before it takes anything apart: so no callback comes upon half an object.

use std::sync::{Arc, Weak};
use std::time::Duration;

use memlock_core::{Answer, Loss, Notice, RenewOptions};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyWeakrefMethods, PyWeakrefReference};
use pyo3::{PyTraverseError, PyVisit};

use crate::args::Seconds;
use crate::error::raise;
use crate::mask::Mask;
use crate::shutdown;

/// How what is acquired is renewed.
pub(crate) struct Renew {
    max_hold: Option<Duration>,
    callbacks: Callbacks,
}

/// The callbacks, as they belong to an object that holds something.
pub(crate) struct Callbacks {
    both: Py<Both>,
    /// To `both`. The renewer only borrows it: it lets go of what it has without the interpreter.
    weak: Arc<Py<PyWeakrefReference>>,
}

#[pyclass(frozen, weakref, module = "memlock._memlock", name = "_Callbacks")]
struct Both {
    on_lease_at_risk: Option<Py<PyAny>>,
    on_lost: Option<Py<PyAny>>,
}

impl Renew {
    /// `None` when it is not to be renewed.
    pub(crate) fn new(
        py: Python<'_>,
        renew: bool,
        max_hold: Option<Seconds>,
        on_lease_at_risk: Option<Py<PyAny>>,
        on_lost: Option<Py<PyAny>>,
    ) -> PyResult<Option<Renew>> {
        if !renew {
            if max_hold.is_some() || on_lease_at_risk.is_some() || on_lost.is_some() {
                let sentence = "max_hold, on_lease_at_risk and on_lost are for what is renewed: give renew=True.";
                return Err(raise(py, Answer::Invalid, sentence));
            }
            return Ok(None);
        }
        if max_hold.is_some_and(|longest| longest.0.is_zero()) {
            return Err(raise(
                py,
                Answer::Invalid,
                "max_hold is a time above 0, or None for no bound.",
            ));
        }
        for callback in [&on_lease_at_risk, &on_lost].into_iter().flatten() {
            if !callback.bind(py).is_callable() {
                return Err(PyTypeError::new_err(
                    "on_lease_at_risk and on_lost are functions, or None",
                ));
            }
        }
        let callbacks = Callbacks::new(Bound::new(py, Both { on_lease_at_risk, on_lost })?)?;
        Ok(Some(Renew { max_hold: max_hold.map(|longest| longest.0), callbacks }))
    }

    /// To be called in the thread that acquired it.
    pub(crate) fn renew(&self) -> RenewOptions {
        let (weak, mask) = (Arc::downgrade(&self.callbacks.weak), Mask::of_this_thread());
        RenewOptions {
            max_hold: self.max_hold,
            on_notice: Some(Box::new(move |notice| tell(&weak, mask, notice))),
        }
    }

    /// For an object that may outlive this one.
    pub(crate) fn callbacks(&self, py: Python<'_>) -> Callbacks {
        let Callbacks { both, weak } = &self.callbacks;
        Callbacks { both: both.clone_ref(py), weak: Arc::clone(weak) }
    }

    /// For the garbage collector.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.callbacks.traverse(visit)
    }
}

impl Callbacks {
    fn new(both: Bound<'_, Both>) -> PyResult<Callbacks> {
        let weak = Arc::new(PyWeakrefReference::new(&both)?.unbind());
        Ok(Callbacks { both: both.unbind(), weak })
    }

    /// For the garbage collector.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.both)
    }
}

#[pymethods]
impl Both {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.on_lease_at_risk)?;
        visit.call(&self.on_lost)
    }
}

/// Calls what is called for it, unless nobody is there any more who wants to know. The renewer
/// blocks all signals; what a callback starts is to block what the thread that acquired blocks.
/// Python's own handlers only take a note for the main thread.
fn tell(weak: &Weak<Py<PyWeakrefReference>>, mask: Mask, notice: Notice) {
    let Some(_inside) = shutdown::enter() else { return };
    let _ = Python::try_attach(|py| {
        let both = weak.upgrade()?.bind(py).upgrade_as::<Both>().ok()??;
        let callback = match notice {
            Notice::AtRisk(_) => both.get().on_lease_at_risk.as_ref()?,
            Notice::Lost(_) => both.get().on_lost.as_ref()?,
        };
        let _lent = mask.lend();
        let called = match notice {
            Notice::AtRisk(left) => callback.call1(py, (left.as_secs_f64(),)),
            Notice::Lost(loss) => callback.call1(py, (why(loss),)),
        };
        if let Err(error) = called {
            error.write_unraisable(py, Some(callback.bind(py)));
        }
        Some(())
    });
}

/// What Python calls a loss.
pub(crate) fn why(loss: Loss) -> &'static str {
    match loss {
        Loss::Expired => "expired",
        Loss::Gone => "gone",
        Loss::MaxHold => "max_hold",
    }
}
