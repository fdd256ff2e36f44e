//! Greenlets of gevent and eventlet: a wait in a program whose threads they are must not stop the
//! others. So it is carried out by a thread of the client, and the greenlet waits in its hub.

use std::thread::{self, ThreadId};
use std::time::Duration;

use pyo3::prelude::*;

/// Who acquires and releases: a thread or a greenlet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agent {
    pub(crate) thread: ThreadId,
    /// Its number; `None` in a program without green threads.
    greenlet: Option<u64>,
}

impl Agent {
    pub(crate) fn current(py: Python<'_>) -> Agent {
        let thread = thread::current().id();
        let number = |hubs: Bound<'_, PyModule>| hubs.call_method0("greenlet")?.extract();
        Agent { thread, greenlet: module(py).and_then(|hubs| number(hubs).ok()) }
    }
}

/// `memlock._green`, if the program uses gevent or eventlet.
fn module(py: Python<'_>) -> Option<Bound<'_, PyModule>> {
    let modules = py.import("sys").ok()?.getattr("modules").ok()?;
    let is_used = |name: &str| modules.contains(name).unwrap_or(false);
    let is_used = is_used("gevent.monkey") || is_used("eventlet.patcher");
    is_used.then(|| py.import("memlock._green").ok()).flatten()
}

/// The hub that a wait of this greenlet is to leave to the others, if any.
pub(crate) struct Hub<'py>(Bound<'py, PyAny>);

impl<'py> Hub<'py> {
    pub(crate) fn current(py: Python<'py>) -> PyResult<Option<Hub<'py>>> {
        let Some(green) = module(py) else { return Ok(None) };
        let hub = green.call_method0("current_hub")?;
        Ok((!hub.is_none()).then(|| Hub(hub)))
    }

    /// The same for a wait that may take that long.
    pub(crate) fn to_wait(
        py: Python<'py>,
        timeout: Option<Duration>,
    ) -> PyResult<Option<Hub<'py>>> {
        if timeout.is_some_and(|timeout| timeout.is_zero()) { Ok(None) } else { Hub::current(py) }
    }

    pub(crate) fn py(&self) -> Python<'py> {
        self.0.py()
    }

    /// Waits for a `_Call`, and returns whether it ended before the handle was cancelled. If an
    /// exception is raised in the greenlet, the call is cancelled, too.
    pub(crate) fn wait(
        &self,
        call: Bound<'py, PyAny>,
        cancel: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<bool> {
        self.0.call_method1("wait", (call, cancel))?.is_truthy()
    }

    /// Lets others run for that long.
    pub(crate) fn sleep(&self, time: Duration) -> PyResult<()> {
        self.0.call_method1("sleep", (time.as_secs_f64(),)).map(|_| ())
    }
}
