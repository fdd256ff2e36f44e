//! `memlock._memlock._Held`: a lock or permits that an asynchronous call has acquired.

use std::sync::Arc;
use std::time::Duration;

use memlock_core::{Answer, Release};
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use super::call::Call;
use crate::acquisition::Acquisition;
use crate::args::Seconds;
use crate::leftover;
use crate::renew::{Callbacks, loss_name};
use crate::shared_client::SharedClient;
use crate::subject::Subject;

/// One acquisition of a mutex or a semaphore. If it is deallocated, it is released by a thread of the
/// client.
#[pyclass(frozen, weakref, module = "memlock._memlock", name = "_Held")]
pub(crate) struct Held {
    held: Arc<Acquisition>,
    permits: u32,
    /// Its threads carry out the calls.
    client: Arc<SharedClient>,
    subject: Subject,
    lease: Duration,
    callbacks: Option<Callbacks>,
}

impl Held {
    pub(super) fn new(
        py: Python<'_>,
        (held, permits): (Acquisition, u32),
        (client, subject): (Arc<SharedClient>, Subject),
        lease: Duration,
        callbacks: Option<Callbacks>,
    ) -> Held {
        let held = Arc::new(held);
        leftover::add(py, &held);
        Held { held, permits, client, subject, lease, callbacks }
    }

    fn call<T: Send + 'static>(
        &self,
        body: impl FnOnce(&Acquisition) -> memlock_core::Result<T> + Send + 'static,
        convert: impl FnOnce(Python<'_>, &Subject, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Call {
        let held = Arc::clone(&self.held);
        Call::of(&self.client.core, &self.subject, move || body(&held), convert)
    }
}

#[pymethods]
impl Held {
    /// A call that releases it, and raises LockLost or NotHeld. It is carried out also if nobody takes
    /// the result.
    fn release(&self) -> Call {
        self.call(Acquisition::release, |py, subject, released: Release| {
            subject.check_released(py, released).map(|()| py.None())
        })
    }

    /// A call that extends the lease, by default as long as the first.
    #[pyo3(signature = (lease = None))]
    fn extend(&self, lease: Option<Seconds>) -> Call {
        let lease = lease.map_or(self.lease, |lease| lease.0);
        self.call(
            move |held| held.extend(lease),
            |py, subject, extended| subject.check_extended(py, extended).map(|()| py.None()),
        )
    }

    /// A call that asks the server whether it is still held.
    fn check(&self, py: Python<'_>) -> PyResult<Call> {
        if !self.held.is_of_this_process() {
            return Err(self.subject.raise_plain(py, Answer::NotHeld));
        }
        Ok(self.call(Acquisition::check, |py, _, is_held| {
            Ok(is_held.into_pyobject(py)?.to_owned().into_any().unbind())
        }))
    }

    #[getter]
    fn remaining(&self) -> f64 {
        self.held.remaining().as_secs_f64()
    }

    #[getter]
    fn lost(&self) -> Option<&'static str> {
        self.held.lost().map(loss_name)
    }

    /// None for permits.
    #[getter]
    fn fence(&self) -> Option<u64> {
        self.held.fence
    }

    #[getter]
    fn permits(&self) -> u32 {
        self.permits
    }

    #[getter]
    fn token(&self) -> String {
        self.held.token.to_string()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.callbacks.as_ref().map_or(Ok(()), |callbacks| callbacks.traverse(&visit))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.held.is_of_this_process() && self.held.may_hold() {
            let held = Arc::clone(&self.held);
            drop(self.client.core.call_async(&self.subject.key, move || {
                held.let_go();
                Ok(())
            }));
        }
    }
}
