//! What this thread has entered by `with` statements and not left: a wait without a limit for it would
//! be for itself.
//!
//! A `with` statement is not always left by the thread that entered it: a web framework may run both
//! ends of a generator in any thread of a pool. What a thread has entered counts only if no other
//! thread can leave it while this one waits:
//!
//! | entered in | why this thread must leave it |
//! | --- | --- |
//! | this context (`contextvars`) | the code that waits is inside of the statement; a pool that passes work on runs it in a copy of the context |
//! | a thread that runs an event loop | its tasks run in no other thread, and the wait blocks all of them |
//! | another greenlet of this thread | greenlets change no threads, and the wait blocks all of them |
//!
//! The server decides whether one of the tokens is in the way: see `Wait::while_holding`.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use memlock_core::{Token, fork};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;

use crate::acquisition::Acquisition;

struct Entered {
    token: Token,
    process: u64,
    /// Not to be upgraded: dropping the last reference sends requests.
    held: Weak<Acquisition>,
    /// Which greenlet has entered; 0 without greenlets.
    greenlet: usize,
}

thread_local! {
    static ENTERED: RefCell<Vec<Entered>> = const { RefCell::new(Vec::new()) };
}

/// What was entered in a context: a tuple of tokens.
static CONTEXT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// A `with` statement begins in this thread.
pub(crate) fn enter(py: Python<'_>, held: &Arc<Acquisition>) {
    let (token, process) = (held.token, fork::generation());
    let entered = Entered { token, process, held: Arc::downgrade(held), greenlet: greenlet(py) };
    let alive: Vec<Token> = ENTERED.with_borrow_mut(|list| {
        list.retain(|entered| entered.held.strong_count() > 0 && entered.process == process);
        list.push(entered);
        list.iter().map(|entered| entered.token).collect()
    });
    // Without it, only a wait for itself is not noticed.
    let _ = add_to_context(py, token, &alive);
}

/// The tokens of what this thread has to leave itself.
pub(crate) fn tokens(py: Python<'_>) -> Vec<Token> {
    let process = fork::generation();
    let entered: Vec<(Token, usize)> = ENTERED.with_borrow(|list| {
        let ours = list
            .iter()
            .filter(|entered| entered.held.strong_count() > 0 && entered.process == process);
        ours.map(|entered| (entered.token, entered.greenlet)).collect()
    });
    if entered.is_empty() {
        return Vec::new();
    }
    let (runs_loop, greenlet) = (runs_event_loop(py), greenlet(py));
    let here = of_context(py).unwrap_or_default();
    let must_leave = |&(token, entering): &(Token, usize)| {
        runs_loop || entering != greenlet && entering != 0 || here.contains(&token.to_string())
    };
    entered.into_iter().filter(must_leave).map(|(token, _)| token).collect()
}

fn context_variable(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    let make = || {
        let variable =
            py.import("contextvars")?.call_method1("ContextVar", ("memlock.entered",))?;
        Ok::<_, PyErr>(variable.unbind())
    };
    Ok(CONTEXT.get_or_try_init(py, make)?.bind(py))
}

fn of_context(py: Python<'_>) -> PyResult<Vec<String>> {
    context_variable(py)?.call_method1("get", (PyTuple::empty(py),))?.extract()
}

fn add_to_context(py: Python<'_>, token: Token, alive: &[Token]) -> PyResult<()> {
    let alive: Vec<String> = alive.iter().map(Token::to_string).collect();
    let mut here = of_context(py)?;
    here.retain(|token| alive.contains(token));
    here.push(token.to_string());
    context_variable(py)?.call_method1("set", (PyTuple::new(py, here)?,))?;
    Ok(())
}

fn runs_event_loop(py: Python<'_>) -> bool {
    ask(py, "asyncio", "_get_running_loop").is_some_and(|running| !running.is_none())
}

/// Identifies the greenlet that runs; 0 without greenlets.
fn greenlet(py: Python<'_>) -> usize {
    ask(py, "greenlet", "getcurrent").map_or(0, |current| current.as_ptr() as usize)
}

/// Calls a function of a module, if the program has imported that.
fn ask<'py>(py: Python<'py>, module: &str, function: &str) -> Option<Bound<'py, PyAny>> {
    let modules = py.import("sys").ok()?.getattr("modules").ok()?;
    modules.get_item(module).ok()?.call_method0(function).ok()
}
