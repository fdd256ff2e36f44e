//! `memlock._memlock._Call`: a call in progress, of any kind.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use memlock_core::{Client, Pending, Result};
use pyo3::prelude::*;

use super::completions::Completions;
use crate::shutdown;
use crate::subject::Subject;

/// A call in progress. If it is deallocated before its result was taken, it is cancelled, and what it
/// has acquired is released.
#[pyclass(frozen, module = "memlock._memlock", name = "_Call")]
pub(crate) struct Call(Mutex<Option<Box<dyn InProgress>>>);

/// The same, without its type.
trait InProgress: Send {
    fn notify(&self, waker: Waker);

    /// The result, if the call has ended.
    fn take(&mut self, py: Python<'_>) -> Option<PyResult<Py<PyAny>>>;
}

struct Typed<T: Send + 'static, F> {
    pending: Pending<T>,
    /// Makes a Python object of the result.
    convert: Option<F>,
}

impl<T, F> InProgress for Typed<T, F>
where
    T: Send + 'static,
    F: FnOnce(Python<'_>, Result<T>) -> PyResult<Py<PyAny>> + Send,
{
    fn notify(&self, waker: Waker) {
        self.pending.notify(waker);
    }

    fn take(&mut self, py: Python<'_>) -> Option<PyResult<Py<PyAny>>> {
        let result = self.pending.take()?;
        let convert = self.convert.take()?;
        Some(convert(py, result))
    }
}

impl Call {
    /// `convert`: makes a Python object of the result, in the thread that takes it.
    pub(crate) fn new<T: Send + 'static>(
        pending: Pending<T>,
        convert: impl FnOnce(Python<'_>, Result<T>) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Call {
        Call(Mutex::new(Some(Box::new(Typed { pending, convert: Some(convert) }))))
    }

    /// Has a call of the core carried out. `convert`: makes a Python object of its value.
    pub(crate) fn of<T: Send + 'static>(
        client: &Client,
        subject: &Subject,
        body: impl FnOnce() -> Result<T> + Send + 'static,
        convert: impl FnOnce(Python<'_>, &Subject, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Call {
        let (pending, subject) = (client.call_async(&subject.key, body), subject.clone());
        Call::new(pending, move |py, result| match result {
            Ok(value) => convert(py, &subject, value),
            Err(error) => Err(subject.failed(py, &error)),
        })
    }

    /// Only for a few instructions, and with the GIL.
    fn slot(&self) -> MutexGuard<'_, Option<Box<dyn InProgress>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Call {
    /// Adds the number once the call has ended.
    fn notify(&self, completions: &Bound<'_, Completions>, number: u64) {
        let waker = completions.get().core.waker(number);
        match &*self.slot() {
            Some(call) => call.notify(waker),
            None => waker.wake(),
        }
    }

    /// The result of a call that has ended, or its exception; None before, and if it was taken.
    fn result(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let Some(mut call) = self.slot().take() else { return Ok(None) };
        match call.take(py) {
            Some(result) => result.map(Some),
            None => {
                *self.slot() = Some(call);
                Ok(None)
            }
        }
    }

    /// Cancels the call. What it acquires all the same is released by a thread of the client.
    fn cancel(&self, py: Python<'_>) {
        let call = self.slot().take();
        py.detach(|| drop(call));
    }
}

/// Has a function of Python called by a thread of the client: one that talks to the server that has the
/// subject, and releases the interpreter lock meanwhile.
pub(crate) fn call_sync(client: &Client, subject: &Subject, function: Py<PyAny>) -> Call {
    let body = move || {
        let called = shutdown::enter().and_then(|_active| {
            Python::try_attach(|py| {
                let result = function.call0(py);
                drop(function);
                result
            })
        });
        Ok(called)
    };
    Call::of(client, subject, body, |_py, _subject, called| match called {
        Some(result) => result,
        None => Err(pyo3::exceptions::PyRuntimeError::new_err("the interpreter is exiting")),
    })
}
