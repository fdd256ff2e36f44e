//! What this thread has entered by `with` statements and has to leave itself: a wait without a limit
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
//! those known here, nothing counts. The server decides whether one of the tokens is in the way: see
//! `Wait::while_holding`.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memlock_core::{Token, fork};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// The flags of code objects.
const GENERATOR: u32 = 0x20;
const COROUTINE: u32 = 0x80;
const ASYNC_GENERATOR: u32 = 0x200;

/// The `with` statement of an acquisition, if there is one that its thread has to leave.
#[derive(Default)]
pub(crate) struct Statement {
    /// Whether the thread is inside.
    inside: Arc<AtomicBool>,
}

struct Entered {
    token: Token,
    process: u64,
    inside: Arc<AtomicBool>,
    left_by: LeftBy,
}

/// What leaves a statement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LeftBy {
    ThisThread,
    EventLoop(EventLoop),
}

/// The address of an event loop, which exists as long as it has a coroutine to resume.
type EventLoop = usize;

thread_local! {
    static ENTERED: RefCell<Vec<Entered>> = const { RefCell::new(Vec::new()) };
}

/// The instructions of `with` statements; the second one is the one before a call.
static INSTRUCTIONS: PyOnceLock<(Vec<u8>, Vec<u8>)> = PyOnceLock::new();

impl Statement {
    /// `__enter__()` was called in this thread.
    pub(crate) fn enter(&self, py: Python<'_>, token: Token) {
        // Without an answer, only a wait for itself is not noticed.
        let Ok(Some(left_by)) = left_by(py) else { return };
        self.inside.store(true, Ordering::Relaxed);
        let (process, inside) = (fork::generation(), Arc::clone(&self.inside));
        let entered = Entered { token, process, inside, left_by };
        ENTERED.with_borrow_mut(|list| {
            list.retain(Entered::counts);
            list.push(entered);
        });
    }

    /// The statement ends, or what it would release is released.
    pub(crate) fn leave(&self) {
        self.inside.store(false, Ordering::Relaxed);
    }
}

impl Drop for Statement {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Entered {
    fn counts(&self) -> bool {
        self.inside.load(Ordering::Relaxed) && self.process == fork::generation()
    }
}

/// The tokens of what this thread, or the event loop that it runs, has to leave itself.
pub(crate) fn tokens(py: Python<'_>) -> Vec<Token> {
    let counting: Vec<_> = ENTERED.with_borrow(|list| {
        let counting = list.iter().filter(|entered| entered.counts());
        counting.map(|entered| (entered.token, entered.left_by)).collect()
    });
    if counting.is_empty() {
        return Vec::new();
    }
    let running = running_loop(py).ok().flatten().map(LeftBy::EventLoop);
    counting
        .into_iter()
        .filter(|(_, left_by)| *left_by == LeftBy::ThisThread || Some(*left_by) == running)
        .map(|(token, _)| token)
        .collect()
}

/// What must leave the statement that has called `__enter__()`; `None` if another thread may.
fn left_by(py: Python<'_>) -> PyResult<Option<LeftBy>> {
    let mut frame = py.import("sys")?.getattr("_getframe")?.call0()?;
    loop {
        let code = frame.getattr("f_code")?;
        if !is_at_with_statement(py, &frame, &code)? {
            return Ok(None);
        }
        let flags = code.getattr("co_flags")?.extract::<u32>()?;
        if flags & (COROUTINE | ASYNC_GENERATOR) != 0 {
            return Ok(running_loop(py)?.map(LeftBy::EventLoop));
        }
        if flags & GENERATOR == 0 {
            return Ok(Some(LeftBy::ThisThread));
        }
        // Behind the `__enter__()` that has begun the generator.
        let caller = frame.getattr("f_back")?;
        if caller.is_none() || caller.getattr("f_back")?.is_none() {
            return Ok(None);
        }
        frame = caller.getattr("f_back")?;
    }
}

/// The event loop of asyncio that runs in this thread. A program without asyncio does not import it.
fn running_loop(py: Python<'_>) -> PyResult<Option<EventLoop>> {
    let modules = py.import("sys")?.getattr("modules")?;
    let events = modules.call_method1("get", ("asyncio.events",))?;
    if events.is_none() {
        return Ok(None);
    }
    let running = events.call_method0("_get_running_loop")?;
    Ok((!running.is_none()).then(|| running.as_ptr() as EventLoop))
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
