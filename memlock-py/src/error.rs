//! The exceptions: one for every answer that is not an ordinary "no", made from one table.

use memlock_core::{Answer, Error};
use pyo3::exceptions::{
    PyConnectionError, PyException, PyLookupError, PyRuntimeError, PyTimeoutError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

/// One exception: its name, its answer, the built-in exception that it is too, and its documentation.
type Row = (&'static str, Answer, Option<fn(Python<'_>) -> Bound<'_, PyType>>, &'static str);

const ROWS: [Row; 11] = [
    (
        "Invalid",
        Answer::Invalid,
        Some(|py| py.get_type::<PyValueError>()),
        "An argument is not valid: an empty or over-long name, a duration out of range.",
    ),
    (
        "Unreachable",
        Answer::Unreachable,
        Some(|py| py.get_type::<PyConnectionError>()),
        "No server could be reached; nothing was changed.",
    ),
    (
        "OutcomeUnknown",
        Answer::Unknown,
        None,
        "The request was sent, no answer came, and reading back failed too: it may have been done or not.",
    ),
    (
        "ProtocolError",
        Answer::Protocol,
        None,
        "The server is too old, runs without cas, refused the request or answered nonsense.",
    ),
    (
        "ConfigError",
        Answer::Config,
        Some(|py| py.get_type::<PyValueError>()),
        "The URL or a setting is not valid.",
    ),
    (
        "Deadlock",
        Answer::Deadlock,
        Some(|py| py.get_type::<PyRuntimeError>()),
        "This thread already holds that mutex through mutex_lock() and would wait for itself.",
    ),
    ("InternalError", Answer::Internal, None, "A bug in memlock was caught. Please report it."),
    (
        "NotHeld",
        Answer::NotHeld,
        Some(|py| py.get_type::<PyRuntimeError>()),
        "This process holds no such lock or permit: it was never acquired, or released before, or is a parent's.",
    ),
    (
        "LockLost",
        Answer::Lost,
        None,
        "The lock, or the permit, was ours and was no longer when we got there: its lease ran out, or the server lost it.\n\n\
         What was done under it may have overlapped with another holder's work.",
    ),
    (
        "SessionNotFound",
        Answer::NotFound,
        Some(|py| py.get_type::<PyLookupError>()),
        "There is no such session, semaphore or counter: it was never set up, has expired or was torn down.",
    ),
    (
        "TimedOut",
        Answer::TimedOut,
        Some(|py| py.get_type::<PyTimeoutError>()),
        "The lock or permit did not come free within the wait's limit.",
    ),
];

const ERROR_DOC: &str = "The base of all memlock exceptions.\n\n\
    `code` is the answer's number, the same in every language that memlock has: see the README's table.";

static TYPES: PyOnceLock<Vec<(Answer, Py<PyType>)>> = PyOnceLock::new();

/// Makes the exceptions and puts them into the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let base = make(py, "Error", PyTuple::new(py, [py.get_type::<PyException>()])?, ERROR_DOC, None)?;
    module.add("Error", &base)?;
    let mut types = Vec::with_capacity(ROWS.len());
    for (name, answer, also, doc) in ROWS {
        let bases: Vec<_> = std::iter::once(base.clone()).chain(also.map(|also| also(py))).collect();
        let made = make(py, name, PyTuple::new(py, bases)?, doc, Some(answer))?;
        module.add(name, &made)?;
        types.push((answer, made.unbind()));
    }
    // Filled before only when another interpreter of this process has imported the module.
    let _ = TYPES.set(py, types);
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

/// The exception of an answer, with a sentence.
pub(crate) fn raise(py: Python<'_>, answer: Answer, sentence: impl Into<String>) -> PyErr {
    let sentence = sentence.into();
    let types = TYPES.get(py).map(Vec::as_slice).unwrap_or_default();
    let of = |wanted: Answer| types.iter().find(|(answer, _)| *answer == wanted);
    match of(answer).or_else(|| of(Answer::Internal)) {
        Some((_, made)) => PyErr::from_type(made.bind(py).clone(), (sentence,)),
        None => PyRuntimeError::new_err(sentence),
    }
}

/// The exception of an answer about which there is nothing more to say.
pub(crate) fn raise_plain(py: Python<'_>, answer: Answer) -> PyErr {
    raise(py, answer, answer.describe().to_string_lossy())
}

/// The exception of a failure in the core.
pub(crate) fn raise_core(py: Python<'_>, error: &Error) -> PyErr {
    raise(py, error.kind().answer(), error.to_string())
}
