//! The Python module: `memlock._memlock`, whose public names the package `memlock` re-exports.
//!
//! | file | contents |
//! | --- | --- |
//! | `client`, `mutex`, `owner`, `semaphore`, `permit`, `holder`, `counter`, `distinct_list`, `bare` | the classes and functions of the Python API |
//! | `acquisition` | one acquisition, shared between threads |
//! | `held_lock`, `held_permits` | what a mutex or semaphore object holds |
//! | `entered` | what a thread has entered by `with` statements |
//! | `renew` | renewal, and the callbacks |
//! | `deferral`, `deferred_release` | a release that is left to the end of a transaction |
//! | `mask` | the signals that a thread blocks |
//! | `context_exit` | the end of a `with` statement |
//! | `dealloc` | the deallocation of an object that still holds something |
//! | `log` | log messages |
//! | `shutdown`, `exit_hook`, `acquiring`, `leftover`, `weak_list` | interpreter exit |
//! | `main_interpreter` | refuses sub-interpreters |
//! | `call`, `signals` | calls of the core without the GIL; Ctrl-C |
//! | `cancel` | the handle by which waits are cancelled |
//! | `shared_client` | the client that objects share; all clients of the process |
//! | `subject` | the lock or list that a call is about, as exceptions name it |
//! | `error`, `args` | exceptions and arguments |

use pyo3::prelude::*;

mod acquiring;
mod acquisition;
mod args;
mod bare;
mod call;
mod cancel;
mod client;
mod context_exit;
mod counter;
mod dealloc;
mod deferral;
mod deferred_release;
mod distinct_list;
mod entered;
mod error;
mod exit_hook;
mod held_lock;
mod held_permits;
mod holder;
mod leftover;
mod log;
mod main_interpreter;
mod mask;
mod mutex;
mod owner;
mod permit;
mod renew;
mod semaphore;
mod shared_client;
mod shutdown;
mod signals;
mod subject;
mod weak_list;

/// The native part of memlock. Import the package `memlock` instead.
#[pymodule]
fn _memlock(module: &Bound<'_, PyModule>) -> PyResult<()> {
    main_interpreter::check(module.py())?;
    module.add("__version__", memlock_core::VERSION)?;
    error::add_to(module)?;
    log::install(module.py())?;
    exit_hook::add_to(module)?;
    leftover::install();
    module.add_class::<client::Client>()?;
    module.add_class::<mutex::Mutex>()?;
    module.add_class::<owner::Owner>()?;
    module.add_class::<semaphore::Semaphore>()?;
    module.add_class::<permit::Permit>()?;
    module.add_class::<holder::Holder>()?;
    module.add_class::<deferred_release::DeferredRelease>()?;
    module.add_class::<counter::Counter>()?;
    module.add_class::<distinct_list::DistinctList>()?;
    module.add_class::<cancel::CancelHandle>()?;
    module.add_function(wrap_pyfunction!(client::connect, module)?)?;
    module.add_function(wrap_pyfunction!(bare::init, module)?)?;
    module.add_function(wrap_pyfunction!(bare::cancel_waits, module)?)?;
    module.add_function(wrap_pyfunction!(bare::mutex_lock, module)?)?;
    module.add_function(wrap_pyfunction!(bare::mutex_lock_nonblock, module)?)?;
    module.add_function(wrap_pyfunction!(bare::mutex_unlock, module)?)?;
    module.add_function(wrap_pyfunction!(bare::semaphore_set_up, module)?)?;
    module.add_function(wrap_pyfunction!(bare::semaphore_acquire, module)?)?;
    module.add_function(wrap_pyfunction!(bare::semaphore_acquire_nonblock, module)?)?;
    module.add_function(wrap_pyfunction!(bare::semaphore_release, module)?)?;
    module.add_function(wrap_pyfunction!(bare::semaphore_tear_down, module)?)?;
    module.add_function(wrap_pyfunction!(bare::distinct_list_set_up, module)?)?;
    module.add_function(wrap_pyfunction!(bare::distinct_list_insert, module)?)?;
    module.add_function(wrap_pyfunction!(bare::distinct_list_tear_down, module)?)?;
    // Filled in by the calls above; the package defines the public names.
    module.delattr("__all__")?;
    Ok(())
}
