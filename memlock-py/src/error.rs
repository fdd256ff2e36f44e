//! The exceptions: one for each answer that is neither success nor a plain False, generated from
//! one table.

use memlock_core::{Answer, Error};
use pyo3::exceptions::{
    PyConnectionError, PyException, PyLookupError, PyRuntimeError, PyTimeoutError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

/// An exception that is more specific than its answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Special {
    ClientClosed,
    SessionNotFound,
    SemaphoreNotFound,
    CounterNotFound,
}

/// One exception.
struct Row {
    name: &'static str,
    answer: Answer,
    /// `None` for the general exception of an answer.
    special: Option<Special>,
    /// The built-in exceptions of which it is also a subclass.
    builtins: &'static [fn(Python<'_>) -> Bound<'_, PyType>],
    doc: &'static str,
}

const fn row(
    name: &'static str,
    answer: Answer,
    builtins: &'static [fn(Python<'_>) -> Bound<'_, PyType>],
    doc: &'static str,
) -> Row {
    Row { name, answer, special: None, builtins, doc }
}

/// A subclass of the exception of its answer, which precedes it in the table.
const fn special(name: &'static str, answer: Answer, special: Special, doc: &'static str) -> Row {
    Row { name, answer, special: Some(special), builtins: &[], doc }
}

const ROWS: [Row; 17] = [
    row(
        "Invalid",
        Answer::Invalid,
        &[|py| py.get_type::<PyValueError>()],
        "An argument is invalid, such as an empty or over-long name, or a duration out of range.",
    ),
    special(
        "ClientClosed",
        Answer::Invalid,
        Special::ClientClosed,
        "The client was closed, by Client.close() or by the end of its `with` statement.",
    ),
    row(
        "Unreachable",
        Answer::Unreachable,
        &[|py| py.get_type::<PyConnectionError>()],
        "No server could be reached. Nothing was changed.",
    ),
    row(
        "OutcomeUnknown",
        Answer::Unknown,
        &[],
        "The request was sent, no reply arrived, and reading the item back failed too: the \
         outcome is unknown.",
    ),
    row(
        "ProtocolError",
        Answer::Protocol,
        &[],
        "The server is too old, runs without cas, refused the request or sent an invalid reply.",
    ),
    row(
        "ConfigError",
        Answer::Config,
        &[|py| py.get_type::<PyValueError>()],
        "The URL or a setting is invalid.",
    ),
    row(
        "Deadlock",
        Answer::Deadlock,
        &[|py| py.get_type::<PyRuntimeError>()],
        "The caller already holds what it asks for, and would wait for itself.",
    ),
    row("InternalError", Answer::Internal, &[], "A bug in memlock was caught. Please report it."),
    row(
        "NotHeld",
        Answer::NotHeld,
        // threading.Lock raises the former, threading.BoundedSemaphore the latter.
        &[|py| py.get_type::<PyRuntimeError>(), |py| py.get_type::<PyValueError>()],
        "This process does not hold the lock or permit: never acquired, already released, or held \
         by the parent process.",
    ),
    row(
        "LockLost",
        Answer::Lost,
        &[],
        "The lock or permit was lost: its lease expired, or the server lost it.\n\n\
         Work that was done under it may have overlapped with the work of another holder.",
    ),
    row(
        "NotFound",
        Answer::NotFound,
        &[|py| py.get_type::<PyLookupError>()],
        "There is no such session, semaphore or counter: it was never set up, has expired or was \
         torn down.",
    ),
    special(
        "SessionNotFound",
        Answer::NotFound,
        Special::SessionNotFound,
        "There is no such session: it was never set up, has expired or was torn down.",
    ),
    special(
        "SemaphoreNotFound",
        Answer::NotFound,
        Special::SemaphoreNotFound,
        "There is no such semaphore: it was never set up, has expired or was torn down.",
    ),
    special(
        "CounterNotFound",
        Answer::NotFound,
        Special::CounterNotFound,
        "There is no such counter: its item was never set up, or the server has lost it.",
    ),
    row(
        "TimedOut",
        Answer::TimedOut,
        &[|py| py.get_type::<PyTimeoutError>()],
        "The timeout expired before the lock or permit was available.",
    ),
    row(
        "Interrupted",
        Answer::Interrupted,
        &[],
        "The wait was cancelled from another thread, by Client.cancel_waits() or a CancelHandle. \
         Nothing is held.",
    ),
    row(
        "Recovering",
        Answer::Recovering,
        &[],
        "The server was started a short while ago, and gives no new locks or permits until all \
         leases of before have ended; the call was not to wait. Only with `guard=` in the URL.",
    ),
];

