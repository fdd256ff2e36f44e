//! `memlock.Semaphore`: shaped like `threading.BoundedSemaphore`.

use std::sync::Arc;
use std::time::Duration;

use memlock_core::semaphore::Status;
use memlock_core::{Answer, Release, Request, SetUp, Waited};
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use crate::args::{Name, Seconds, Whole, limit};
use crate::call::wait_lost;
use crate::cancel::{self, CancelHandle};
use crate::context_exit::context_exit;
use crate::dealloc::give_back;
use crate::held::Held;
use crate::held_permits::{HeldPermits, release_all};
use crate::holder::Holder;
use crate::permit::Permit;
use crate::renew::{Renew, why};
use crate::subject::{Kind, Shared, Subject, unmade};

/// A semaphore by its name: so many permits, held by at most so many holders anywhere. Made by
/// Client.semaphore().
///
/// It is used like threading.BoundedSemaphore, in a `with` statement or by acquire() and release().
/// Threads may share the object, and it holds as many acquisitions at once as were granted to it.
/// Whatever is said of "the acquisition", as by release(), extend() and `remaining`, means the
/// latest one of the calling thread or, in a thread that has none, the oldest one of the object.
/// permit() gives an acquisition that is an object of its own.
///
/// A holder keeps its permits for the lease at most, unless it extends it; those of a program that
/// died come back when its lease ends. After that they may be another's: check `remaining`.
///
/// With renew=True leases are renewed while permits are held, also those of permit(), until they
/// are released or lost.
///
/// An object that goes out of scope while it holds permits gives them back as well as that can be
/// done. In a forked child it holds nothing, and neither releasing nor dropping it touches what the
/// parent holds.
///
/// How many permits there are is part of what all share. An object that was made without that
/// number, for a semaphore that nobody has set up, raises SemaphoreNotFound; one that was made with
/// another number raises Invalid at the first use.
#[pyclass(frozen, weakref, module = "memlock")]
pub(crate) struct Semaphore {
    core: memlock_core::Semaphore,
    client: Arc<Shared>,
    subject: Subject,
    permits: Option<u32>,
    lease: Duration,
    wait: Option<Duration>,
    renew: Option<Renew>,
    held_permits: HeldPermits,
}

impl Semaphore {
    pub(crate) fn new(
        py: Python<'_>,
        client: &Arc<Shared>,
        name: &Name,
        permits: Option<Whole<u32>>,
        lease: Seconds,
        wait: Option<Seconds>,
        renew: Option<Renew>,
    ) -> PyResult<Semaphore> {
        let permits = permits.map(|permits| permits.0);
        let core = match permits {
            Some(permits) => client.core.semaphore(&name.0, permits, lease.0),
            None => client.core.open_semaphore(&name.0, lease.0),
        };
        Ok(Semaphore {
            core: core.map_err(|error| unmade(py, client, "semaphore", name, &error))?,
            subject: Subject::new(
                client,
                Kind::Semaphore,
                name,
                &client.core.keys().semaphore(&name.0),
            ),
            client: Arc::clone(client),
            permits,
            lease: lease.0,
            wait: wait.map(|wait| wait.0),
            renew,
            held_permits: HeldPermits::default(),
        })
    }

    fn take(
        &self,
        py: Python<'_>,
        limit: Option<Duration>,
        request: Request,
        cancel: Option<&Bound<'_, CancelHandle>>,
    ) -> PyResult<Option<Held<memlock_core::Permit>>> {
        let cancel = cancel::given(py, cancel, &self.client)?;
        self.subject.wait(py, limit, cancel, |wait| {
            Ok(match self.core.acquire_with(request, wait)? {
                Waited::Done(permit) => Waited::Done(Held::new(permit, self.renew.as_ref())?),
                Waited::Interrupted => Waited::Interrupted,
                Waited::Busy | Waited::TimedOut => Waited::TimedOut,
            })
        })
    }

    /// Releases so many acquisitions, or none if it has fewer.
    fn give_back(&self, py: Python<'_>, n: usize) -> PyResult<Release> {
        let Some(entries) = self.held_permits.take(py, n) else { return Ok(Release::NotHeld) };
        let (left, ended, failed) = self.subject.call_held(py, || Ok(release_all(entries)))?;
        self.held_permits.put_back(py, left);
        let Err(error) = failed else { return Ok(ended) };
        let error = self.subject.failed(py, &error);
        if ended == Release::Lost {
            error.set_cause(py, Some(self.subject.raise_plain(py, Answer::Lost)));
        }
        Err(error)
    }

