//! What a call is about: a mutex, a semaphore, a counter or a session, and the server that it is
//! on. Every exception that concerns it names both.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use memlock_core::name::Key;
use memlock_core::store::{Route, without_password};
use memlock_core::{Answer, Cancel, Error, Extension, Release, Report, Result, Wait, Waited, bare};
use pyo3::prelude::*;

use crate::args::Name;
use crate::call;
use crate::error::{Special, raise, raise_core, raise_special};

/// A client as its objects share it.
pub(crate) struct Shared {
    pub(crate) core: memlock_core::Client,
    pub(crate) url: String,
}

/// What a subject is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Mutex,
    Semaphore,
    Counter,
    Session,
}

/// Something by its name, on its server.
#[derive(Clone)]
pub(crate) struct Subject {
    kind: Kind,
    pub(crate) name: Box<str>,
    server: Box<str>,
    /// `None` for the default client, which is not closed.
    client: Option<Arc<Shared>>,
}

impl Shared {
    /// The name of its server for what has this key.
    fn server(&self, key: &Key) -> Box<str> {
        server(&self.core, key)
    }
}

fn server(core: &memlock_core::Client, key: &Key) -> Box<str> {
    let place = core.server_of(Route::of(key));
    core.nodes().into_iter().nth(place).map_or_else(Box::default, |node| node.name.into())
}

impl Subject {
    pub(crate) fn new(client: &Arc<Shared>, kind: Kind, name: &Name, key: &Key) -> Subject {
        let server = client.server(key);
        Subject { kind, name: shown(&name.0), server, client: Some(Arc::clone(client)) }
    }

    /// Of the default client.
    pub(crate) fn of_default(kind: Kind, name: &[u8]) -> Result<Subject> {
        let core = bare::default_client()?;
        let keys = core.keys();
        let key = match kind {
            Kind::Mutex => keys.lock(name),
            Kind::Session => keys.session(name),
            Kind::Semaphore | Kind::Counter => keys.semaphore(name),
        };
        Ok(Subject { kind, name: shown(name), server: server(core, &key), client: None })
    }