const ERROR_DOC: &str = "The base class of all memlock exceptions.\n\n\
    `code` is the number of the answer, the same in every language: see docs/answers.md.";

/// The exceptions, in the order of the table.
static TYPES: PyOnceLock<Vec<Py<PyType>>> = PyOnceLock::new();

/// Creates the exceptions and adds them to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let error =
        make(py, "Error", PyTuple::new(py, [py.get_type::<PyException>()])?, ERROR_DOC, None)?;
    module.add("Error", &error)?;
    let mut types: Vec<Bound<'_, PyType>> = Vec::with_capacity(ROWS.len());
    for Row { name, answer, special, builtins, doc } in &ROWS {
        let general = ROWS.iter().zip(&types).find(|(row, _)| row.answer == *answer);
        let base = match (special, general) {
            (Some(_), Some((_, general))) => general,
            _ => &error,
        };
        let bases: Vec<_> = std::iter::once(base.clone())
            .chain(builtins.iter().map(|builtins| builtins(py)))
            .collect();
        let made = make(py, name, PyTuple::new(py, bases)?, doc, Some(*answer))?;
        module.add(*name, &made)?;
        types.push(made);
    }
    // Already set only if the module is imported anew.
    let _ = TYPES.set(py, types.into_iter().map(Bound::unbind).collect());
    Ok(())
}

fn make<'py>(
    py: Python<'py>,
    name: &str,
    bases: Bound<'py, PyTuple>,
    doc: &str,
    answer: Option<Answer>,
) -> PyResult<Bound<'py, PyType>> {
    let members = PyDict::new(py);
    members.set_item("__module__", "memlock")?;
    members.set_item("__doc__", doc)?;
    members.set_item("code", answer.unwrap_or(Answer::Internal).code())?;
    Ok(py.get_type::<PyType>().call1((name, bases, members))?.cast_into()?)
}

/// The exception of an answer, with a message.
pub(crate) fn raise(py: Python<'_>, answer: Answer, sentence: impl Into<String>) -> PyErr {
    raise_row(py, |row| row.answer == answer, sentence.into())
}

/// An exception that is more specific than its answer.
pub(crate) fn raise_special(
    py: Python<'_>,
    special: Special,
    sentence: impl Into<String>,
) -> PyErr {
    raise_row(py, |row| row.special == Some(special), sentence.into())
}

/// The first exception of the table that matches.
fn raise_row(py: Python<'_>, matches: impl Fn(&Row) -> bool, sentence: String) -> PyErr {
    let types = TYPES.get(py).map(Vec::as_slice).unwrap_or_default();
    let find =
        |matches: &dyn Fn(&Row) -> bool| ROWS.iter().zip(types).find(|(row, _)| matches(row));
    match find(&matches).or_else(|| find(&|row| row.answer == Answer::Internal)) {
        Some((_, made)) => PyErr::from_type(made.bind(py).clone(), (sentence,)),
        None => PyRuntimeError::new_err(sentence),
    }
}

/// The exception of an answer, with the general description of the answer.
pub(crate) fn raise_plain(py: Python<'_>, answer: Answer) -> PyErr {
    raise(py, answer, answer.describe().to_string_lossy())
}

/// The exception of a failure in the core.
pub(crate) fn raise_core(py: Python<'_>, error: &Error) -> PyErr {
    raise(py, error.kind().answer(), error.to_string())
}
