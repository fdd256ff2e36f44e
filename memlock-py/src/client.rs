//! `memlock.Client` and `memlock.connect`.

use std::env::{self, VarError};
use std::sync::Arc;

use memlock_core::{Answer, bare::DEFAULT_URL};
use pyo3::prelude::*;

use crate::args::{Name, Seconds, Whole};
use crate::cancel::CancelHandle;
use crate::counter::Counter;
use crate::distinct::DistinctList;
use crate::error::{Special, raise, raise_core, raise_special};
use crate::mutex::Mutex;
use crate::renew::Renew;
use crate::semaphore::Semaphore;
use crate::subject::Shared;

/// The way to one set of locks. Made by connect().
///
/// It may be used from any number of threads, and in forked children: a child dials its own
/// connections. It need not be closed: its sockets are closed when the last object that was made
/// from it is gone. As a context manager it gives itself, and closes itself at the end.
#[pyclass(frozen, weakref, module = "memlock")]
pub(crate) struct Client {
    shared: Arc<Shared>,
}

impl Client {
    /// What objects are made from, unless it is closed.
    fn open(&self, py: Python<'_>) -> PyResult<&Arc<Shared>> {
        if !self.shared.core.is_closed() {
            return Ok(&self.shared);
        }
        let sentence = format!(
            "The client {:?} is closed. Make another by memlock.connect().",
            self.shared.url
        );
        Err(raise_special(py, Special::ClientClosed, sentence))
    }
}

/// Makes a client for the servers that `url` names; without one, for those of the environment
/// variable MEMLOCK_URL, or else for memcached://127.0.0.1:11211.
///
/// `memcached://host[:port][,host2...]?prefix=&connect_timeout=&io_timeout=&pool=&outage=&notify=`,
/// or `memory://name` for locks among the threads of this process. Timeouts are written `250ms` or
/// `2s`.
///
/// `bell` is the address at which whoever releases a lock, on another host too, wakes the next
/// waiter of this process with one UDP datagram: `notify=address`, `notify=address:port` or
/// `notify=address:first-last`, with `[...]` around an IPv6 address, and as many ports as there are
/// locks for which this process waits at one time. Without it, it is our end of the connection to
/// the server, and any free port. With `notify=off` nobody can wake this process, and its waiters ask
/// the server, first after a tenth of a second and at last once a second.
///
/// Nothing is dialled: the first call that needs a server raises Unreachable if there is none.
/// Raises ConfigError for a URL that cannot be read.
#[pyfunction]
#[pyo3(signature = (url = None), text_signature = "(url=None)")]
pub(crate) fn connect(py: Python<'_>, url: Option<String>) -> PyResult<Client> {
    let (url, from) = match url {
        Some(url) => (url, ""),
        None => match env::var("MEMLOCK_URL") {
            Ok(url) => (url, "MEMLOCK_URL: "),
            Err(VarError::NotPresent) => (DEFAULT_URL.to_owned(), ""),
            Err(VarError::NotUnicode(_)) => {
                return Err(raise(py, Answer::Config, "The variable MEMLOCK_URL is not in UTF-8."));
            }
        },
    };
    match memlock_core::Client::connect(&url) {
        Ok(core) => Ok(Client { shared: Arc::new(Shared { core, url }) }),
        Err(error) if from.is_empty() => Err(raise_core(py, &error)),
        Err(error) => Err(raise(py, error.kind().answer(), format!("{from}{error}"))),
    }
}

