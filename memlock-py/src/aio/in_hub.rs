//! Waiting for an acquisition: as a thread or, in its hub, as a greenlet.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use memlock_core::{Answer, Pending, Report, Result, Wait};
use pyo3::prelude::*;

use super::call::Call;
use crate::cancel::{self, CancelHandle};
use crate::green::Hub;
use crate::shared_client::SharedClient;
use crate::subject::Subject;

/// What an acquisition is waited for with.
pub(crate) struct Waiting<'a, 'py> {
    pub(crate) client: &'a Arc<SharedClient>,
    pub(crate) subject: &'a Subject,
    pub(crate) timeout: Option<Duration>,
    pub(crate) cancel: Option<&'a Bound<'py, CancelHandle>>,
}

impl Waiting<'_, '_> {
    /// Waits by `block` in a thread, by what `begin` starts in a greenlet. `acquired` gets the guard,
    /// without the GIL.
    pub(crate) fn acquire<G: Send + 'static, T: Send>(
        &self,
        py: Python<'_>,
        block: impl FnOnce(&Wait<'_>) -> Result<std::result::Result<G, Report>> + Send,
        begin: impl FnOnce() -> Pending<std::result::Result<G, Report>> + Send,
        acquired: impl FnOnce(G) -> Result<T> + Send,
    ) -> PyResult<std::result::Result<T, Report>> {
        let Waiting { client, subject, timeout, cancel } = *self;
        let handle = cancel::given(py, cancel, client)?;
        let Some(hub) = Hub::to_wait(py, timeout)? else {
            return subject.wait(py, timeout, handle, |wait| match block(wait)? {
                Ok(guard) => acquired(guard).map(Ok),
                Err(report) => Ok(Err(report)),
            });
        };
        match wait_in(&hub, subject, cancel, begin)? {
            Ok(guard) => subject.call_held(py, || acquired(guard)).map(Ok),
            Err(report) => Ok(Err(report)),
        }
    }
}

/// Waits for an acquisition in a greenlet. The result and the exceptions are those of [`Subject::wait`].
pub(crate) fn wait_in<T: Send + 'static>(
    hub: &Hub<'_>,
    subject: &Subject,
    cancel: Option<&Bound<'_, CancelHandle>>,
    begin: impl FnOnce() -> Pending<std::result::Result<T, Report>> + Send,
) -> PyResult<std::result::Result<T, Report>> {
    let py = hub.py();
    subject.check_open(py)?;
    let slot = Arc::new(Mutex::new(None));
    let ended = Arc::clone(&slot);
    let call = Call::new(py.detach(begin), move |py, waited| {
        *ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(waited);
        Ok(py.None())
    });
    if !hub.wait(Bound::new(py, call)?.into_any(), cancel.map(Bound::as_any))? {
        return Err(subject.raise_plain(py, Answer::Interrupted));
    }
    match slot.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(waited) => subject.ended(py, waited),
        None => Err(subject.raise_plain(py, Answer::Internal)),
    }
}
