//! `memlock.Mutex`: shaped like `threading.Lock`.

use std::sync::Arc;
use std::time::Duration;

use memlock_core::{Answer, Loss, Release, Waited};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use crate::args::{Name, Seconds, limit};
use crate::call::wait_lost;
use crate::cancel::{self, CancelHandle};
use crate::context_exit::context_exit;
use crate::dealloc::give_back;
use crate::held::Held;
use crate::held_lock::HeldLock;
use crate::owner::Owner;
use crate::renew::{Renew, why};
use crate::subject::{Kind, Shared, Subject, unmade};

/// A mutex by its name, held by at most one holder anywhere. Made by Client.mutex().
///
/// It is used like threading.Lock, in a `with` statement or by acquire() and release(). The object
/// holds at most one acquisition at a time: threads that share it exclude each other, a thread that
/// acquires it twice waits for itself, and any thread may release it.
///
/// A holder keeps it for the lease at most, unless it extends it. After that it may be another's:
/// check `remaining`, or hand `fence` to the resource that is guarded.
///
/// With renew=True the lease is renewed while the lock is held, until it is released or lost: watch
/// `lost` or wait for it with wait_lost(). For that there is one thread, of the library's own, for
/// all that one client renews.
///
/// An object that goes out of scope while it holds the lock releases it as well as that can be
/// done. In a forked child it holds nothing, and neither releasing nor dropping it touches the
/// parent's lock.
#[pyclass(frozen, weakref, module = "memlock")]
pub(crate) struct Mutex {
    core: memlock_core::Mutex,
    client: Arc<Shared>,
    subject: Subject,
    lease: Duration,
    wait: Option<Duration>,
    renew: Option<Renew>,
    held_lock: HeldLock,
}

impl Mutex {
    pub(crate) fn new(
        py: Python<'_>,
        client: &Arc<Shared>,
        name: &Name,
        lease: Seconds,
        wait: Option<Seconds>,
        renew: Option<Renew>,
    ) -> PyResult<Mutex> {
        let core = client.core.mutex(&name.0, lease.0);
        Ok(Mutex {
            core: core.map_err(|error| unmade(py, client, "mutex", name, &error))?,
            subject: Subject::new(client, Kind::Mutex, name, &client.core.keys().lock(&name.0)),
            client: Arc::clone(client),
            lease: lease.0,
            wait: wait.map(|wait| wait.0),
            renew,
            held_lock: HeldLock::default(),
        })
    }

    fn lock(
        &self,
        py: Python<'_>,
        limit: Option<Duration>,
        cancel: Option<&Bound<'_, CancelHandle>>,
    ) -> PyResult<bool> {
        let cancel = cancel::given(py, cancel, &self.client)?;
        let held = self.subject.wait(py, limit, cancel, |wait| {
            Ok(match self.core.lock_with(wait)? {
                Waited::Done(lock) => Waited::Done(Arc::new(Held::new(lock, self.renew.as_ref())?)),
                Waited::Interrupted => Waited::Interrupted,
                Waited::Busy | Waited::TimedOut => Waited::TimedOut,
            })
        })?;
        let Some(held) = held else { return Ok(false) };
        if let Some(displaced) = self.held_lock.keep(py, held) {
            py.detach(|| drop(displaced));
        }
        Ok(true)
    }

    fn give_back(&self, py: Python<'_>) -> PyResult<Release> {
        let held = match self.held_lock.take(py) {
            Ok(held) => held,
            Err(Answer::Lost) => return Ok(Release::Lost),
            Err(_) => return Ok(Release::NotHeld),
        };
        let released = self.subject.call_held(py, || held.release());
        if released.is_err() {
            self.held_lock.put_back(py, held);
        }
        released
    }
}

