//! Arguments from Python: names, durations, numbers and timeouts.

use std::time::Duration;

use memlock_core::Answer;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::error::raise;

/// A name or a key: bytes, or a str, which is encoded in UTF-8. Surrogates that stand for bytes
/// that are not UTF-8 (PEP 383) become those bytes.
pub(crate) struct Name(pub(crate) Vec<u8>);

impl FromPyObject<'_, '_> for Name {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, '_, PyAny>) -> PyResult<Name> {
        if let Ok(bytes) = given.cast::<PyBytes>() {
            return Ok(Name(bytes.as_bytes().to_vec()));
        }
        let Ok(text) = given.cast::<PyString>() else {
            let kind = given.get_type().name()?;
            return Err(PyTypeError::new_err(format!(
                "a name or key must be str or bytes, not {kind}"
            )));
        };
        if let Ok(text) = text.to_cow() {
            return Ok(Name(text.into_owned().into_bytes()));
        }
        let encoded =
            given.call_method1("encode", ("utf-8", "surrogateescape")).map_err(|error| {
                let py = given.py();
                let refused = raise(
                    py,
                    Answer::Invalid,
                    format!("The name cannot be encoded in UTF-8: {error}."),
                );
                refused.set_cause(py, Some(error));
                refused
            })?;
        Ok(Name(encoded.cast::<PyBytes>()?.as_bytes().to_vec()))
    }
}

/// A URL. Python's own error of a text that is not UTF-8 contains the whole text.
pub(crate) struct Url(pub(crate) String);

impl FromPyObject<'_, '_> for Url {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, '_, PyAny>) -> PyResult<Url> {
        match given.cast::<PyString>()?.to_cow() {
            Ok(text) => Ok(Url(text.into_owned())),
            Err(_) => Err(raise(
                given.py(),
                Answer::Config,
                "The URL cannot be encoded in UTF-8: write other bytes as %XX.",
            )),
        }
    }
}

/// Converts bytes to the str from which [`Name`] makes the same bytes.
pub(crate) fn text<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyString>> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(PyString::new(py, text)),
        Err(_) => {
            let bytes = PyBytes::new(py, bytes);
            PyString::from_encoded_object(&bytes, Some(c"utf-8"), Some(c"surrogateescape"))
        }
    }
}

/// A duration: seconds as a number, or a timedelta.
#[derive(Clone, Copy)]
pub(crate) struct Seconds(pub(crate) Duration);

impl Seconds {
    pub(crate) const fn new(seconds: u64) -> Seconds {
        Seconds(Duration::from_secs(seconds))
    }
}

impl FromPyObject<'_, '_> for Seconds {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, '_, PyAny>) -> PyResult<Seconds> {
        let py = given.py();
        let invalid = |value: String| {
            raise(
                py,
                Answer::Invalid,
                format!("{value} is not a valid duration: give seconds, 0 or more."),
            )
        };
        let number = match given.extract::<f64>() {
            Ok(number) => number,
            Err(error) if error.is_instance_of::<PyOverflowError>(py) => {
                return Err(invalid("An integer that large".to_owned()));
            }
            Err(error) if error.is_instance_of::<PyTypeError>(py) => {
                let Ok(seconds) = given.call_method0("total_seconds") else {
                    let kind = given.get_type().name()?;
                    return Err(PyTypeError::new_err(format!(
                        "a duration must be an int or float, or a datetime.timedelta, not {kind}"
                    )));
                };
                seconds.extract::<f64>()?
            }
            Err(error) => return Err(error),
        };
        Duration::try_from_secs_f64(number).map(Seconds).map_err(|_| invalid(number.to_string()))
    }
}

/// An integer. A value out of range raises the ValueError of other invalid values, not an
/// OverflowError.
#[derive(Clone, Copy)]
pub(crate) struct Whole<T>(pub(crate) T);

pub(crate) trait Range: for<'a, 'py> FromPyObject<'a, 'py, Error = PyErr> {
    const RANGE: &'static str;
}

impl Range for u32 {
    const RANGE: &'static str = "1 to 4,294,967,295";
}

impl Range for u64 {
    const RANGE: &'static str = "0 to 18,446,744,073,709,551,615";
}

impl Range for i64 {
    const RANGE: &'static str = "-9,223,372,036,854,775,808 to 9,223,372,036,854,775,807";
}

impl<T: Range> FromPyObject<'_, '_> for Whole<T> {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, '_, PyAny>) -> PyResult<Whole<T>> {
        let py = given.py();
        given.extract().map(Whole).map_err(|error: PyErr| {
            if error.is_instance_of::<PyOverflowError>(py) {
                let range = T::RANGE;
                return raise(
                    py,
                    Answer::Invalid,
                    format!("A number is out of range: give one from {range}."),
                );
            }
            error
        })
    }
}

/// The value of `threading.TIMEOUT_MAX` on 64-bit machines, in seconds.
const TIMEOUT_MAX: f64 = 9_223_372_036.0;

/// The timeout of an acquire() call, from the arguments that threading's locks and semaphores have.
/// Without arguments it is `default`; `None` means no timeout.
pub(crate) fn effective_timeout(
    py: Python<'_>,
    blocking: Option<&Bound<'_, PyAny>>,
    timeout: Option<f64>,
    default: Option<Duration>,
) -> PyResult<Option<Duration>> {
    let invalid = |sentence: &str| Err(raise(py, Answer::Invalid, sentence));
    let blocking = blocking.map_or(Ok(true), |blocking| blocking.is_truthy())?;
    let Some(timeout) = timeout.filter(|&timeout| timeout != -1.0) else {
        return Ok(if blocking { default } else { Some(Duration::ZERO) });
    };
    if !blocking {
        return invalid("can't specify a timeout for a non-blocking call");
    }
    if timeout > TIMEOUT_MAX {
        return Err(PyOverflowError::new_err("timeout value is too large"));
    }
    match Duration::try_from_secs_f64(timeout) {
        Ok(timeout) => Ok(Some(timeout)),
        Err(_) => invalid("timeout value must be a non-negative number"),
    }
}