#[pymethods]
impl Client {
    /// A mutex by this name, whose holders keep it for at most `lease` (1 second to 366 days)
    /// unless they extend it. Nothing is sent.
    ///
    /// `wait` is how long acquire() without a timeout, and `with`, wait for it: None for ever, 0
    /// not at all. Both are seconds as int or float, or a datetime.timedelta.
    ///
    /// renew=True renews the lease while the lock is held, until it is released or lost; `max_hold`
    /// is for how long at most, so that a program that hangs does not hold it for ever. `on_lease_at_risk`
    /// is called with the seconds that are left when it could not be renewed for half of the lease,
    /// or is not to be, and `on_lost` with the reason, as `lost` has it, when it was lost; not when
    /// release() is the first to find that out. They are called in the thread that renews, which
    /// renews nothing until they return; their exceptions go to sys.unraisablehook. What they start
    /// blocks the signals that the thread which acquired blocks. The interpreter's end waits for
    /// one that is running, and none begins afterwards.
    ///
    /// Raises Invalid for an empty name, one above 64 KiB or with a NUL byte, and for durations out
    /// of range.
    #[pyo3(
        signature = (
            name, lease = Seconds::new(30), wait = None, *,
            renew = false, max_hold = None, on_lease_at_risk = None, on_lost = None
        ),
        text_signature = "($self, name, lease=30, wait=None, *, renew=False, max_hold=None, on_lease_at_risk=None, on_lost=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are Python's keywords")]
    fn mutex(
        &self,
        py: Python<'_>,
        name: Name,
        lease: Seconds,
        wait: Option<Seconds>,
        renew: bool,
        max_hold: Option<Seconds>,
        on_lease_at_risk: Option<Py<PyAny>>,
        on_lost: Option<Py<PyAny>>,
    ) -> PyResult<Mutex> {
        let renew = Renew::new(py, renew, max_hold, on_lease_at_risk, on_lost)?;
        Mutex::new(py, self.open(py)?, &name, lease, wait, renew)
    }

    /// A semaphore by this name with so many `permits` (1 to 4,294,967,295), of which a holder
    /// keeps what it has for at most `lease` (1 second to 366 days) unless it extends it.
    /// permits=None: as many as it has, since somebody else set it up. Nothing is sent.
    ///
    /// `wait` is how long acquire() and permit() without a timeout, and `with`, wait for it: None
    /// for ever, 0 not at all.
    ///
    /// renew, max_hold, on_lease_at_risk and on_lost are as those of mutex(), for each acquisition.
    ///
    /// Raises Invalid as mutex() does, and for a number of permits out of range.
    #[pyo3(
        signature = (
            name, permits = None, lease = Seconds::new(30), wait = None, *,
            renew = false, max_hold = None, on_lease_at_risk = None, on_lost = None
        ),
        text_signature = "($self, name, permits=None, lease=30, wait=None, *, renew=False, max_hold=None, on_lease_at_risk=None, on_lost=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are Python's keywords")]
    fn semaphore(
        &self,
        py: Python<'_>,
        name: Name,
        permits: Option<Whole<u32>>,
        lease: Seconds,
        wait: Option<Seconds>,
        renew: bool,
        max_hold: Option<Seconds>,
        on_lease_at_risk: Option<Py<PyAny>>,
        on_lost: Option<Py<PyAny>>,
    ) -> PyResult<Semaphore> {
        let renew = Renew::new(py, renew, max_hold, on_lease_at_risk, on_lost)?;
        Semaphore::new(py, self.open(py)?, &name, permits, lease, wait, renew)
    }

    /// The plain counter of free permits in the item of this key, which other programs may use too.
    /// The URL's prefix stands before the key. Nothing is sent.
    ///
    /// Raises Invalid for a key that is not 1 to 245 visible ASCII characters, the prefix included.
    #[pyo3(text_signature = "($self, key)")]
    fn counter(&self, py: Python<'_>, key: Name) -> PyResult<Counter> {
        Counter::new(py, self.open(py)?, &key)
    }

    /// Sets up a distinct list by this session name, or joins it if it is there: see `created`. The
    /// session and all its keys end after `duration` (1 second to 366 days), counted from when it
    /// was first set up. Two round trips, or one to join.
    ///
    /// Raises Invalid as mutex() does; Unreachable, OutcomeUnknown or ProtocolError.
    #[pyo3(text_signature = "($self, session, duration)")]
    fn distinct_list(
        &self,
        py: Python<'_>,
        session: Name,
        duration: Seconds,
    ) -> PyResult<DistinctList> {
        DistinctList::set_up(py, self.open(py)?, &session, duration)
    }

    /// Ends every wait that is going on in this client, in any thread: each raises Interrupted,
    /// with nothing held and nothing left in the queue. Waits that begin later are not touched. No
    /// I/O.
    fn cancel_waits(&self) {
        self.shared.core.cancel_waits();
    }

    /// A handle by which another thread ends single waits: give it to acquire() or permit() as
    /// `cancel`.
    fn cancel_handle(&self) -> CancelHandle {
        CancelHandle::new(&self.shared)
    }

    /// Closes the client, once and for all; to do so again changes nothing. Its connections are
    /// closed, the waits that are going on raise ClientClosed, and so does every later call of the
    /// client and of what was made from it.
    ///
    /// **What is held stays held**, so that no lock is taken from a thread that works under it: it
    /// can still be extended, checked and released, renewed leases are renewed until then, and an
    /// object that goes out of scope releases what it holds. No I/O.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.shared.core.close());
    }

    /// Whether close() was called.
    #[getter]
    fn closed(&self) -> bool {
        self.shared.core.is_closed()
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (exc_type, exc_value, traceback, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: &Bound<'_, PyAny>,
        exc_value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) {
        let _ = (exc_type, exc_value, traceback);
        self.close(py);
    }

    fn __repr__(&self) -> String {
        format!("<memlock.Client {:?}>", memlock_core::store::without_password(&self.shared.url))
    }
}
