//! Burton's six functions, and five for the semaphore in the same style, on the default client of
//! the process.

use memlock_core::{Answer, Report, Result, bare};
use pyo3::prelude::*;

use crate::args::{Name, Seconds, Url, Whole};
use crate::call::{acquire, call, wait};
use crate::error::raise_core;
use crate::subject::{Kind, raise_report};

/// Set the URL of the default client, as for connect().
///
/// Call it once, before the first call of one of these functions. Without it the default client
/// uses MEMLOCK_URL, or memcached://127.0.0.1:11211. Opens no connection.
///
/// Raises ConfigError for an invalid URL, or when there is already a default client.
#[pyfunction]
#[pyo3(text_signature = "(url)")]
pub(crate) fn init(py: Python<'_>, url: Url) -> PyResult<()> {
    bare::init(&url.0).map_err(|error| raise_core(py, &error))
}

/// End all waits of mutex_lock() and semaphore_acquire() that are in progress, in all threads.
///
/// Each wait raises Interrupted. Waits that begin later are not affected. No I/O.
///
/// Raises ConfigError when the default client cannot be made.
#[pyfunction]
pub(crate) fn cancel_waits(py: Python<'_>) -> PyResult<()> {
    bare::default_client().map_err(|error| raise_core(py, &error))?.cancel_waits();
    Ok(())
}

/// Lock a mutex for at most `duration` (1 second to 366 days), wait without a timeout, and return
/// True.
///
/// The lock belongs to the process: any of its threads may unlock it, and two of its threads
/// exclude each other.
///
/// Raises Deadlock when this thread already holds the mutex; Invalid; Unreachable, OutcomeUnknown
/// or ProtocolError as Mutex.acquire(). KeyboardInterrupt ends a wait of the main thread within 100
/// ms; nothing is held then, and no entry is left in the queue.
#[pyfunction]
#[pyo3(text_signature = "(mutex_key, duration)")]
pub(crate) fn mutex_lock(py: Python<'_>, mutex_key: Name, duration: Seconds) -> PyResult<bool> {
    let acquired = wait(py, None, None, |wait| {
        Acquired::mutex(&mutex_key, bare::lock(&mutex_key.0, duration.0, wait))
    })?;
    done_or(py, acquired.keep(), None, Kind::Mutex)
}

/// Like mutex_lock(), but try only once.
///
/// Returns True if the mutex is now locked, False if it was already held.
#[pyfunction]
#[pyo3(text_signature = "(mutex_key, duration)")]
pub(crate) fn mutex_lock_nonblock(
    py: Python<'_>,
    mutex_key: Name,
    duration: Seconds,
) -> PyResult<bool> {
    let acquired = acquire(py, || {
        Acquired::mutex(&mutex_key, bare::mutex_lock_nonblock(&mutex_key.0, duration.0))
    })?;
    done_or(py, acquired.keep(), Some(Answer::Busy), Kind::Mutex)
}

/// Unlock a mutex that this process locked by mutex_lock() or mutex_lock_nonblock(), and return
/// True.
///
/// Any thread may call it. Raises NotHeld when this process does not hold the mutex; LockLost when
/// the duration had passed or the server had lost the lock, so that another holder may have held it
/// meanwhile. Shortly after the duration the server may still have the lock for this process: the
/// call then succeeds, and no other holder has had it. After Unreachable, OutcomeUnknown and
/// ProtocolError the mutex is still held, and can be unlocked again.
#[pyfunction]
#[pyo3(text_signature = "(mutex_key)")]
pub(crate) fn mutex_unlock(py: Python<'_>, mutex_key: Name) -> PyResult<bool> {
    call_bare(py, None, Kind::Mutex, || bare::mutex_unlock(&mutex_key.0))
}

/// Set up a semaphore with the given number of permits.
///
/// The semaphore expires `duration` (1 second to 366 days) after its last use. Returns True if it
/// is new, False if it already existed; it can be used in both cases. If it has another number of
/// permits, that number applies, and a warning is logged.
///
/// Raises Invalid; Unreachable, OutcomeUnknown or ProtocolError.
#[pyfunction]
#[pyo3(text_signature = "(name, permits, duration)")]
pub(crate) fn semaphore_set_up(
    py: Python<'_>,
    name: Name,
    permits: Whole<u32>,
    duration: Seconds,
) -> PyResult<bool> {
    call_bare(py, Some(Answer::Exists), Kind::Semaphore, || {
        bare::semaphore_set_up(&name.0, permits.0, duration.0)
    })
}

/// Acquire one permit for at most `duration` (1 second to 366 days), wait without a timeout, and
/// return True.
///
/// The permit belongs to the process: any of its threads may release it. A process may hold several
/// permits.
///
/// Raises SemaphoreNotFound when the semaphore was not set up; Invalid; Unreachable, OutcomeUnknown
/// or ProtocolError as Semaphore.acquire(). KeyboardInterrupt ends a wait of the main thread within
/// 100 ms; nothing is held then, and no entry is left in the queue.
#[pyfunction]
#[pyo3(text_signature = "(name, duration)")]
pub(crate) fn semaphore_acquire(py: Python<'_>, name: Name, duration: Seconds) -> PyResult<bool> {
    let acquired = wait(py, None, None, |wait| {
        Acquired::permit(&name, bare::acquire(&name.0, duration.0, wait))
    })?;
    done_or(py, acquired.keep(), None, Kind::Semaphore)
}

