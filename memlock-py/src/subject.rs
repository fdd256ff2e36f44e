//! The subject of a call: a lock, a semaphore, a counter or a distinct list. Every exception that
//! concerns a subject names it, and its server; of the bare functions, unless the name is refused.

use std::sync::Arc;
use std::time::Duration;

use memlock_core::store::has_secret_url;
use memlock_core::{Answer, Cancel, Error, Extension, Release, Report, Result, Wait};
use pyo3::prelude::*;

use crate::args::Name;
use crate::call;
use crate::error::{Special, raise, raise_core, raise_special};
use crate::shared_client::SharedClient;

/// The kind of a subject.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Mutex,
    Semaphore,
    Counter,
    Session,
}

/// A lock, a semaphore, a counter or a distinct list.
#[derive(Clone)]
pub(crate) struct Subject {
    kind: Kind,
    pub(crate) name: Box<str>,
    core: Arc<memlock_core::Subject>,
    client: Arc<SharedClient>,
}

impl Subject {
    pub(crate) fn new(
        client: &Arc<SharedClient>,
        kind: Kind,
        name: &Name,
        core: memlock_core::Subject,
    ) -> Subject {
        let name = String::from_utf8_lossy(&name.0).into();
        Subject { kind, name, core: Arc::new(core), client: Arc::clone(client) }
    }

    /// Runs a call of the core with the GIL released, unless the client is closed.
    pub(crate) fn call<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce() -> Result<T> + Send,
    ) -> PyResult<T> {
        self.check_open(py)?;
        self.call_held(py, body)
    }

    /// Like [`Subject::call`], for what is held: this remains usable after the client is closed.
    pub(crate) fn call_held<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce() -> Result<T> + Send,
    ) -> PyResult<T> {
        call::call(py, body)?.map_err(|error| self.failed(py, &error))
    }

    /// Like [`Subject::call`], for a call that may acquire something: see [`call::acquire`].
    pub(crate) fn acquire<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce() -> Result<T> + Send,
    ) -> PyResult<T> {
        self.check_open(py)?;
        call::acquire(py, body)?.map_err(|error| self.failed(py, &error))
    }

    /// Runs a wait of the core for at most `timeout`, or without a limit. Returns the report of the
    /// core when the timeout expired.
    pub(crate) fn wait<T: Send>(
        &self,
        py: Python<'_>,
        timeout: Option<Duration>,
        cancel: Option<&Cancel>,
        body: impl FnOnce(&Wait<'_>) -> Result<std::result::Result<T, Report>> + Send,
    ) -> PyResult<std::result::Result<T, Report>> {
        self.check_open(py)?;
        let waited = call::wait(py, timeout, cancel, body)?;
        match waited.map_err(|error| self.failed(py, &error))? {
            Err(report) if report == Answer::Interrupted => {
                self.check_open(py)?;
                Err(self.raise(py, Answer::Interrupted, "the wait was cancelled; nothing is held."))
            }
            Err(report) if report == Answer::Recovering => Err(self.reported(py, &report)),
            ended => Ok(ended),
        }
    }

    /// Raises ClientClosed if the client is closed.
    pub(crate) fn check_open(&self, py: Python<'_>) -> PyResult<()> {
        if !self.client.core.is_closed() {
            return Ok(());
        }
        let sentence =
            format!("The {}: the client is closed: make another by memlock.connect().", self.core);
        Err(raise_special(py, Special::ClientClosed, sentence))
    }

    /// The exception of a failure in the core.
    pub(crate) fn failed(&self, py: Python<'_>, error: &Error) -> PyErr {
        self.reported(py, &error.clone().into())
    }

    /// The exception of an answer with its message.
    pub(crate) fn reported(&self, py: Python<'_>, report: &Report) -> PyErr {
        match report.subject() {
            Some(_) => raise_report(py, self.kind, report),
            None => self.raise(py, report.answer(), &report.sentence()),
        }
    }

    /// The exception of an answer, with a message about the subject.
    pub(crate) fn raise(&self, py: Python<'_>, answer: Answer, message: &str) -> PyErr {
        raise(py, answer, format!("The {}: {message}", self.core))
    }

    /// The exception of an answer, with the general description of the answer.
    pub(crate) fn raise_plain(&self, py: Python<'_>, answer: Answer) -> PyErr {
        match answer {
            Answer::NotFound => self.not_found(py),
            Answer::Lost => self.raise(
                py,
                answer,
                "lost, because the lease expired or the server lost it: another holder may have \
                 had it meanwhile.",
            ),
            Answer::NotHeld => self.raise(
                py,
                answer,
                "not held by this object: never acquired, already released, or held by the \
                 parent process.",
            ),
            Answer::Interrupted => {
                self.raise(py, answer, "the wait was cancelled; nothing is held.")
            }
            other => self.raise(py, other, &other.describe().to_string_lossy()),
        }
    }

    /// The exception for a subject that does not exist.
    pub(crate) fn not_found(&self, py: Python<'_>) -> PyErr {
        let sentence = format!(
            "There is no {}: it was never set up, has expired or was torn down. Set it up first.",
            self.core
        );
        raise_report(py, self.kind, &Report::new(Answer::NotFound, sentence))
    }

    /// Raises the exception of release() for this outcome.
    pub(crate) fn check_released(&self, py: Python<'_>, released: Release) -> PyResult<()> {
        match released {
            Release::Released => Ok(()),
            Release::Lost => Err(self.raise_plain(py, Answer::Lost)),
            Release::NotHeld => Err(self.raise_plain(py, Answer::NotHeld)),
        }
    }

    /// Raises the exception of extend() for this outcome.
    pub(crate) fn check_extended(&self, py: Python<'_>, extended: Extension) -> PyResult<()> {
        match extended {
            Extension::Extended => Ok(()),
            Extension::Lost => Err(self.raise_plain(py, Answer::Lost)),
            Extension::NotHeld => Err(self.raise_plain(py, Answer::NotHeld)),
        }
    }

    /// The exception of a `with` statement whose timeout expired; `report` is that of the wait. A
    /// single attempt timed out, too.
    pub(crate) fn timed_out(&self, py: Python<'_>, report: &Report) -> PyErr {
        self.reported(py, &report.clone().as_answer(Answer::TimedOut))
    }
}

/// The exception of an answer whose sentence needs no addition.
pub(crate) fn raise_report(py: Python<'_>, kind: Kind, report: &Report) -> PyErr {
    let special = match (report.answer(), kind) {
        (Answer::NotFound, Kind::Semaphore) => Special::SemaphoreNotFound,
        (Answer::NotFound, Kind::Counter) => Special::CounterNotFound,
        (Answer::NotFound, Kind::Session) => Special::SessionNotFound,
        (answer, _) => return raise(py, answer, report.sentence()),
    };
    raise_special(py, special, report.sentence())
}

/// The exception for an object that cannot be made, and so has no subject yet.
pub(crate) fn creation_error(
    py: Python<'_>,
    client: &SharedClient,
    what: &str,
    name: &Name,
    error: &Error,
) -> PyErr {
    if error.subject().is_some() {
        return raise_core(py, error);
    }
    let name = String::from_utf8_lossy(&name.0);
    let name: String =
        if has_secret_url(&name) { "***".into() } else { name.chars().take(100).collect() };
    let server = client.shown_url.split('?').next().unwrap_or_default();
    raise(py, error.kind().answer(), format!("The {what} {name:?} on {server}: {error}"))
}
