//! `memlock.Client` and `memlock.connect`.

use std::sync::Arc;

use memlock_core::bare::DEFAULT_URL;
use memlock_core::{Mismatch, environment};
use pyo3::prelude::*;

use crate::args::{Name, Seconds, Url, Whole};
use crate::cancel::CancelHandle;
use crate::counter::Counter;
use crate::distinct_list::DistinctList;
use crate::error::{Special, raise, raise_core, raise_special};
use crate::mutex::Mutex;
use crate::renew::Renew;
use crate::semaphore::{OnMismatch, Semaphore};
use crate::shared_client::SharedClient;

/// A client of one memcached server, a group of servers, or a file. Made by connect().
///
/// Any number of threads may use it, and so may forked children: a child opens its own connections.
/// It need not be closed: its sockets are closed when the last object that was made from it is
/// deallocated. As a context manager it returns itself, and closes itself at the end.
#[pyclass(frozen, weakref, module = "memlock")]
pub(crate) struct Client {
    shared: Arc<SharedClient>,
}

impl Client {
    /// The shared state from which objects are made, unless the client is closed.
    fn open(&self, py: Python<'_>) -> PyResult<&Arc<SharedClient>> {
        if !self.shared.core.is_closed() {
            return Ok(&self.shared);
        }
        let sentence = format!(
            "The client {:?} is closed: make another by memlock.connect().",
            self.shared.shown_url
        );
        Err(raise_special(py, Special::ClientClosed, sentence))
    }
}

/// Make a client for the servers that `url` names.
///
/// Without `url`, uses the environment variable MEMLOCK_URL, or else the first line of the file that
/// MEMLOCK_URL_FILE names, or else memcached://127.0.0.1:11211.
/// The URL is
/// `memcached://host[:port][,host2...]?prefix=&connect_timeout=&io_timeout=&pool=&outage=&notify=`,
/// `redis://[[user]:password@]host[:port][/database]` (or `rediss:`, `redis+unix:`);
/// `sqlite:///path` or `sqlite:path` for locks in a file, among the programs of one host and
/// without a server; or `memory://name` for locks among the threads of this process. Timeouts are
/// written `250ms` or `2s`.
///
/// `notify` is the address at which other processes, also on other hosts, wake the next waiter of
/// this process when they release a lock. A wake-up is one UDP datagram. Write `notify=address`,
/// `notify=address:port` or `notify=address:first-last`, with `[...]` around an IPv6 address.
/// Provide twice as many ports as there are locks and semaphores for which this process waits at
/// the same time. The default is the local address of the connection to the server, and any free
/// port. With `notify=off` no wake-ups are received, and waiters poll the server instead: the first
/// waiter at intervals that grow from 10 to 250 milliseconds, the others at intervals of up to 0.7
/// seconds. `bell` is an alias of `notify`.
///
/// Opens no connection: the first call that needs a server raises Unreachable if there is none.
/// Raises ConfigError for an invalid URL.
#[pyfunction]
#[pyo3(signature = (url = None), text_signature = "(url=None)")]
pub(crate) fn connect(py: Python<'_>, url: Option<Url>) -> PyResult<Client> {
    let (url, variable) = match url {
        Some(Url(url)) => (url, None),
        None => match environment::url().map_err(|error| raise_core(py, &error))? {
            Some((url, variable)) => (url, Some(variable)),
            None => (DEFAULT_URL.to_owned(), None),
        },
    };
    match (memlock_core::Client::connect(&url), variable) {
        (Ok(core), _) => Ok(Client { shared: SharedClient::new(py, core, &url) }),
        (Err(error), None) => Err(raise_core(py, &error)),
        (Err(error), Some(variable)) => {
            Err(raise(py, error.kind().answer(), format!("{variable}: {error}")))
        }
    }
}