/// Like semaphore_acquire(), but try only once.
///
/// Returns True if a permit was acquired, False if none is available.
#[pyfunction]
#[pyo3(text_signature = "(name, duration)")]
pub(crate) fn semaphore_acquire_nonblock(
    py: Python<'_>,
    name: Name,
    duration: Seconds,
) -> PyResult<bool> {
    let acquired = acquire(py, || {
        Acquired::permit(&name, bare::semaphore_acquire_nonblock(&name.0, duration.0))
    })?;
    done_or(py, acquired.keep(), Some(Answer::Busy), Kind::Semaphore)
}

/// Release a permit of semaphore_acquire() or semaphore_acquire_nonblock(), and return True.
///
/// The permit is the one that the calling thread acquired last or, if it has none, the one that the
/// process has held for the longest time.
///
/// Raises NotHeld when this process holds no permit; LockLost when the duration had passed or the
/// server had lost the permit, so that another holder may have had it meanwhile. Shortly after the
/// duration the server may still have the permit for this process: the call then succeeds, and no
/// other holder has had it. After Unreachable, OutcomeUnknown and ProtocolError the permit is still
/// held, and can be released again.
#[pyfunction]
#[pyo3(text_signature = "(name)")]
pub(crate) fn semaphore_release(py: Python<'_>, name: Name) -> PyResult<bool> {
    call_bare(py, None, Kind::Semaphore, || bare::semaphore_release(&name.0))
}

/// Remove a semaphore for all processes. Holders lose their permits.
///
/// Returns False if there was none. Raises Invalid, Unreachable, OutcomeUnknown or ProtocolError.
#[pyfunction]
#[pyo3(text_signature = "(name)")]
pub(crate) fn semaphore_tear_down(py: Python<'_>, name: Name) -> PyResult<bool> {
    call_bare(py, Some(Answer::NotFound), Kind::Semaphore, || bare::semaphore_tear_down(&name.0))
}

/// Set up a session, which expires with all its keys after `duration` (1 second to 366 days).
///
/// Returns True if the session is new, False if it already existed and was joined; it can be used
/// in both cases.
///
/// Raises Invalid, Unreachable, OutcomeUnknown or ProtocolError.
#[pyfunction]
#[pyo3(text_signature = "(session, duration)")]
pub(crate) fn distinct_list_set_up(
    py: Python<'_>,
    session: Name,
    duration: Seconds,
) -> PyResult<bool> {
    call_bare(py, Some(Answer::Exists), Kind::Session, || {
        bare::distinct_list_set_up(&session.0, duration.0)
    })
}

/// Insert a key.
///
/// Returns True for exactly one of all inserts of the key, False if it was already in the list.
///
/// Raises SessionNotFound when there is no such session, and otherwise as DistinctList.insert().
#[pyfunction]
#[pyo3(text_signature = "(session, key)")]
pub(crate) fn distinct_list_insert(py: Python<'_>, session: Name, key: Name) -> PyResult<bool> {
    call_bare(py, Some(Answer::Duplicate), Kind::Session, || {
        bare::distinct_list_insert(&session.0, &key.0)
    })
}

/// End a session for all processes.
///
/// Returns False if there was none. Raises Invalid, Unreachable, OutcomeUnknown or ProtocolError.
#[pyfunction]
#[pyo3(text_signature = "(session)")]
pub(crate) fn distinct_list_tear_down(py: Python<'_>, session: Name) -> PyResult<bool> {
    call_bare(py, Some(Answer::NotFound), Kind::Session, || {
        bare::distinct_list_tear_down(&session.0)
    })
}

/// The report of an acquisition, which is released if this is dropped before [`Acquired::keep`].
struct Acquired<'a> {
    report: Result<Report>,
    name: &'a Name,
    release: fn(&[u8]) -> Result<Report>,
}

impl<'a> Acquired<'a> {
    fn mutex(name: &'a Name, report: Result<Report>) -> Acquired<'a> {
        Acquired { report, name, release: bare::mutex_unlock }
    }

    fn permit(name: &'a Name, report: Result<Report>) -> Acquired<'a> {
        Acquired { report, name, release: bare::semaphore_release }
    }

    fn keep(mut self) -> Result<Report> {
        std::mem::replace(&mut self.report, Ok(Answer::NotHeld.into()))
    }
}

impl Drop for Acquired<'_> {
    fn drop(&mut self) {
        if self.report.as_ref().is_ok_and(|report| report.answer() == Answer::Ok) {
            // A signal handler's exception or the interpreter's exit ended the call; a failure here
            // cannot be reported as well.
            let _ = (self.release)(&self.name.0);
        }
    }
}

fn call_bare(
    py: Python<'_>,
    no: Option<Answer>,
    kind: Kind,
    body: impl FnOnce() -> Result<Report> + Send,
) -> PyResult<bool> {
    let report = call(py, body)?;
    done_or(py, report, no, kind)
}

/// True for success, False for the expected negative answer of this function, and an exception for
/// any other answer.
fn done_or(
    py: Python<'_>,
    report: Result<Report>,
    no: Option<Answer>,
    kind: Kind,
) -> PyResult<bool> {
    let report = report.unwrap_or_else(Report::from);
    match report.answer() {
        Answer::Ok => Ok(true),
        answer if Some(answer) == no => Ok(false),
        _ => Err(raise_report(py, kind, &report)),
    }
}
