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
//! | a coroutine, or an asynchronous generator | its event loop runs it in this thread, which waits |
//! | a generator of a `@contextmanager` that such a statement has entered | of that statement |
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
}

thread_local! {
    static ENTERED: RefCell<Vec<Entered>> = const { RefCell::new(Vec::new()) };
}

/// The instructions of `with` statements; the second one is the one before a call.
static INSTRUCTIONS: PyOnceLock<(Vec<u8>, Vec<u8>)> = PyOnceLock::new();

impl Statement {
    /// `__enter__()` was called in this thread.
    pub(crate) fn enter(&self, py: Python<'_>, token: Token) {
        // Without an answer, only a wait for itself is not noticed.
        if !must_be_left_here(py).unwrap_or(false) {
            return;
        }
        self.inside.store(true, Ordering::Relaxed);
        let (process, inside) = (fork::generation(), Arc::clone(&self.inside));
        let entered = Entered { token, process, inside };
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

/// The tokens of what this thread has to leave itself.
pub(crate) fn tokens() -> Vec<Token> {
    ENTERED.with_borrow(|list| {
        list.iter().filter(|entered| entered.counts()).map(|entered| entered.token).collect()
    })
}

fn must_be_left_here(py: Python<'_>) -> PyResult<bool> {
    let mut frame = py.import("sys")?.getattr("_getframe")?.call0()?;
    loop {
        let code = frame.getattr("f_code")?;
        if !is_at_with_statement(py, &frame, &code)? {
            return Ok(false);
        }
        if code.getattr("co_flags")?.extract::<u32>()? & GENERATOR == 0 {
            return Ok(true);
        }
        // Behind the `__enter__()` that has begun the generator.
        let caller = frame.getattr("f_back")?;
        if caller.is_none() || caller.getattr("f_back")?.is_none() {
            return Ok(false);
        }
        frame = caller.getattr("f_back")?;
    }
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
