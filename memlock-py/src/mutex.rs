//! `memlock.Mutex`: has the interface of `threading.Lock`.

use std::sync::Arc;
use std::time::Duration;

use memlock_core::{Answer, Loss, Release, Report};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use crate::acquisition::Acquisition;
use crate::args::{Name, Seconds, effective_timeout};
use crate::call::wait_lost;
use crate::cancel::{self, CancelHandle};
use crate::context_exit::context_exit;
use crate::dealloc::release_on_dealloc;
use crate::deferral::Scope;
use crate::deferred_release::DeferredRelease;
use crate::held_lock::{HeldLock, Taken};
use crate::owner::Owner;
use crate::renew::{Renew, loss_name};
use crate::shared_client::SharedClient;
use crate::subject::{Kind, Subject, creation_error};

/// A mutex by its name, held by at most one holder at a time, in all processes. Made by
/// Client.mutex().
///
/// It is used like threading.Lock, in a `with` statement or by acquire() and release(). The object
/// holds at most one acquisition at a time: threads that share it exclude each other, a thread that
/// acquires it twice waits for itself, and any thread may release it. Inside a `with` statement of the
/// lock, by this object or another one, a wait for it without a limit raises Deadlock.
///
/// A holder keeps the lock for at most the lease, unless it extends the lease. After that another
/// holder may acquire it: check `remaining`, or pass `fence` to the resource that the lock
/// protects.
///
/// With renew=True the lease is renewed automatically while the lock is held, until it is released
/// or lost: check `lost`, or wait for a loss by wait_lost(). One background thread renews all
/// leases of a client.
///
/// An object that is deallocated while it holds the lock releases it on a best-effort basis. In a
/// forked child it holds nothing, and neither releasing nor deallocating it affects the parent's
/// lock.
#[pyclass(frozen, weakref, module = "memlock")]
pub(crate) struct Mutex {
    core: memlock_core::Mutex,
    client: Arc<SharedClient>,
    subject: Subject,
    lease: Duration,
    timeout: Option<Duration>,
    renew: Option<Renew>,
    held_lock: Arc<HeldLock>,
}

impl Mutex {
    pub(crate) fn new(
        py: Python<'_>,
        client: &Arc<SharedClient>,
        name: &Name,
        lease: Seconds,
        timeout: Option<Seconds>,
        renew: Option<Renew>,
    ) -> PyResult<Mutex> {
        let core = client.core.mutex(&name.0, lease.0);
        let core = core.map_err(|error| creation_error(py, client, "lock", name, &error))?;
        Ok(Mutex {
            subject: Subject::new(client, Kind::Mutex, name, core.subject()),
            core,
            client: Arc::clone(client),
            lease: lease.0,
            timeout: timeout.map(|timeout| timeout.0),
            renew,
            held_lock: HeldLock::new(py),
        })
    }

    fn lock(
        &self,
        py: Python<'_>,
        timeout: Option<Duration>,
        cancel: Option<&Bound<'_, CancelHandle>>,
        scope: Scope,
    ) -> PyResult<std::result::Result<(), Report>> {
        let cancel = cancel::given(py, cancel, &self.client)?;
        let held = self.subject.wait(py, timeout, cancel, |wait| {
            Ok(match self.core.lock_or_report(wait)? {
                Ok(lock) => {
                    let renew = self.renew.as_ref();
                    Ok(Arc::new(Acquisition::new(Box::new(lock), renew, scope)?))
                }
                Err(report) => Err(report),
            })
        })?;
        let held = match held {
            Ok(held) => held,
            Err(report) => return Ok(Err(report)),
        };
        if scope == Scope::With {
            held.enter(py);
        }
        if let Some(displaced) = self.held_lock.replace(py, held) {
            py.detach(|| drop(displaced));
        }
        Ok(Ok(()))
    }