    /// What is read of it; or what it would be, if nobody has set it up and we know how many
    /// permits it is to have.
    fn seen<T>(
        &self,
        py: Python<'_>,
        read: impl FnOnce(Status) -> T,
        unused: impl FnOnce(u32) -> T,
    ) -> PyResult<T> {
        match (self.subject.call(py, || self.core.status())?, self.permits) {
            (Some(status), _) => Ok(read(status)),
            (None, Some(permits)) => Ok(unused(permits)),
            (None, None) => Err(self.subject.missing(py)),
        }
    }
}

#[pymethods]
impl Semaphore {
    /// Acquires one permit, or several, all together or none; True when they are ours.
    ///
    /// blocking=False tries once and answers False when they are not available. Otherwise it waits
    /// for `timeout` seconds and answers False when they passed. The defaults, -1 and None, are the
    /// semaphore's own `wait`: for ever, unless it was made with another.
    ///
    /// Waiters of higher `priority` come first, and among equals who came first. Who was overtaken
    /// 16 times comes next whatever its priority is, unless it waits with ages=False. A waiter for
    /// several permits is not overtaken by those of its priority or a lower one that want fewer.
    /// Where they are available, this takes one or two round trips.
    ///
    /// `cancel` is a CancelHandle of the same client, by which another thread may end the wait.
    ///
    /// Raises Interrupted when the wait was cancelled, and ClientClosed once the client is closed.
    /// Raises ValueError or OverflowError for a timeout that threading.Lock would not take either;
    /// Invalid for no permits, more than there are, and when the semaphore was made with another
    /// number of permits than there are; SemaphoreNotFound when it was made without and nobody has
    /// set it up; Unreachable when there is no server at the first attempt, or for longer than the
    /// URL's `outage` while waiting; OutcomeUnknown; ProtocolError. An exception from a signal
    /// handler, such as KeyboardInterrupt, ends a wait of the main thread within 100 ms, with
    /// nothing held and nothing left in the queue.
    #[pyo3(
        signature = (
            blocking = None, timeout = Some(-1.0), *, permits = Whole(1), priority = Whole(0), ages = true,
            cancel = None
        ),
        text_signature = "($self, blocking=True, timeout=-1, *, permits=1, priority=0, ages=True, cancel=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are Python's keywords")]
    fn acquire(
        &self,
        py: Python<'_>,
        blocking: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        permits: Whole<u32>,
        priority: Whole<i64>,
        ages: bool,
        cancel: Option<&Bound<'_, CancelHandle>>,
    ) -> PyResult<bool> {
        let limit = limit(py, blocking, timeout, self.wait)?;
        let request = Request { permits: permits.0, priority: priority.0, ages };
        let held = self.take(py, limit, request, cancel)?;
        Ok(held.map(|held| self.held_permits.keep(py, held)).is_some())
    }

    /// Releases the last `n` acquisitions, each in one or two round trips; any thread may. An
    /// acquisition of several permits is one, and gives back all of them: so release() undoes
    /// acquire(), whatever that asked for.
    ///
    /// They are the latest of the calling thread; if it has fewer, also the oldest of the object.
    /// If the object holds fewer than `n`, none is released.
    ///
    /// Raises NotHeld, a RuntimeError, when the object holds fewer than `n`; LockLost when the
    /// lease of one had run out or the server had lost it, so that another may have had the permits
    /// meanwhile; Invalid, a ValueError, for n below 1. On Unreachable and OutcomeUnknown those
    /// that could not be released are still held, and release() can be called again.
    #[pyo3(signature = (n = Whole(1)), text_signature = "($self, n=1)")]
    fn release(&self, py: Python<'_>, n: Whole<i64>) -> PyResult<()> {
        if n.0 < 1 {
            return Err(self.subject.raise(py, Answer::Invalid, "n must be one or more."));
        }
        self.subject.tell(py, self.give_back(py, usize::try_from(n.0).unwrap_or(usize::MAX))?)
    }

    /// Acquires as acquire() does, and gives a Permit: this acquisition as an object of its own,
    /// for a `with` statement or to hand on to another thread. The semaphore's own release(),
    /// extend() and `remaining` know nothing of it.
    ///
    /// Raises TimedOut when `timeout` seconds passed, and otherwise as acquire(). timeout=0 tries
    /// once.
    #[pyo3(
        signature = (
            timeout = Some(-1.0), *, permits = Whole(1), priority = Whole(0), ages = true, cancel = None
        ),
        text_signature = "($self, timeout=-1, *, permits=1, priority=0, ages=True, cancel=None)"
    )]
    fn permit(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        permits: Whole<u32>,
        priority: Whole<i64>,
        ages: bool,
        cancel: Option<&Bound<'_, CancelHandle>>,
    ) -> PyResult<Permit> {
        let limit = limit(py, None, timeout, self.wait)?;
        let request = Request { permits: permits.0, priority: priority.0, ages };
        let Some(held) = self.take(py, limit, request, cancel)? else {
            return Err(self.subject.timed_out(py, limit));
        };
        let callbacks = self.renew.as_ref().map(|renew| renew.callbacks(py));
        Ok(Permit::new(held, self.subject.clone(), self.lease, callbacks))
    }

    /// Gives the acquisition a new lease, counted from now; by default as long as the first. One or
    /// two round trips.
    ///
    /// Raises NotHeld; LockLost; Invalid for a lease out of range or with renew=True; Unreachable
    /// when nothing was changed, and OutcomeUnknown when it may have been: then the old lease may
    /// run on, and `remaining` counts on the shorter of the two.
    #[pyo3(signature = (lease = None), text_signature = "($self, lease=None)")]
    fn extend(&self, py: Python<'_>, lease: Option<Seconds>) -> PyResult<()> {
        let held = self
            .held_permits
            .look(py)
            .ok_or_else(|| self.subject.raise_plain(py, Answer::NotHeld))?;
        let lease = lease.map_or(self.lease, |lease| lease.0);
        // The clone goes in there, too: the last one to go speaks to the server.
        self.subject.tell_extended(py, self.subject.call_held(py, move || held.extend(lease))?)
    }

    /// For how many seconds the acquisition is certainly ours yet, unless the server loses it; 0.0
    /// when it is not. Counted here, from before the request left, without any I/O.
    #[getter]
    fn remaining(&self, py: Python<'_>) -> f64 {
        self.held_permits.remaining(py).unwrap_or_default().as_secs_f64()
    }

    /// Whether the acquisition's permits are certainly ours, unless the server has lost them. No
    /// I/O: by the clock, and by what was found out so far.
    #[getter]
    fn is_held(&self, py: Python<'_>) -> bool {
        self.remaining(py) > 0.0
    }

    /// Asks the server whether the acquisition's permits are ours, in one round trip; what is
    /// renewed and is not ours any more is lost from then on.
    ///
    /// Raises NotHeld when the object holds nothing; Unreachable or ProtocolError.
    fn check(&self, py: Python<'_>) -> PyResult<bool> {
        let held = self
            .held_permits
            .look(py)
            .ok_or_else(|| self.subject.raise_plain(py, Answer::NotHeld))?;
        self.subject.call_held(py, move || held.check())
    }

    /// Why the acquisition's permits were lost: "expired", when the lease was not renewed in time;
    /// "gone", when the server had lost them or somebody took them away; "max_hold". None while
    /// they are ours, as far as is known. No I/O.
    #[getter]
    fn lost(&self, py: Python<'_>) -> Option<&'static str> {
        self.held_permits.lost(py).map(why)
    }

    /// Waits until they are lost, for at most `timeout` seconds, and gives the reason as `lost`
    /// does; None when they have passed, or they were released meanwhile. An exception from a
    /// signal handler ends it in the main thread.
    #[pyo3(signature = (timeout = None), text_signature = "($self, timeout=None)")]
    fn wait_lost(
        &self,
        py: Python<'_>,
        timeout: Option<Seconds>,
    ) -> PyResult<Option<&'static str>> {
        match self.held_permits.look(py) {
            Some(held) => wait_lost(py, held, timeout.map(|timeout| timeout.0)),
            None => Ok(None),
        }
    }

    /// How many permits there are, held or not. One round trip.
    ///
    /// Raises SemaphoreNotFound where nobody has set the semaphore up and this object was made
    /// without the number; Unreachable or
    /// ProtocolError.
    #[getter]
    fn permits(&self, py: Python<'_>) -> PyResult<u32> {
        self.seen(py, |status| status.permits, |permits| permits)
    }

    /// How many permits nobody holds. One round trip. The answer is already past: it is for people,
    /// not for decisions.
    ///
    /// Raises as `permits`.
    #[getter]
    fn available(&self, py: Python<'_>) -> PyResult<u32> {
        self.seen(py, |status| status.available, |permits| permits)
    }

    /// A list of Holder: who holds permits, one for each acquisition, here or elsewhere. One round
    /// trip. The answer is already past.
    ///
    /// Raises as `permits`.
    fn holders(&self, py: Python<'_>) -> PyResult<Vec<Holder>> {
        self.seen(
            py,
            |status| status.holders.into_iter().map(Holder::from).collect(),
            |_| Vec::new(),
        )
    }

    /// Changes how many permits there are, for everybody, and gives the number that there were.
    /// Fewer than are held is allowed: nobody loses any, and no more are given until enough came
    /// back. Who makes a Semaphore afterwards does so with the new number.
    ///
    /// Raises Invalid for n below 1; SemaphoreNotFound when there is no such semaphore;
    /// Unreachable, OutcomeUnknown or ProtocolError.
    #[pyo3(text_signature = "($self, n)")]
    fn resize(&self, py: Python<'_>, n: Whole<u32>) -> PyResult<u32> {
        self.subject.call(py, || self.core.resize(n.0))?.ok_or_else(|| self.subject.missing(py))
    }

    /// Sets the semaphore up with the number of permits that this object was made with, to be kept
    /// for `life` (1 second to 366 days) after it was used last: True when it is new, False when it
    /// was there already. Where nobody does, the first to acquire sets it up, to be kept for a day.
    ///
    /// Raises Invalid for a life out of range, and when there is one with another number of
    /// permits; SemaphoreNotFound when there is none
    /// and this object was made without a number; Unreachable, OutcomeUnknown or ProtocolError.
    #[pyo3(text_signature = "($self, life)")]
    fn set_up(&self, py: Python<'_>, life: Seconds) -> PyResult<bool> {
        Ok(self.subject.call(py, || self.core.set_up(life.0))? == SetUp::Created)
    }

    /// Removes the semaphore for everybody. Who holds permits finds them lost; who waits and did
    /// not say how many permits there are is told SemaphoreNotFound. False when there was none.
    ///
    /// Raises Unreachable, OutcomeUnknown or ProtocolError.
    fn tear_down(&self, py: Python<'_>) -> PyResult<bool> {
        self.subject.call(py, || self.core.tear_down())
    }

    /// Acquires one permit, waiting as long as the semaphore's `wait` says, and gives the semaphore
    /// itself.
    ///
    /// Raises TimedOut when the wait's limit passed, and otherwise as acquire().
    fn __enter__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let (py, semaphore) = (slf.py(), slf.get());
        match semaphore.take(py, semaphore.wait, Request::default(), None)? {
            Some(held) => semaphore.held_permits.keep(py, held),
            None => return Err(semaphore.subject.timed_out(py, semaphore.wait)),
        }
        Ok(slf)
    }

    /// Releases the acquisition. When the body raised, its exception goes on, and a failure to
    /// release is only logged, as a warning of the logger "memlock"; otherwise it is raised, as by
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
        context_exit(py, exc_type, &self.subject, || self.give_back(py, 1))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.renew.as_ref().map_or(Ok(()), |renew| renew.traverse(&visit))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.held_permits.len(py) {
            0 => format!("<memlock.Semaphore {:?} not held>", self.subject.name),
            1 => format!("<memlock.Semaphore {:?} held once>", self.subject.name),
            times => format!("<memlock.Semaphore {:?} held {times} times>", self.subject.name),
        }
    }
}

impl Drop for Semaphore {
    fn drop(&mut self) {
        let held = self.held_permits.empty();
        if !held.is_empty() {
            give_back(held);
        }
    }
}
