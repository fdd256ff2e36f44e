//! Burton's six functions, and those of the semaphore in the same manner, on the process's default
//! client.

use memlock_core::{Answer, Report, Result, bare};
use pyo3::prelude::*;

use crate::args::{Name, Seconds, Whole};
use crate::call::{call, wait};
use crate::error::raise_core;
use crate::subject::{Kind, Subject};

/// Chooses the default client by its URL, as for connect(). It can be chosen once, before the first
/// call of one of these functions; without a choice it is that of MEMLOCK_URL, or
/// memcached://127.0.0.1:11211.
///
/// Raises ConfigError for a URL that cannot be read, or when there is a default client already.
#[pyfunction]
#[pyo3(text_signature = "(url)")]
pub(crate) fn init(py: Python<'_>, url: &str) -> PyResult<()> {
    bare::init(url).map_err(|error| raise_core(py, &error))
}

/// Ends every wait of mutex_lock() and semaphore_acquire() that is going on, in any thread: each
/// raises Interrupted. Waits that begin later are not touched. No I/O.
///
/// Raises ConfigError when the default client cannot be made.
#[pyfunction]
pub(crate) fn cancel_waits(py: Python<'_>) -> PyResult<()> {
    bare::default_client().map_err(|error| raise_core(py, &error))?.cancel_waits();
    Ok(())
}

/// Locks a mutex for at most `duration` (1 second to 366 days), waiting for as long as it takes,
/// and gives True.
///
/// It is then the process's: any of its threads may unlock it, and two of its threads exclude each
/// other.
///
/// Raises Deadlock when this thread holds it already; Invalid; Unreachable, OutcomeUnknown or
/// ProtocolError as Mutex.acquire(). KeyboardInterrupt ends a wait of the main thread within 100
/// ms, with nothing held and nothing left in the queue.
#[pyfunction]
#[pyo3(text_signature = "(mutex_key, duration)")]
pub(crate) fn mutex_lock(py: Python<'_>, mutex_key: Name, duration: Seconds) -> PyResult<bool> {
    let report = wait(py, None, None, |wait| Ok(bare::lock(&mutex_key.0, duration.0, wait)))?;
    done_or(py, report, None, (Kind::Mutex, &mutex_key))
}

/// As mutex_lock(), but tries once: True when it is locked now, False when another holds it.
#[pyfunction]
#[pyo3(text_signature = "(mutex_key, duration)")]
pub(crate) fn mutex_lock_nonblock(
    py: Python<'_>,
    mutex_key: Name,
    duration: Seconds,
) -> PyResult<bool> {
    ask(py, Some(Answer::Busy), (Kind::Mutex, &mutex_key), || {
        bare::mutex_lock_nonblock(&mutex_key.0, duration.0)
    })
}

/// Unlocks a mutex that this process locked with mutex_lock() or mutex_lock_nonblock(), from
/// whichever thread, and gives True.
///
/// Raises NotHeld when this process holds no such lock; LockLost when its duration had passed, or
/// the server had lost it, so that another may have held it meanwhile. On Unreachable and
/// OutcomeUnknown it is still held, and can be unlocked again.
#[pyfunction]
#[pyo3(text_signature = "(mutex_key)")]
pub(crate) fn mutex_unlock(py: Python<'_>, mutex_key: Name) -> PyResult<bool> {
    ask(py, None, (Kind::Mutex, &mutex_key), || bare::mutex_unlock(&mutex_key.0))
}

/// Sets a semaphore up with so many permits, to be kept for `duration` (1 second to 366 days) after
/// it was used last: True when it is new, False when it was there already; carry on either way.
///
/// Raises Invalid, also when there is one with another number of permits; Unreachable,
/// OutcomeUnknown or ProtocolError.
#[pyfunction]
#[pyo3(text_signature = "(name, permits, duration)")]
pub(crate) fn semaphore_set_up(
    py: Python<'_>,
    name: Name,
    permits: Whole<u32>,
    duration: Seconds,
) -> PyResult<bool> {
    ask(py, Some(Answer::Exists), (Kind::Semaphore, &name), || {
        bare::semaphore_set_up(&name.0, permits.0, duration.0)
    })
}

/// Acquires one permit of a semaphore for at most `duration` (1 second to 366 days), waiting for as
/// long as it takes, and gives True.
///
/// It is then the process's: any of its threads may release it. A process may hold several permits.
///
/// Raises SemaphoreNotFound when nobody has set the semaphore up; Invalid; Unreachable,
/// OutcomeUnknown or ProtocolError as Semaphore.acquire(). KeyboardInterrupt ends a wait of the
/// main thread within 100 ms, with nothing held and nothing left in the queue.
#[pyfunction]
#[pyo3(text_signature = "(name, duration)")]
pub(crate) fn semaphore_acquire(py: Python<'_>, name: Name, duration: Seconds) -> PyResult<bool> {
    let report = wait(py, None, None, |wait| Ok(bare::acquire(&name.0, duration.0, wait)))?;
    done_or(py, report, None, (Kind::Semaphore, &name))
}

