//! Binds what a `with` statement has entered to what has to leave the statement: a wait without a limit
//! for it would be for itself.
//!
//! Any thread may release what another one holds, and `__enter__()` may be called by anything: a web
//! framework runs both ends of a generator in any thread of a pool, and an `ExitStack` may be closed
//! by another thread. So only a statement counts whose frame can be left by no other thread:
//!
//! | `__enter__()` was called by a `with` statement of | counts, because |
//! | --- | --- |
//! | a function | its frame is below the one that waits, or in another greenlet of this thread |
//! | a coroutine, or an asynchronous generator | the same event loop runs it and the wait, which blocks it |
//! | a generator of a `@contextmanager` that such a statement has entered | of that statement |
//!
//! An event loop may go on in another thread, and a coroutine may be resumed by any: so a statement in
//! a coroutine counts only while the loop in which it was entered runs in this thread.
//!
//! A `with` statement is recognized by the calling instruction. Where an interpreter has others than
//! those known here, nothing counts.

use std::sync::{Mutex, MutexGuard, PoisonError};

use memlock_core::Token;
use memlock_core::bound::{self, Releaser, Thread};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// The flags of code objects.
const GENERATOR: u32 = 0x20;
const COROUTINE: u32 = 0x80;
const ASYNC_GENERATOR: u32 = 0x200;

/// The `with` statement of an acquisition, while something has to leave it.
#[derive(Default)]
pub(crate) struct Statement(Mutex<Option<bound::Bound>>);

/// The instructions of `with` statements; the second one is the one before a call.
static INSTRUCTIONS: PyOnceLock<(Vec<u8>, Vec<u8>)> = PyOnceLock::new();

impl Statement {
    /// `__enter__()` was called in this thread, which must be of the process that acquired it: another
    /// thread may have locked this when that process forked.
    pub(crate) fn enter(&self, py: Python<'_>, token: Token) {
        // Without an answer, only a wait for itself is not noticed.
        let Ok(Some(releaser)) = left_by(py) else { return };
        *self.bound() = Some(bound::Bound::to(releaser, token));
    }

    /// The statement ends, or what it would release is released.
    pub(crate) fn leave(&self) {
        *self.bound() = None;
    }

    fn bound(&self) -> MutexGuard<'_, Option<bound::Bound>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The event loop that a wait of this thread keeps from going on, if anything is bound to one.
pub(crate) fn event_loop(py: Python<'_>) -> Option<usize> {
    if bound::has_event_loops() { running_loop(py).ok().flatten() } else { None }
}

/// What must leave the statement that has called `__enter__()`; `None` if another thread may.
fn left_by(py: Python<'_>) -> PyResult<Option<Releaser>> {
    let mut frame = py.import("sys")?.getattr("_getframe")?.call0()?;
    loop {
        let code = frame.getattr("f_code")?;
        if !is_at_with_statement(py, &frame, &code)? {
            return Ok(None);
        }
        let flags = code.getattr("co_flags")?.extract::<u32>()?;
        if flags & (COROUTINE | ASYNC_GENERATOR) != 0 {
            return Ok(running_loop(py)?.map(Releaser::EventLoop));
        }
        if flags & GENERATOR == 0 {
            return Ok(Some(Releaser::Thread(Thread::current())));
        }
        // Behind the `__enter__()` that has begun the generator.
        let caller = frame.getattr("f_back")?;
        if caller.is_none() || caller.getattr("f_back")?.is_none() {
            return Ok(None);
        }
        frame = caller.getattr("f_back")?;
    }
}

/// The event loop of asyncio that runs in this thread: its address, which it has as long as it has a
/// coroutine to resume. A program without asyncio does not import it.
fn running_loop(py: Python<'_>) -> PyResult<Option<usize>> {
    let modules = py.import("sys")?.getattr("modules")?;
    let events = modules.call_method1("get", ("asyncio.events",))?;
    if events.is_none() {
        return Ok(None);
    }
    let running = events.call_method0("_get_running_loop")?;
    Ok((!running.is_none()).then(|| running.as_ptr() as usize))
}

fn is_at_with_statement(
    py: Python<'_>,
    frame: &Bound<'_, PyAny>,
    code: &Bound<'_, PyAny>,
) -> PyResult<bool> {
    let (at, before) = INSTRUCTIONS.get_or_try_init(py, || instructions(py))?;
    let place: usize = frame.getattr("f_lasti")?.extract()?;
    let code = code.getattr("co_code")?;
    let code: &[u8] = code.extract()?;
    let is_one = |place: Option<usize>, of: &[u8]| {
        place.and_then(|place| code.get(place)).is_some_and(|instruction| of.contains(instruction))
    };
    Ok(is_one(Some(place), at) || is_one(place.checked_sub(2), before))
}

fn instructions(py: Python<'_>) -> PyResult<(Vec<u8>, Vec<u8>)> {
    let numbers = py.import("opcode")?.getattr("opmap")?;
    let number = |name: &&str| numbers.get_item(name).ok()?.extract().ok();
    // Up to 3.10, up to 3.13; and since.
    let at = ["SETUP_WITH", "BEFORE_WITH"].iter().filter_map(number).collect();
    let before = ["LOAD_SPECIAL"].iter().filter_map(number).collect();
    Ok((at, before))
}