#[pymethods]
impl Mutex {
    /// Acquires the lock; True when it is ours.
    ///
    /// blocking=False tries once and answers False when another holds it. Otherwise it waits for
    /// `timeout` seconds and answers False when they passed. The default, -1, and None are the
    /// mutex's own `wait`: for ever, unless it was made with another. A free lock is taken in one
    /// round trip. `cancel` is a CancelHandle of the same client, by which another thread may end
    /// the wait.
    ///
    /// Raises Interrupted when the wait was cancelled, and ClientClosed once the client is closed.
    /// Raises ValueError or OverflowError for a timeout that threading.Lock would not take either;
    /// Unreachable when there is no server at the first attempt, or for longer than the URL's
    /// `outage` while waiting; OutcomeUnknown; ProtocolError. An exception from a signal handler,
    /// such as KeyboardInterrupt, ends a wait of the main thread within 100 ms, with nothing held
    /// and nothing left in the queue.
    #[pyo3(
        signature = (blocking = None, timeout = Some(-1.0), *, cancel = None),
        text_signature = "($self, blocking=True, timeout=-1, *, cancel=None)"
    )]
    fn acquire(
        &self,
        py: Python<'_>,
        blocking: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        cancel: Option<&Bound<'_, CancelHandle>>,
    ) -> PyResult<bool> {
        let limit = limit(py, blocking, timeout, self.wait)?;
        self.lock(py, limit, cancel)
    }

    /// Releases the lock, in one round trip; any thread may.
    ///
    /// Raises NotHeld, a RuntimeError, when this object holds nothing; LockLost when the lease had
    /// run out or the server had lost the lock, so that another may have held it meanwhile. On
    /// Unreachable and OutcomeUnknown the object still holds it, and release() can be called again.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.subject.tell(py, self.give_back(py)?)
    }

    /// Whether anybody, here or elsewhere, holds the lock. One round trip. The answer is already
    /// past: it is for people, not for decisions.
    ///
    /// Raises Unreachable or ProtocolError.
    fn locked(&self, py: Python<'_>) -> PyResult<bool> {
        self.subject.call(py, || Ok(self.core.owner()?.is_some()))
    }

    /// Gives the lock a new lease, counted from now; by default as long as the first. One round
    /// trip. The fence stays as it is. Any thread may call it, such as one that does nothing else.
    ///
    /// Raises NotHeld; LockLost; Invalid for a lease out of range or with renew=True; Unreachable
    /// when nothing was changed, and OutcomeUnknown when it may have been: then the old lease may
    /// run on, and `remaining` counts on the shorter of the two.
    #[pyo3(signature = (lease = None), text_signature = "($self, lease=None)")]
    fn extend(&self, py: Python<'_>, lease: Option<Seconds>) -> PyResult<()> {
        let held = self
            .held_lock
            .look(py, Clone::clone)
            .map_err(|answer| self.subject.raise_plain(py, answer))?;
        let lease = lease.map_or(self.lease, |lease| lease.0);
        // The clone goes in there, too: the last one to go speaks to the server.
        self.subject.tell_extended(py, self.subject.call_held(py, move || held.extend(lease))?)
    }

    /// For how many seconds the lock is certainly ours yet, unless the server loses it; 0.0 when it
    /// is not. Counted here, from before the request left, without any I/O.
    #[getter]
    fn remaining(&self, py: Python<'_>) -> f64 {
        self.held_lock.look(py, |held| held.remaining().as_secs_f64()).unwrap_or_default()
    }

    /// Whether it is certainly ours, unless the server has lost it. No I/O: by the clock, and by
    /// what was found out so far.
    #[getter]
    fn is_held(&self, py: Python<'_>) -> bool {
        self.remaining(py) > 0.0
    }

    /// Asks the server whether it is ours, in one round trip; what is renewed and is not ours any
    /// more is lost from then on.
    ///
    /// Raises NotHeld when the object holds nothing; Unreachable or ProtocolError.
    fn check(&self, py: Python<'_>) -> PyResult<bool> {
        let held = self
            .held_lock
            .look(py, Clone::clone)
            .map_err(|answer| self.subject.raise_plain(py, answer))?;
        self.subject.call_held(py, move || held.check())
    }

    /// Why it was lost: "expired", when the lease was not renewed in time; "gone", when the server
    /// had lost it or somebody took it away; "max_hold". None while it is ours, as far as is known.
    /// No I/O.
    #[getter]
    fn lost(&self, py: Python<'_>) -> Option<&'static str> {
        match self.held_lock.look(py, |held| held.lost()) {
            Ok(loss) => loss.map(why),
            Err(Answer::Lost) => Some(why(Loss::Expired)),
            Err(_) => None,
        }
    }

    /// Waits until it is lost, for at most `timeout` seconds, and gives the reason as `lost` does;
    /// None when they have passed, or it was released meanwhile. An exception from a signal handler
    /// ends it in the main thread.
    #[pyo3(signature = (timeout = None), text_signature = "($self, timeout=None)")]
    fn wait_lost(
        &self,
        py: Python<'_>,
        timeout: Option<Seconds>,
    ) -> PyResult<Option<&'static str>> {
        match self.held_lock.look(py, Clone::clone) {
            Ok(held) => wait_lost(py, held, timeout.map(|timeout| timeout.0)),
            Err(_) => Ok(self.lost(py)),
        }
    }

    /// The fencing token: an int that is greater than that of every earlier holder of this mutex.
    /// Hand it to the resource, which refuses anything below the greatest it has seen.
    ///
    /// Raises NotHeld when the object holds nothing, and LockLost in a thread whose lease ran out
    /// and whose place another thread has taken. No I/O: a lease that ran out unnoticed still has
    /// its fence.
    #[getter]
    fn fence(&self, py: Python<'_>) -> PyResult<u64> {
        self.held_lock
            .look(py, |held| held.facts)
            .map_err(|answer| self.subject.raise_plain(py, answer))
    }

    /// Who holds the lock, or None. One round trip. The answer is already past.
    ///
    /// Raises Unreachable or ProtocolError.
    fn owner(&self, py: Python<'_>) -> PyResult<Option<Owner>> {
        Ok(self.subject.call(py, || self.core.owner())?.map(Owner::from))
    }

    /// Takes the lock away from the holder whose Owner.token is given: for operators who know that
    /// it is dead. False when that acquisition does not hold it any more; a later holder is never
    /// touched. The old holder finds its lock lost.
    ///
    /// Raises Unreachable, OutcomeUnknown or ProtocolError.
    #[pyo3(text_signature = "($self, token)")]
    fn force_unlock(&self, py: Python<'_>, token: &Bound<'_, PyAny>) -> PyResult<bool> {
        let token: String = token.extract().map_err(|_| {
            PyTypeError::new_err("a token is a str, as Mutex.owner() gives it in Owner.token")
        })?;
        self.subject.call(py, || self.core.force_unlock(&token))
    }

    /// Acquires the lock, waiting as long as the mutex's `wait` says, and gives the mutex itself.
    ///
    /// Raises TimedOut when the wait's limit passed, and otherwise as acquire().
    fn __enter__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let (py, mutex) = (slf.py(), slf.get());
        if mutex.lock(py, mutex.wait, None)? {
            return Ok(slf);
        }
        Err(mutex.subject.timed_out(py, mutex.wait))
    }

    /// Releases the lock. When the body raised, its exception goes on, and a failure to release is
    /// only logged, as a warning of the logger "memlock"; otherwise it is raised, as by release().
    #[pyo3(signature = (exc_type, exc_value, traceback, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: &Bound<'_, PyAny>,
        exc_value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (exc_value, traceback);
        context_exit(py, exc_type, &self.subject, || self.give_back(py))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.renew.as_ref().map_or(Ok(()), |renew| renew.traverse(&visit))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let held = self.held_lock.look(py, |held| (held.facts, held.remaining()));
        match held {
            Ok((fence, left)) if !left.is_zero() => {
                format!(
                    "<memlock.Mutex {:?} held, fence {fence}, {:.1} s left>",
                    self.subject.name,
                    left.as_secs_f64()
                )
            }
            Ok(_) => format!("<memlock.Mutex {:?} held, lease over>", self.subject.name),
            Err(_) => format!("<memlock.Mutex {:?} not held>", self.subject.name),
        }
    }
}

impl Drop for Mutex {
    fn drop(&mut self) {
        if let Some(held) = self.held_lock.empty() {
            give_back(held);
        }
    }
}