    fn release_current(&self, py: Python<'_>) -> PyResult<Release> {
        let held = match self.held_lock.take(py) {
            Ok(Taken::Held(held)) => held,
            Ok(Taken::Deferred) => return Ok(Release::Released),
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
    /// Acquire the lock, and return whether it was acquired.
    ///
    /// blocking=False tries once, and returns False when another holder has the lock. Otherwise it
    /// waits for `timeout` seconds, and returns False when they have passed. The default, -1, and
    /// None mean the mutex's own `timeout`, by default no limit. Acquiring a free lock takes one
    /// round trip. `cancel` is a CancelHandle of the same client, by which another thread may end
    /// the wait.
    ///
    /// Raises Interrupted when the wait was cancelled, and ClientClosed when the client is closed;
    /// with blocking=False or timeout=0, Recovering when the server gives no new locks yet;
    /// ValueError or OverflowError for a timeout that threading.Lock refuses too; Unreachable when
    /// there is no server at the first attempt, or for longer than 5 seconds while waiting; with
    /// `outage` in the URL, for longer than that, the first attempt included; OutcomeUnknown;
    /// ProtocolError. An exception from a signal handler, such as KeyboardInterrupt, ends a wait of
    /// the main thread within 100 ms; nothing is held then, and no entry is left in the queue.
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
        let timeout = effective_timeout(py, blocking, timeout, self.timeout)?;
        Ok(self.lock(py, timeout, cancel, Scope::Call)?.is_ok())
    }

    /// Release the lock, in one round trip. Any thread may call this.
    ///
    /// Raises NotHeld, a RuntimeError, when this object holds nothing; LockLost when the lease had
    /// expired or the server had lost the lock, so that another holder may have had it meanwhile.
    /// Shortly after the end of a lease that is not renewed the server may still have the lock for
    /// this holder: release() then succeeds, and no other holder has had the lock. After
    /// Unreachable, OutcomeUnknown and ProtocolError the object still holds the lock, and release()
    /// can be called again.
    ///
    /// Does nothing, once, when the release was left to the end of a transaction: see
    /// docs/transactions.md.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.subject.check_released(py, self.release_current(py)?)
    }

    /// Whether the lock is held, in any process. One round trip. A snapshot, for diagnostics and
    /// not for decisions.
    ///
    /// Raises Unreachable or ProtocolError.
    fn locked(&self, py: Python<'_>) -> PyResult<bool> {
        self.subject.call(py, || Ok(self.core.owner()?.is_some()))
    }

    /// Give the lock a new lease, counted from now; by default as long as the first. One round
    /// trip.
    ///
    /// The fence does not change. Any thread may call this, such as one that only extends.
    ///
    /// Raises NotHeld; LockLost, as release() does; Invalid for a lease out of range or with
    /// renew=True; Unreachable when nothing was changed; OutcomeUnknown or ProtocolError when it
    /// may have been: the old lease may then still apply, and `remaining` assumes the shorter of
    /// the two.
    #[pyo3(signature = (lease = None), text_signature = "($self, lease=None)")]
    fn extend(&self, py: Python<'_>, lease: Option<Seconds>) -> PyResult<()> {
        let held = self
            .held_lock
            .get(py, Clone::clone)
            .map_err(|answer| self.subject.raise_plain(py, answer))?;
        let lease = lease.map_or(self.lease, |lease| lease.0);
        // The clone moves in there too: dropping the last one may send a request.
        self.subject.check_extended(py, self.subject.call_held(py, move || held.extend(lease))?)
    }

    /// The number of seconds for which the lock is guaranteed to be held, provided that the server
    /// does not lose it; 0.0 when it is not held. Counted locally, from before the request was
    /// sent. No I/O.
    #[getter]
    fn remaining(&self, py: Python<'_>) -> f64 {
        self.held_lock.get(py, |held| held.remaining().as_secs_f64()).unwrap_or_default()
    }

