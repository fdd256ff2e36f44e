//! `memlock._memlock._Completions`: the descriptor that tells an event loop which calls have ended.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::error::raise_core;

/// The calls of one event loop that have ended, by their numbers.
#[pyclass(frozen, module = "memlock._memlock", name = "_Completions")]
pub(crate) struct Completions {
    pub(super) core: Arc<memlock_core::Completions>,
}

#[pymethods]
impl Completions {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Completions> {
        match memlock_core::Completions::new() {
            Ok(core) => Ok(Completions { core }),
            Err(error) => Err(raise_core(py, &error)),
        }
    }

    /// Readable while take() would return numbers; now and then though it would not, until it is called.
    fn fileno(&self) -> i32 {
        self.core.descriptor()
    }

    /// The numbers of the calls that have ended since take() was called last.
    fn take(&self) -> Vec<u64> {
        self.core.take()
    }

    /// Adds a number. Any thread may call this.
    fn add(&self, number: u64) {
        self.core.add(number);
    }
}
