//! Interpreter exit: whether it has begun, and for which threads it waits.
//!
//! A thread that takes the GIL after the interpreter has begun to finalize never returns, and its
//! Rust frames are not unwound properly. `exit_hook` begins the exit before that.
//!
//! | thread, once the exit has begun | what changes for it |
//! | --- | --- |
//! | the one that ends the interpreter | nothing: it holds the GIL until the end |
//! | in a callback or a log handler that memlock called | its waits end; the exit waits for it, as for a non-daemon thread |
//! | any other thread | its waits end, it acquires nothing: see `acquiring`; and no callback or log handler starts in it |

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use memlock_core::active_calls::{ActiveCall, ActiveCalls};
use memlock_core::fork;

/// The process whose interpreter is about to exit, as its [`fork::generation`] plus 1: a child that
/// another thread forks meanwhile does not exit.
static EXITING: AtomicU64 = AtomicU64::new(0);
static ACTIVE: ActiveCalls = ActiveCalls::new();

thread_local! {
    /// This is the thread that ends the interpreter.
    static IS_EXITING_THREAD: Cell<bool> = const { Cell::new(false) };
    /// The exit waits for what this thread does now.
    static IS_AWAITED: Cell<bool> = const { Cell::new(false) };
}

/// Python code that memlock calls, until this is dropped: the exit waits for it.
pub(crate) struct Awaited {
    _active: ActiveCall<'static>,
    outer: bool,
}

/// `None` when the GIL must not be taken any more.
pub(crate) fn enter() -> Option<Awaited> {
    // Either the exit sees that this call is active, or this call sees that the exit has begun.
    let active = ACTIVE.enter();
    (!has_begun()).then(|| Awaited { _active: active, outer: IS_AWAITED.replace(true) })
}

impl Drop for Awaited {
    fn drop(&mut self) {
        IS_AWAITED.set(self.outer);
    }
}

/// Whether the interpreter exits, and this is another thread than the one that ends it.
pub(crate) fn has_begun() -> bool {
    if IS_EXITING_THREAD.get() {
        // A child that this thread has forked exits, too.
        EXITING.store(this_process(), Ordering::SeqCst);
        return false;
    }
    EXITING.load(Ordering::SeqCst) == this_process()
}

/// Whether the exit does not wait for this thread, which may never get the GIL again.
pub(crate) fn abandons_this_thread() -> bool {
    has_begun() && !IS_AWAITED.get()
}

/// Begins the exit. To be called by the thread that ends the interpreter.
pub(crate) fn begin() {
    IS_EXITING_THREAD.set(true);
    EXITING.store(this_process(), Ordering::SeqCst);
}

/// The interpreter has ended: its last thread may not take the GIL any more, either.
pub(crate) fn end() {
    IS_EXITING_THREAD.set(false);
    EXITING.store(this_process(), Ordering::SeqCst);
}

/// Whether the exit has to wait for a callback or a log handler.
pub(crate) fn any_awaited() -> bool {
    ACTIVE.any()
}

fn this_process() -> u64 {
    fork::generation() + 1
}