/// As semaphore_acquire(), but tries once: True when the process has a permit now, False when none
/// is available.
#[pyfunction]
#[pyo3(text_signature = "(name, duration)")]
pub(crate) fn semaphore_acquire_nonblock(
    py: Python<'_>,
    name: Name,
    duration: Seconds,
) -> PyResult<bool> {
    ask(py, Some(Answer::Busy), (Kind::Semaphore, &name), || {
        bare::semaphore_acquire_nonblock(&name.0, duration.0)
    })
}

/// Releases a permit that this process acquired with semaphore_acquire() or
/// semaphore_acquire_nonblock(), and gives True: the calling thread's latest or, if it has none,
/// the process's oldest.
///
/// Raises NotHeld when this process holds no permit; LockLost when its duration had passed, or the
/// server had lost it, so that another may have had it meanwhile. On Unreachable and OutcomeUnknown
/// it is still held, and can be released again.
#[pyfunction]
#[pyo3(text_signature = "(name)")]
pub(crate) fn semaphore_release(py: Python<'_>, name: Name) -> PyResult<bool> {
    ask(py, None, (Kind::Semaphore, &name), || bare::semaphore_release(&name.0))
}

/// Removes a semaphore for everybody: True, or False when there was none. Who holds permits finds
/// them lost.
///
/// Raises Invalid, Unreachable, OutcomeUnknown or ProtocolError.
#[pyfunction]
#[pyo3(text_signature = "(name)")]
pub(crate) fn semaphore_tear_down(py: Python<'_>, name: Name) -> PyResult<bool> {
    ask(py, Some(Answer::NotFound), (Kind::Semaphore, &name), || bare::semaphore_tear_down(&name.0))
}

/// Sets up a session that ends, with all its keys, after `duration` (1 second to 366 days): True
/// when it is new, False when it was set up already and was joined; carry on either way.
///
/// Raises Invalid, Unreachable, OutcomeUnknown or ProtocolError.
#[pyfunction]
#[pyo3(text_signature = "(session, duration)")]
pub(crate) fn distinct_list_set_up(
    py: Python<'_>,
    session: Name,
    duration: Seconds,
) -> PyResult<bool> {
    ask(py, Some(Answer::Exists), (Kind::Session, &session), || {
        bare::distinct_list_set_up(&session.0, duration.0)
    })
}

/// Inserts a key: True for the first of all who do so, False when it was in the list already.
///
/// Raises SessionNotFound when there is no such session; otherwise as DistinctList.add().
#[pyfunction]
#[pyo3(text_signature = "(session, key)")]
pub(crate) fn distinct_list_insert(py: Python<'_>, session: Name, key: Name) -> PyResult<bool> {
    ask(py, Some(Answer::Duplicate), (Kind::Session, &session), || {
        bare::distinct_list_insert(&session.0, &key.0)
    })
}

/// Ends a session for everybody: True, or False when there was none.
///
/// Raises Invalid, Unreachable, OutcomeUnknown or ProtocolError.
#[pyfunction]
#[pyo3(text_signature = "(session)")]
pub(crate) fn distinct_list_tear_down(py: Python<'_>, session: Name) -> PyResult<bool> {
    ask(py, Some(Answer::NotFound), (Kind::Session, &session), || {
        bare::distinct_list_tear_down(&session.0)
    })
}

fn ask(
    py: Python<'_>,
    no: Option<Answer>,
    subject: (Kind, &Name),
    body: impl FnOnce() -> Result<Report> + Send,
) -> PyResult<bool> {
    let report = call(py, || Ok(body()))?;
    done_or(py, report, no, subject)
}

/// True for "done", False for the ordinary "no" of this function, and an exception for anything
/// else.
fn done_or(
    py: Python<'_>,
    report: Result<Report>,
    no: Option<Answer>,
    (kind, name): (Kind, &Name),
) -> PyResult<bool> {
    let subject = || Subject::of_default(kind, &name.0).map_err(|error| raise_core(py, &error));
    let report = report.unwrap_or_else(Report::from);
    match report.answer() {
        Answer::Ok => Ok(true),
        answer if Some(answer) == no => Ok(false),
        _ => Err(subject()?.reported(py, &report)),
    }
}