#[pymethods]
impl Client {
    /// Make a Mutex by its name. Sends nothing.
    ///
    /// A holder keeps the lock for at most `lease` (1 second to 366 days), unless it extends the
    /// lease. `timeout` is how long acquire() without a timeout, and `with`, wait for the lock:
    /// None for no limit, 0 to try only once. Both are seconds as int or float, or a
    /// datetime.timedelta.
    ///
    /// With renew=True the lease is renewed automatically while the lock is held, until it is
    /// released or lost, and for at most `max_hold`, so that a program that hangs does not hold the
    /// lock for ever. `on_lease_at_risk` is called with the number of seconds left when half of the
    /// lease has passed without a renewal, or when the lease is not to be renewed any more.
    /// `on_lost` is called with the reason, as in `lost`, when the lock was lost, unless release()
    /// is the first to detect that. Both are called in the renewal thread, which renews nothing
    /// until they return; their exceptions go to sys.unraisablehook. Threads and programs that they
    /// start block the signals that the acquiring thread blocks. The interpreter waits at exit for
    /// a callback that is running, and starts no other.
    ///
    /// Raises Invalid for an empty name, one above 64 KiB or with a NUL byte, and for durations out
    /// of range.
    #[pyo3(
        signature = (
            name, lease = Seconds::new(30), timeout = None, *,
            renew = false, max_hold = None, on_lease_at_risk = None, on_lost = None
        ),
        text_signature = "($self, name, lease=30, timeout=None, *, renew=False, max_hold=None, on_lease_at_risk=None, on_lost=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are Python's keyword arguments")]
    fn mutex(
        &self,
        py: Python<'_>,
        name: Name,
        lease: Seconds,
        timeout: Option<Seconds>,
        renew: bool,
        max_hold: Option<Seconds>,
        on_lease_at_risk: Option<Py<PyAny>>,
        on_lost: Option<Py<PyAny>>,
    ) -> PyResult<Mutex> {
        let renew = Renew::new(py, renew, max_hold, on_lease_at_risk, on_lost)?;
        Mutex::new(py, self.open(py)?, &name, lease, timeout, renew)
    }

    /// Make a Semaphore by its name. Sends nothing.
    ///
    /// `permits` is the number of permits (1 to 4,294,967,295); permits=None opens an existing
    /// semaphore with any number. A holder keeps its permits for at most `lease` (1 second to 366
    /// days), unless it extends the lease. `timeout` is how long acquire() and permit() without a
    /// timeout, and `with`, wait: None for no limit, 0 to try only once.
    ///
    /// `mismatch` is what the object does at its first use if the semaphore has another number of
    /// permits: "follow" goes on with the semaphore's number and logs a warning, once for each
    /// client, semaphore and pair of numbers; "resize" changes the semaphore's number to `permits`, for all
    /// processes; "refuse" raises Invalid.
    ///
    /// renew, max_hold, on_lease_at_risk and on_lost are those of mutex(), for each acquisition.
    ///
    /// Raises Invalid as mutex() does, for a number of permits out of range, and for another
    /// `mismatch`.
    #[pyo3(
        signature = (
            name, permits = None, lease = Seconds::new(30), timeout = None, *,
            mismatch = OnMismatch(Mismatch::Follow), renew = false, max_hold = None,
            on_lease_at_risk = None, on_lost = None
        ),
        text_signature = "($self, name, permits=None, lease=30, timeout=None, *, mismatch='follow', renew=False, max_hold=None, on_lease_at_risk=None, on_lost=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are Python's keyword arguments")]
    fn semaphore(
        &self,
        py: Python<'_>,
        name: Name,
        permits: Option<Whole<u32>>,
        lease: Seconds,
        timeout: Option<Seconds>,
        mismatch: OnMismatch,
        renew: bool,
        max_hold: Option<Seconds>,
        on_lease_at_risk: Option<Py<PyAny>>,
        on_lost: Option<Py<PyAny>>,
    ) -> PyResult<Semaphore> {
        let renew = Renew::new(py, renew, max_hold, on_lease_at_risk, on_lost)?;
        let permits = (permits, mismatch);
        Semaphore::new(py, self.open(py)?, &name, permits, lease, timeout, renew)
    }

    /// Make a Counter for the item with this key, which other programs may use too.
    ///
    /// The URL's prefix is prepended to the key. Sends nothing. Raises Invalid if prefix and key
    /// are not 1 to 245 visible ASCII characters.
    #[pyo3(text_signature = "($self, key)")]
    fn counter(&self, py: Python<'_>, key: Name) -> PyResult<Counter> {
        Counter::new(py, self.open(py)?, &key)
    }

    /// Set up a distinct list by its session name, or join it: `created` tells which.
    ///
    /// The session and all its keys expire after `duration` (1 second to 366 days), counted from
    /// the first set-up. Two round trips, or one to join.
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

    /// End all waits of this client that are in progress, in all threads.
    ///
    /// Each wait raises Interrupted; nothing is held then, and no entry is left in the queue. Waits
    /// that begin later are not affected. No I/O.
    fn cancel_waits(&self) {
        self.shared.core.cancel_waits();
    }

    /// Make a handle by which another thread ends single waits: pass it to acquire() or permit() as
    /// `cancel`.
    fn cancel_handle(&self) -> CancelHandle {
        CancelHandle::new(&self.shared)
    }

    /// Close the client. A second call changes nothing.
    ///
    /// Its connections are closed. Waits that are in progress raise ClientClosed, and so does every
    /// later call of the client and of the objects made from it.
    ///
    /// **Locks and permits stay held**, so that no lock is taken from a thread that works under it:
    /// they can still be extended, checked and released, renewal continues until then, and an
    /// object that is deallocated releases what it holds. No I/O.
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
        format!("<memlock.Client {:?}>", self.shared.shown_url)
    }
}