    /// Whether the lock is guaranteed to be held, provided that the server has not lost it. No I/O:
    /// decided by the clock and by what earlier calls and renewals have found.
    #[getter]
    fn is_held(&self, py: Python<'_>) -> bool {
        self.remaining(py) > 0.0
    }

    /// Ask the server whether the lock is still held. One round trip, or none when the lease has
    /// expired: the answer is then False, although release() and extend() may still succeed.
    ///
    /// A renewed lock that is not held any more is lost for good. Raises NotHeld when the object
    /// holds nothing; Unreachable or ProtocolError.
    fn check(&self, py: Python<'_>) -> PyResult<bool> {
        let held = self
            .held_lock
            .get(py, Clone::clone)
            .map_err(|answer| self.subject.raise_plain(py, answer))?;
        self.subject.call_held(py, move || held.check())
    }

    /// Why the lock was lost; None while no loss is known. No I/O.
    ///
    /// "expired": the lease has expired, or was not renewed in time; "gone": the server lost the
    /// lock, or it was taken away; "max_hold": the maximum hold time has passed.
    #[getter]
    fn lost(&self, py: Python<'_>) -> Option<&'static str> {
        match self.held_lock.get(py, |held| held.lost()) {
            Ok(loss) => loss.map(loss_name),
            Err(Answer::Lost) => Some(loss_name(Loss::Expired)),
            Err(_) => self.held_lock.last_loss(py).map(loss_name),
        }
    }

    /// Wait for a loss for at most `timeout` seconds, and return the reason as `lost` does.
    ///
    /// Returns None when the time has passed, or when the lock was released meanwhile. An exception
    /// from a signal handler ends the wait in the main thread.
    #[pyo3(signature = (timeout = None), text_signature = "($self, timeout=None)")]
    fn wait_lost(
        &self,
        py: Python<'_>,
        timeout: Option<Seconds>,
    ) -> PyResult<Option<&'static str>> {
        match self.held_lock.get(py, Clone::clone) {
            Ok(held) => wait_lost(py, held, timeout.map(|timeout| timeout.0)),
            Err(_) => Ok(self.lost(py)),
        }
    }

    /// The fencing token: an int that is greater than the fence of every earlier holder of this
    /// mutex.
    ///
    /// Pass it to the resource that the lock protects; the resource refuses any number below the
    /// greatest it has accepted. Raises NotHeld when the object holds nothing, and LockLost in a
    /// thread whose lease expired and whose lock another thread has acquired by this object. No
    /// I/O: a lease whose expiry was not noticed still has its fence.
    #[getter]
    fn fence(&self, py: Python<'_>) -> PyResult<u64> {
        self.held_lock
            .get(py, |held| held.fence.unwrap_or_default())
            .map_err(|answer| self.subject.raise_plain(py, answer))
    }

    /// The holder of the lock, or None. A snapshot. One round trip.
    ///
    /// Raises Unreachable or ProtocolError.
    fn owner(&self, py: Python<'_>) -> PyResult<Option<Owner>> {
        Ok(self.subject.call(py, || self.core.owner())?.map(Owner::from))
    }

    /// Release the lock on behalf of the holder that Owner.token identifies.
    ///
    /// For operators who know that this holder is dead; it finds its lock lost. Returns False when
    /// that acquisition no longer holds the lock. A later holder is never affected.
    ///
    /// Raises Unreachable, OutcomeUnknown or ProtocolError.
    #[pyo3(text_signature = "($self, token)")]
    fn force_unlock(&self, py: Python<'_>, token: &Bound<'_, PyAny>) -> PyResult<bool> {
        let token: String = token.extract().map_err(|_| {
            PyTypeError::new_err("a token must be a str: pass Owner.token of Mutex.owner()")
        })?;
        self.subject.call(py, || self.core.force_unlock(&token))
    }