    /// Runs a call of the core while other Python threads run. Not once the client is closed.
    pub(crate) fn call<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce() -> Result<T> + Send,
    ) -> PyResult<T> {
        self.check_open(py)?;
        self.call_held(py, body)
    }

    /// As [`Subject::call`], for what is held: that stays so when the client is closed.
    pub(crate) fn call_held<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce() -> Result<T> + Send,
    ) -> PyResult<T> {
        call::call(py, || Ok(body()))?.map_err(|error| self.failed(py, &error))
    }

    /// Runs a wait of the core: at most `limit`, or for ever. What it gave is `None` when the limit
    /// passed.
    pub(crate) fn wait<T: Send>(
        &self,
        py: Python<'_>,
        limit: Option<Duration>,
        cancel: Option<&Cancel>,
        body: impl FnOnce(&Wait<'_>) -> Result<Waited<T>> + Send,
    ) -> PyResult<Option<T>> {
        self.check_open(py)?;
        let waited = call::wait(py, limit, cancel, |wait| Ok(body(wait)))?;
        match waited.map_err(|error| self.failed(py, &error))? {
            Waited::Done(got) => Ok(Some(got)),
            Waited::Interrupted => {
                self.check_open(py)?;
                Err(self.raise(
                    py,
                    Answer::Interrupted,
                    "the wait was cancelled, and nothing is held.",
                ))
            }
            Waited::Busy | Waited::TimedOut => Ok(None),
        }
    }

    /// Raises what a call raises of a client that was closed.
    pub(crate) fn check_open(&self, py: Python<'_>) -> PyResult<()> {
        match &self.client {
            Some(client) if client.core.is_closed() => {
                let sentence =
                    format!("{self}: the client is closed. Make another by memlock.connect().");
                Err(raise_special(py, Special::ClientClosed, sentence))
            }
            _ => Ok(()),
        }
    }

    /// The exception of a failure in the core.
    pub(crate) fn failed(&self, py: Python<'_>, error: &Error) -> PyErr {
        self.reported(py, &Report::new(error.kind().answer(), error.to_string()))
    }

    /// The exception of an answer that brings its own sentence.
    pub(crate) fn reported(&self, py: Python<'_>, report: &Report) -> PyErr {
        let said = report.sentence();
        // Most say so themselves.
        let names = [format!(":{}", self.name), format!("\"{}\"", self.name)];
        let is_named = names.iter().any(|name| said.contains(name)) && said.contains(&*self.server);
        let sentence = if is_named { said.into_owned() } else { format!("{self}: {said}") };
        match (report.answer(), self.missing_kind()) {
            (Answer::NotFound, Some(special)) => raise_special(py, special, sentence),
            (answer, _) => raise(py, answer, sentence),
        }
    }

    /// The exception of an answer, with what there is to say of the subject.
    pub(crate) fn raise(&self, py: Python<'_>, answer: Answer, said: &str) -> PyErr {
        raise(py, answer, format!("{self}: {said}"))
    }

    /// The exception of an answer about which there is nothing more to say.
    pub(crate) fn raise_plain(&self, py: Python<'_>, answer: Answer) -> PyErr {
        match answer {
            Answer::NotFound => self.missing(py),
            Answer::Lost => self.raise(
                py,
                answer,
                "it was lost: its lease ran out, or the server lost it, so that another may have held it meanwhile.",
            ),
            Answer::NotHeld => self.raise(
                py,
                answer,
                "it is not held here: never acquired, released before, or held by the parent of this process.",
            ),
            Answer::Interrupted => self.raise(py, answer, "the wait was cancelled, and nothing is held."),
            other => self.raise(py, other, &other.describe().to_string_lossy()),
        }
    }

    /// There is no such thing.
    pub(crate) fn missing(&self, py: Python<'_>) -> PyErr {
        let sentence = format!("{self}: nobody has set it up, or it has expired or was torn down.");
        match self.missing_kind() {
            Some(special) => raise_special(py, special, sentence),
            None => raise(py, Answer::NotFound, sentence),
        }
    }

    fn missing_kind(&self) -> Option<Special> {
        match self.kind {
            Kind::Semaphore => Some(Special::SemaphoreNotFound),
            Kind::Counter => Some(Special::CounterNotFound),
            Kind::Session => Some(Special::SessionNotFound),
            Kind::Mutex => None,
        }
    }

    /// Raises what release() raises.
    pub(crate) fn tell(&self, py: Python<'_>, released: Release) -> PyResult<()> {
        match released {
            Release::Released => Ok(()),
            Release::Lost => Err(self.raise_plain(py, Answer::Lost)),
            Release::NotHeld => Err(self.raise_plain(py, Answer::NotHeld)),
        }
    }

    /// Raises what extend() raises.
    pub(crate) fn tell_extended(&self, py: Python<'_>, extended: Extension) -> PyResult<()> {
        match extended {
            Extension::Extended => Ok(()),
            Extension::Lost => Err(self.raise_plain(py, Answer::Lost)),
            Extension::NotHeld => Err(self.raise_plain(py, Answer::NotHeld)),
        }
    }

    /// What a `with` statement raises when the limit of its wait has passed.
    pub(crate) fn timed_out(&self, py: Python<'_>, limit: Option<Duration>) -> PyErr {
        let limit = limit.unwrap_or_default();
        self.raise(py, Answer::TimedOut, &format!("timed out after {limit:?}: others hold it."))
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

fn shown(name: &[u8]) -> Box<str> {
    String::from_utf8_lossy(name).into()
}

/// What cannot be made, before there is a subject.
pub(crate) fn unmade(
    py: Python<'_>,
    client: &Shared,
    what: &str,
    name: &Name,
    error: &Error,
) -> PyErr {
    let name = shown(&name.0);
    let error = raise_core(py, error);
    let kind = error.get_type(py);
    let server = without_password(client.url.split('?').next().unwrap_or_default());
    let sentence = format!("The {what} \"{name:.100}\" on {server}: {}", error.value(py));
    PyErr::from_type(kind, (sentence,))
}
