//! Renewal by the core's renewal thread, and its callbacks: Python functions, called in a thread
//! that Python did not create.
//!
//! A callback is often a method of the object that owns the lock, and such an object becomes
//! garbage when only the lock refers to it. Therefore the callbacks belong to the objects that hold
//! something, where the garbage collector sees them, and the renewal thread has only a weak
//! reference. The collector clears that before it clears any object: so no callback ever runs on a
//! partly cleared object.

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

/// How the leases of an object are renewed.
pub(crate) struct Renew {
    max_hold: Option<Duration>,
    callbacks: Callbacks,
}

/// The callbacks, as owned by an object that holds something.
pub(crate) struct Callbacks {
    pair: Py<CallbackPair>,
    /// A weak reference to `pair`. The renewal thread only borrows it, because it drops what it has
    /// without the GIL.
    weak: Arc<Py<PyWeakrefReference>>,
}

#[pyclass(frozen, weakref, module = "memlock._memlock", name = "_Callbacks")]
struct CallbackPair {
    on_lease_at_risk: Option<Py<PyAny>>,
    on_lost: Option<Py<PyAny>>,
}

impl Renew {
    /// `None` when `renew` is false.
    pub(crate) fn new(
        py: Python<'_>,
        renew: bool,
        max_hold: Option<Seconds>,
        on_lease_at_risk: Option<Py<PyAny>>,
        on_lost: Option<Py<PyAny>>,
    ) -> PyResult<Option<Renew>> {
        if !renew {
            if max_hold.is_some() || on_lease_at_risk.is_some() || on_lost.is_some() {
                let sentence =
                    "max_hold, on_lease_at_risk and on_lost require renewal: pass renew=True.";
                return Err(raise(py, Answer::Invalid, sentence));
            }
            return Ok(None);
        }
        if max_hold.is_some_and(|longest| longest.0.is_zero()) {
            return Err(raise(
                py,
                Answer::Invalid,
                "max_hold is not positive: pass a time above 0, or None for no limit.",
            ));
        }
        for callback in [&on_lease_at_risk, &on_lost].into_iter().flatten() {
            if !callback.bind(py).is_callable() {
                return Err(PyTypeError::new_err(
                    "on_lease_at_risk and on_lost must be callable, or None",
                ));
            }
        }
        let callbacks =
            Callbacks::new(Bound::new(py, CallbackPair { on_lease_at_risk, on_lost })?)?;
        Ok(Some(Renew { max_hold: max_hold.map(|longest| longest.0), callbacks }))
    }

    /// The same for one acquisition, with other callbacks.
    pub(crate) fn with(
        &self,
        py: Python<'_>,
        on_lease_at_risk: Option<Py<PyAny>>,
        on_lost: Option<Py<PyAny>>,
    ) -> PyResult<Renew> {
        let pair = Bound::new(py, CallbackPair { on_lease_at_risk, on_lost })?;
        Ok(Renew { max_hold: self.max_hold, callbacks: Callbacks::new(pair)? })
    }

    /// The same for another object.
    pub(crate) fn copy(&self, py: Python<'_>) -> Renew {
        Renew { max_hold: self.max_hold, callbacks: self.callbacks(py) }
    }

    /// The options for the core. To be called in the thread that acquired.
    pub(crate) fn options(&self) -> RenewOptions {
        let (weak, mask) = (Arc::downgrade(&self.callbacks.weak), Mask::of_this_thread());
        RenewOptions {
            max_hold: self.max_hold,
            on_notice: Some(Box::new(move |notice| call(&weak, mask, notice))),
        }
    }

    /// The callbacks, for an object that may outlive this one.
    pub(crate) fn callbacks(&self, py: Python<'_>) -> Callbacks {
        let Callbacks { pair, weak } = &self.callbacks;
        Callbacks { pair: pair.clone_ref(py), weak: Arc::clone(weak) }
    }

    /// For the garbage collector.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.callbacks.traverse(visit)
    }
}

impl Callbacks {
    fn new(pair: Bound<'_, CallbackPair>) -> PyResult<Callbacks> {
        let weak = Arc::new(PyWeakrefReference::new(&pair)?.unbind());
        Ok(Callbacks { pair: pair.unbind(), weak })
    }

    /// For the garbage collector.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.pair)
    }
}

#[pymethods]
impl CallbackPair {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.on_lease_at_risk)?;
        visit.call(&self.on_lost)
    }
}

/// Calls the callback for this notice, unless its owner is gone. The renewal thread blocks all
/// signals; threads and programs that a callback starts are to block only those that the acquiring
/// thread blocks. Python's own signal handlers only leave a note for the main thread.
fn call(weak: &Weak<Py<PyWeakrefReference>>, mask: Mask, notice: Notice) {
    let Some(_active) = shutdown::enter() else { return };
    let _ = Python::try_attach(|py| {
        let pair = weak.upgrade()?.bind(py).upgrade_as::<CallbackPair>().ok()??;
        let callback = match notice {
            Notice::AtRisk(_) => pair.get().on_lease_at_risk.as_ref()?,
            Notice::Lost(_) => pair.get().on_lost.as_ref()?,
        };
        let _mask = mask.apply();
        let result = match notice {
            Notice::AtRisk(left) => callback.call1(py, (left.as_secs_f64(),)),
            Notice::Lost(loss) => callback.call1(py, (loss_name(loss),)),
        };
        if let Err(error) = result {
            error.write_unraisable(py, Some(callback.bind(py)));
        }
        Some(())
    });
}

/// The name of a loss in Python.
pub(crate) fn loss_name(loss: Loss) -> &'static str {
    match loss {
        Loss::Expired => "expired",
        Loss::Gone => "gone",
        Loss::MaxHold => "max_hold",
    }
}
