//! What the thread that ends the interpreter still holds when the interpreter has ended.
//!
//! Usually that is nothing, because the interpreter deallocates the objects. But a daemon thread
//! keeps alive what its frames refer to, among which are all global variables of the module that
//! defines its function, and it never gets to release any of them.

use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};

use pyo3::ffi::Py_AtExit;
use pyo3::prelude::*;

use crate::shutdown;
use crate::weak_list::WeakList;

/// An object that may hold something.
pub(crate) trait Holds: Send + Sync {
    /// Releases what this thread acquired, as deallocation does.
    fn let_go(&self, thread: ThreadId);
}

static OBJECTS: WeakList<dyn Holds> = WeakList::new();

/// Adds an object, which is released at the end if it is not deallocated before.
pub(crate) fn add<T: Holds + 'static>(py: Python<'_>, object: &Arc<T>) {
    let object: Weak<T> = Arc::downgrade(object);
    OBJECTS.add(py, object);
}

/// Registers the release.
pub(crate) fn install() {
    extern "C" fn let_go() {
        shutdown::end();
        let this_thread = thread::current().id();
        OBJECTS.objects().iter().for_each(|object| object.let_go(this_thread));
    }
    // A failure means that the table of the interpreter is full: leases end by themselves.
    // SAFETY: `let_go` calls nothing of Python: log messages are dropped from `end` on.
    let _ = unsafe { Py_AtExit(Some(let_go)) };
}