    /// Acquire the lock with the mutex's `timeout`, and return the mutex itself.
    ///
    /// Raises TimedOut when the timeout expired, and otherwise as acquire().
    fn __enter__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let (py, mutex) = (slf.py(), slf.get());
        match mutex.lock(py, mutex.timeout, None, Scope::With)? {
            Ok(()) => Ok(slf),
            Err(report) => Err(mutex.subject.timed_out(py, &report)),
        }
    }

    /// Release the lock.
    ///
    /// When the body raised an exception, that exception propagates, and a failure to release is
    /// only logged, as a warning of the logger "memlock"; otherwise the failure is raised, as by
    /// release().
    #[pyo3(signature = (exc_type, exc_value, traceback, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: &Bound<'_, PyAny>,
        exc_value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (exc_value, traceback);
        context_exit(py, exc_type, &self.subject, || self.release_current(py))
    }

    /// Release the lock as a part of a transaction on the database that the lock is on: COMMIT commits
    /// the work and releases the lock together, and after a ROLLBACK neither has happened.
    ///
    /// `connection` is a connection or cursor of psycopg, psycopg2, PyMySQL, mysqlclient or another
    /// DB-API module, a Session or Connection of SQLAlchemy, or a connection of Django, on the same
    /// database as the lock (postgresql:// or mysql://), with a transaction open. Call it as the last
    /// statement: from then on no other holder can acquire the lock until the transaction has ended,
    /// whatever happens to its lease. Clients that try are answered that it is held, and Unreachable
    /// once its lease has ended.
    ///
    /// Afterwards `remaining` is 0, the lease is no longer renewed, and neither the end of the `with`
    /// statement nor release() releases anything. When the transaction has ended, the next waiter is
    /// woken: by SQLAlchemy and Django at once; with a DB-API connection inside of
    /// memlock.transaction(), or by release() of the returned object, which the program calls after
    /// the COMMIT; otherwise waiters find the lock free within about a second. After a ROLLBACK the
    /// same step releases the lock.
    ///
    /// Raises LockLost if the lock was lost: roll back. Raises NotHeld if nothing is held, ConfigError
    /// if the lock is not on such a database or the driver is in a pipeline mode, which does not tell
    /// the outcome, and Invalid, a ValueError, without a transaction.
    fn release_in<'py>(
        slf: &Bound<'py, Self>,
        connection: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("memlock._release_in")?.call_method1("release_in", (slf, connection))
    }

    /// The SQL statement of release_in().
    fn _release_sql(&self, py: Python<'_>) -> PyResult<String> {
        let held = self.held_lock.to_defer(py);
        let held = held.map_err(|answer| self.subject.raise_plain(py, answer))?;
        self.subject.call_held(py, || held.release_sql())
    }

    /// Leave the release to the returned object. For memlock.django and memlock.sqlalchemy.
    fn _defer_release(slf: &Bound<'_, Self>) -> PyResult<DeferredRelease> {
        let (py, mutex) = (slf.py(), slf.get());
        let held = mutex.held_lock.to_defer(py);
        let held = held.map_err(|answer| mutex.subject.raise_plain(py, answer))?;
        let holder = Arc::clone(&mutex.held_lock);
        Ok(DeferredRelease::new(slf.as_any(), held, Some(holder), &mutex.subject))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.renew.as_ref().map_or(Ok(()), |renew| renew.traverse(&visit))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let held =
            self.held_lock.get(py, |held| (held.fence.unwrap_or_default(), held.remaining()));
        match held {
            Ok((fence, left)) if !left.is_zero() => {
                format!(
                    "<memlock.Mutex {:?} held, fence {fence}, {:.1} s left>",
                    self.subject.name,
                    left.as_secs_f64()
                )
            }
            Ok(_) => format!("<memlock.Mutex {:?} held, lease expired>", self.subject.name),
            Err(_) => format!("<memlock.Mutex {:?} not held>", self.subject.name),
        }
    }
}

impl Drop for Mutex {
    fn drop(&mut self) {
        if let Some(held) = self.held_lock.take_all() {
            release_on_dealloc(|| drop(held));
        }
    }
}
