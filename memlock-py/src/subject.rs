//! The subject of a call: a mutex, a semaphore, a counter or a session, and its server. Every
//! exception that concerns a subject names both.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use memlock_core::name::Key;
use memlock_core::store::has_secret_url;
use memlock_core::{Answer, Cancel, Error, Extension, Release, Report, Result, Wait, bare};
use pyo3::prelude::*;

use crate::args::Name;
use crate::call;
use crate::error::{Special, raise, raise_core, raise_special};
use crate::shared_client::{SharedClient, server};

/// The kind of a subject.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Mutex,
    Semaphore,
    Counter,
    Session,
}

/// A mutex, semaphore, counter or session, and its server.
#[derive(Clone)]
pub(crate) struct Subject {
    kind: Kind,
    pub(crate) name: Box<str>,
    server: Box<str>,
    /// `None` for the default client, which is never closed.
    client: Option<Arc<SharedClient>>,
}

impl Subject {
    pub(crate) fn new(client: &Arc<SharedClient>, kind: Kind, name: &Name, key: &Key) -> Subject {
        let server = client.server(key);
        Subject { kind, name: display_name(&name.0), server, client: Some(Arc::clone(client)) }
    }

    /// A subject of the default client.
    pub(crate) fn of_default(kind: Kind, name: &[u8]) -> Result<Subject> {
        let core = bare::default_client()?;
        let keys = core.keys();
        let key = match kind {
            Kind::Mutex => keys.lock(name),
            Kind::Session => keys.session(name),
            Kind::Semaphore | Kind::Counter => keys.semaphore(name),
        };
        Ok(Subject { kind, name: display_name(name), server: server(core, &key), client: None })
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
        call::call(py, || Ok(body()))?.map_err(|error| self.failed(py, &error))
    }

    /// Like [`Subject::call`], for a call that may acquire something: see [`call::acquire`].
    pub(crate) fn acquire<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce() -> Result<T> + Send,
    ) -> PyResult<T> {
        self.check_open(py)?;
        call::acquire(py, || Ok(body()))?.map_err(|error| self.failed(py, &error))
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
        let waited = call::wait(py, timeout, cancel, |wait| Ok(body(wait)))?;
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
        match &self.client {
            Some(client) if client.core.is_closed() => {
                let sentence =
                    format!("{self}: the client is closed: make another by memlock.connect().");
                Err(raise_special(py, Special::ClientClosed, sentence))
            }
            _ => Ok(()),
        }
    }

    /// The exception of a failure in the core.
    pub(crate) fn failed(&self, py: Python<'_>, error: &Error) -> PyErr {
        self.reported(py, &Report::new(error.kind().answer(), error.to_string()))
    }

    /// The exception of an answer with its message.
    pub(crate) fn reported(&self, py: Python<'_>, report: &Report) -> PyErr {
        let message = report.sentence();
        // Most messages name the subject themselves.
        let names = [format!(":{}", self.name), format!("\"{}\"", self.name)];
        let is_named =
            names.iter().any(|name| message.contains(name)) && message.contains(&*self.server);
        let sentence = if is_named { message.into_owned() } else { format!("{self}: {message}") };
        match (report.answer(), self.not_found_exception()) {
            (Answer::NotFound, Some(special)) => raise_special(py, special, sentence),
            (answer, _) => raise(py, answer, sentence),
        }
    }

    /// The exception of an answer, with a message about the subject.
    pub(crate) fn raise(&self, py: Python<'_>, answer: Answer, message: &str) -> PyErr {
        raise(py, answer, format!("{self}: {message}"))
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
            "{self} does not exist: it was never set up, has expired or was torn down. Set it up \
             first."
        );
        match self.not_found_exception() {
            Some(special) => raise_special(py, special, sentence),
            None => raise(py, Answer::NotFound, sentence),
        }
    }

    fn not_found_exception(&self) -> Option<Special> {
        match self.kind {
            Kind::Semaphore => Some(Special::SemaphoreNotFound),
            Kind::Counter => Some(Special::CounterNotFound),
            Kind::Session => Some(Special::SessionNotFound),
            Kind::Mutex => None,
        }
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
        self.reported(py, &Report::new(Answer::TimedOut, report.sentence()))
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Mutex => "The mutex",
            Kind::Semaphore => "The semaphore",
            Kind::Counter => "The counter",
            Kind::Session => "The session",
        };
        write!(f, "{kind} \"{}\" on {}", self.name, self.server)
    }
}

/// Also of a name that is about to be refused.
fn display_name(name: &[u8]) -> Box<str> {
    let name = String::from_utf8_lossy(name);
    if has_secret_url(&name) { "***".into() } else { name.into() }
}

/// The exception for an object that cannot be made, and so has no subject yet.
pub(crate) fn creation_error(
    py: Python<'_>,
    client: &SharedClient,
    what: &str,
    name: &Name,
    error: &Error,
) -> PyErr {
    let name = display_name(&name.0);
    let error = raise_core(py, error);
    let kind = error.get_type(py);
    let server = client.shown_url.split('?').next().unwrap_or_default();
    let sentence = format!("The {what} \"{name:.100}\" on {server}: {}", error.value(py));
    PyErr::from_type(kind, (sentence,))
}
