# The signatures are written by hand. The docstrings are those of memlock-py/src: run `make stubs`.
# ruff: noqa: N818 -- most exceptions are named after their answers.
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, TypeVar, final, overload

from typing_extensions import ParamSpec, Self, TypeAlias

_P = ParamSpec("_P")
_R = TypeVar("_R")

_Name: TypeAlias = str | bytes
# Seconds as a number, or a timedelta.
_Duration: TypeAlias = float | timedelta
_Loss: TypeAlias = Literal["expired", "gone", "max_hold"]

__version__: str

class Error(Exception):
    """The base class of all memlock exceptions.

    `code` is the number of the answer, the same in every language: see docs/answers.md.
    """

    code: int

class Invalid(Error, ValueError):
    """An argument is invalid, such as an empty or over-long name, or a duration out of range."""

class ClientClosed(Invalid):
    """The client was closed, by Client.close() or by the end of its `with` statement."""

class Unreachable(Error, ConnectionError):
    """No server could be reached. Nothing was changed."""

class OutcomeUnknown(Error):
    """The request was sent, no reply arrived, and reading the item back failed too: the outcome is
    unknown.
    """

class ProtocolError(Error):
    """The server is too old, runs without cas, refused the request or sent an invalid reply."""

class ConfigError(Error, ValueError):
    """The URL or a setting is invalid."""

class Deadlock(Error, RuntimeError):
    """This thread already holds the mutex by mutex_lock() and would wait for itself."""

class InternalError(Error):
    """A bug in memlock was caught. Please report it."""

class NotHeld(Error, RuntimeError, ValueError):
    """This process does not hold the lock or permit: never acquired, already released, or held by
    the parent process.
    """

class LockLost(Error):
    """The lock or permit was lost: its lease expired, or the server lost it.

    Work that was done under it may have overlapped with the work of another holder.
    """

class NotFound(Error, LookupError):
    """There is no such session, semaphore or counter: it was never set up, has expired or was torn
    down.
    """

class SessionNotFound(NotFound):
    """There is no such session: it was never set up, has expired or was torn down."""

class SemaphoreNotFound(NotFound):
    """There is no such semaphore: it was never set up, has expired or was torn down."""

class CounterNotFound(NotFound):
    """There is no such counter: its item was never set up, or the server has lost it."""

class Interrupted(Error):
    """The wait was cancelled from another thread, by Client.cancel_waits() or a CancelHandle.
    Nothing is held.
    """

class Recovering(Error):
    """The server was started a short while ago, and gives no new locks or permits until all leases
    of before have ended; the call was not to wait. Only with `guard=` in the URL.
    """

class TimedOut(Error, TimeoutError):
    """The timeout expired before the lock or permit was available."""

def connect(url: str | None = None) -> Client:
    """Make a client for the servers that `url` names.

    Without `url`, uses the environment variable MEMLOCK_URL, or else the first line of the file
    that MEMLOCK_URL_FILE names, or else memcached://127.0.0.1:11211. The URL is `memcached://hos
    t[:port][,host2...]?prefix=&connect_timeout=&io_timeout=&pool=&outage=&notify=`,
    `redis://[[user]:password@]host[:port][/database]` (or `rediss:`, `redis+unix:`);
    `sqlite:///path` or `sqlite:path` for locks in a file, among the programs of one host and
    without a server; or `memory://name` for locks among the threads of this process. Timeouts
    are written `250ms` or `2s`.

    `notify` is the address at which other processes, also on other hosts, wake the next waiter
    of this process when they release a lock. A wake-up is one UDP datagram. Write
    `notify=address`, `notify=address:port` or `notify=address:first-last`, with `[...]` around
    an IPv6 address. Provide as many ports as there are locks for which this process waits at the
    same time. The default is the local address of the connection to the server, and any free
    port. With `notify=off` no wake-ups are received, and waiters poll the server instead: the
    first waiter at intervals that grow from 10 to 250 milliseconds, the others at intervals of
    up to 0.7 seconds. `bell` is an alias of `notify`.

    Opens no connection: the first call that needs a server raises Unreachable if there is none.
    Raises ConfigError for an invalid URL.
    """

@final
class Client:
    """A client of one memcached server, a group of servers, or a file. Made by connect().

    Any number of threads may use it, and so may forked children: a child opens its own
    connections. It need not be closed: its sockets are closed when the last object that was made
    from it is deallocated. As a context manager it returns itself, and closes itself at the end.
    """

    def mutex(
        self,
        name: _Name,
        lease: _Duration = 30,
        timeout: _Duration | None = None,
        *,
        renew: bool = False,
        max_hold: _Duration | None = None,
        on_lease_at_risk: Callable[[float], object] | None = None,
        on_lost: Callable[[_Loss], object] | None = None,
    ) -> Mutex:
        """Make a Mutex by its name. Sends nothing.

        A holder keeps the lock for at most `lease` (1 second to 366 days), unless it extends the
        lease. `timeout` is how long acquire() without a timeout, and `with`, wait for the lock:
        None for no limit, 0 to try only once. Both are seconds as int or float, or a
        datetime.timedelta.

        With renew=True the lease is renewed automatically while the lock is held, until it is
        released or lost, and for at most `max_hold`, so that a program that hangs does not hold
        the lock for ever. `on_lease_at_risk` is called with the number of seconds left when half
        of the lease has passed without a renewal, or when the lease is not to be renewed any
        more. `on_lost` is called with the reason, as in `lost`, when the lock was lost, unless
        release() was called before, also one that failed. Both are called in the renewal thread,
        which renews nothing until they return; their exceptions go to sys.unraisablehook.
        Threads and programs that they start block the signals that the acquiring thread blocks.
        The interpreter waits at exit for a callback that is running, and starts no other.

        Raises Invalid for an empty name, one above 64 KiB or with a NUL byte, and for durations
        out of range.
        """
    def semaphore(
        self,
        name: _Name,
        permits: int | None = None,
        lease: _Duration = 30,
        timeout: _Duration | None = None,
        *,
        renew: bool = False,
        max_hold: _Duration | None = None,
        on_lease_at_risk: Callable[[float], object] | None = None,
        on_lost: Callable[[_Loss], object] | None = None,
    ) -> Semaphore:
        """Make a Semaphore by its name. Sends nothing.

        `permits` is the number of permits (1 to 4,294,967,295); permits=None opens an existing
        semaphore with any number. A holder keeps its permits for at most `lease` (1 second to
        366 days), unless it extends the lease. `timeout` is how long acquire() and permit()
        without a timeout, and `with`, wait: None for no limit, 0 to try only once.

        renew, max_hold, on_lease_at_risk and on_lost are those of mutex(), for each acquisition.

        Raises Invalid as mutex() does, and for a number of permits out of range.
        """
    def counter(self, key: _Name) -> Counter:
        """Make a Counter for the item with this key, which other programs may use too.

        The URL's prefix is prepended to the key. Sends nothing. Raises Invalid if prefix and key
        are not 1 to 245 visible ASCII characters.
        """
    def distinct_list(self, session: _Name, duration: _Duration) -> DistinctList:
        """Set up a distinct list by its session name, or join it: `created` tells which.

        The session and all its keys expire after `duration` (1 second to 366 days), counted from
        the first set-up. Two round trips, or one to join.

        Raises Invalid as mutex() does; Unreachable, OutcomeUnknown or ProtocolError.
        """
    def cancel_waits(self) -> None:
        """End all waits of this client that are in progress, in all threads.

        Each wait raises Interrupted; nothing is held then, and no entry is left in the queue.
        Waits that begin later are not affected. No I/O.
        """
    def cancel_handle(self) -> CancelHandle:
        """Make a handle by which another thread ends single waits: pass it to acquire() or permit()
        as `cancel`.
        """
    def close(self) -> None:
        """Close the client. A second call changes nothing.

        Its connections are closed. Waits that are in progress raise ClientClosed, and so does
        every later call of the client and of the objects made from it.

        **Locks and permits stay held**, so that no lock is taken from a thread that works under
        it: they can still be extended, checked and released, renewal continues until then, and
        an object that is deallocated releases what it holds. No I/O.
        """
    def _call(self, session: _Name, function: Callable[[], object]) -> _Call: ...
    @property
    def closed(self) -> bool:
        """Whether close() was called."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

@final
class CancelHandle:
    """Ends waits from another thread: those that were passed this handle as `cancel`. Made by
    Client.cancel_handle().

    cancel() ends the waits that are in progress; a wait that begins later with this handle
    raises Interrupted at once. Make a new handle for each task that may be cancelled. Any number
    of waits may share a handle, and any number of threads may use it.
    """

    def cancel(self) -> None:
        """End all waits that use this handle, and every later one.

        Each wait raises Interrupted; nothing is held then, and no entry is left in the queue. A
        cancelled handle stays cancelled. Any thread may call this, also more than once. No I/O.
        """
    @property
    def cancelled(self) -> bool:
        """Whether cancel() was called."""

@final
class Mutex:
    """A mutex by its name, held by at most one holder at a time, in all processes. Made by
    Client.mutex().

    It is used like threading.Lock, in a `with` statement or by acquire() and release(). The
    object holds at most one acquisition at a time: threads that share it exclude each other, a
    thread that acquires it twice waits for itself, and any thread may release it.

    A holder keeps the lock for at most the lease, unless it extends the lease. After that
    another holder may acquire it: check `remaining`, or pass `fence` to the resource that the
    lock protects.

    With renew=True the lease is renewed automatically while the lock is held, until it is
    released or lost: check `lost`, or wait for a loss by wait_lost(). One background thread
    renews all leases of a client.

    An object that is deallocated while it holds the lock releases it on a best-effort basis. In
    a forked child it holds nothing, and neither releasing nor deallocating it affects the
    parent's lock.
    """

    def acquire(
        self,
        blocking: bool = True,
        timeout: float | None = -1,
        *,
        cancel: CancelHandle | None = None,
    ) -> bool:
        """Acquire the lock, and return whether it was acquired.

        blocking=False tries once, and returns False when another holder has the lock. Otherwise
        it waits for `timeout` seconds, and returns False when they have passed. The default, -1,
        and None mean the mutex's own `timeout`, by default no limit. Acquiring a free lock takes
        one round trip. `cancel` is a CancelHandle of the same client, by which another thread
        may end the wait.

        Raises Interrupted when the wait was cancelled, and ClientClosed when the client is
        closed; with blocking=False, Recovering when the server gives no new locks yet;
        ValueError or OverflowError for a timeout that threading.Lock refuses too; Unreachable
        when there is no server at the first attempt, or for longer than the URL's `outage` while
        waiting; OutcomeUnknown; ProtocolError. An exception from a signal handler, such as
        KeyboardInterrupt, ends a wait of the main thread within 100 ms; nothing is held then,
        and no entry is left in the queue.
        """
    def release(self) -> None:
        """Release the lock, in one round trip. Any thread may call this.

        Raises NotHeld, a RuntimeError, when this object holds nothing; LockLost when the lease
        had expired or the server had lost the lock, so that another holder may have had it
        meanwhile. Shortly after the end of a lease that is not renewed the server may still have
        the lock for this holder: release() then succeeds, and no other holder has had the lock.
        After Unreachable, OutcomeUnknown and ProtocolError the object still holds the lock, and
        release() can be called again.

        Does nothing, once, when the release was left to the end of a transaction: see
        docs/transactions.md.
        """
    def locked(self) -> bool:
        """Whether the lock is held, in any process. One round trip. A snapshot, for diagnostics and
        not for decisions.

        Raises Unreachable or ProtocolError.
        """
    def extend(self, lease: _Duration | None = None) -> None:
        """Give the lock a new lease, counted from now; by default as long as the first. One round
        trip.

        The fence does not change. Any thread may call this, such as one that only extends.

        Raises NotHeld; LockLost, as release() does; Invalid for a lease out of range or with
        renew=True; Unreachable when nothing was changed; OutcomeUnknown or ProtocolError when it
        may have been: the old lease may then still apply, and `remaining` assumes the shorter of
        the two.
        """
    @property
    def remaining(self) -> float:
        """The number of seconds for which the lock is guaranteed to be held, provided that the
        server does not lose it; 0.0 when it is not held. Counted locally, from before the
        request was sent. No I/O.
        """
    @property
    def is_held(self) -> bool:
        """Whether the lock is guaranteed to be held, provided that the server has not lost it. No
        I/O: decided by the clock and by what earlier calls and renewals have found.
        """
    def check(self) -> bool:
        """Ask the server whether the lock is still held. One round trip, or none when the lease has
        expired: the answer is then False, although release() and extend() may still succeed.

        A renewed lock that is not held any more is lost for good. Raises NotHeld when the object
        holds nothing; Unreachable or ProtocolError.
        """
    @property
    def lost(self) -> _Loss | None:
        """Why the lock was lost; None while no loss is known. No I/O.

        "expired": the lease has expired, or was not renewed in time; "gone": the server lost the
        lock, or it was taken away; "max_hold": the maximum hold time has passed.
        """
    def wait_lost(self, timeout: _Duration | None = None) -> _Loss | None:
        """Wait for a loss for at most `timeout` seconds, and return the reason as `lost` does.

        Returns None when the time has passed, or when the lock was released meanwhile. An
        exception from a signal handler ends the wait in the main thread.
        """
    @property
    def fence(self) -> int:
        """The fencing token: an int that is greater than the fence of every earlier holder of this
        mutex.

        Pass it to the resource that the lock protects; the resource refuses any number below the
        greatest it has accepted. Raises NotHeld when the object holds nothing, and LockLost in a
        thread whose lease expired and whose lock another thread has acquired by this object. No
        I/O: a lease whose expiry was not noticed still has its fence.
        """
    def owner(self) -> Owner | None:
        """The holder of the lock, or None. A snapshot. One round trip.

        Raises Unreachable or ProtocolError.
        """
    def force_unlock(self, token: str) -> bool:
        """Release the lock on behalf of the holder that Owner.token identifies.

        For operators who know that this holder is dead; it finds its lock lost. Returns False
        when that acquisition no longer holds the lock. A later holder is never affected.

        Raises Unreachable, OutcomeUnknown or ProtocolError.
        """
    def release_in(self, connection: Any) -> Any:
        """Release the lock as a part of a transaction on the database that the lock is on: COMMIT
        commits the work and releases the lock together, and after a ROLLBACK neither has
        happened.

        `connection` is a connection or cursor of psycopg, psycopg2, PyMySQL, mysqlclient or
        another DB-API module, a Session or Connection of SQLAlchemy, or a connection of Django,
        on the same database as the lock (postgresql:// or mysql://), with a transaction open.
        Call it as the last statement: from then on no other holder can acquire the lock until
        the transaction has ended, whatever happens to its lease. Clients that try are answered
        that it is held, and Unreachable once its lease has ended.

        Afterwards `remaining` is 0, the lease is no longer renewed, and neither the end of the
        `with` statement nor release() releases anything. When the transaction has ended, the
        next waiter is woken: by SQLAlchemy and Django at once; with a DB-API connection inside
        of memlock.transaction(), or by release() of the returned object, which the program calls
        after the COMMIT; otherwise waiters find the lock free within about a second. After a
        ROLLBACK the same step releases the lock.

        Raises LockLost if the lock was lost: roll back. Raises NotHeld if nothing is held,
        ConfigError if the lock is not on such a database or the driver is in a pipeline mode,
        which does not tell the outcome, and Invalid, a ValueError, without a transaction.
        """
    @overload
    def guard(self, function: Callable[_P, _R], /) -> Callable[_P, _R]:
        """Make a decorator: the function runs only while it holds the lock.

            @client.mutex("nightly-report", renew=True).guard
            def report(): ...

            @client.mutex("cleanup", renew=True).guard(skip_if_busy=True)
            def clean_up(): ...

        Each call acquires the lock, with this mutex's `timeout`, and releases it at its end, as
        a `with` statement does: it raises TimedOut without calling the function, and LockLost if
        the lock was lost meanwhile. With skip_if_busy=True a call tries once; if another holder
        has the lock, the call logs that as INFO of the logger "memlock" and returns None. A
        server that does not answer is not busy: Unreachable is raised, and Recovering with
        skip_if_busy=True.

        Each call is a holder of its own, also if several threads call the function at once, and
        this object holds nothing: memlock.current_mutex() is the mutex of the call, with its
        fence. A function that calls itself waits for itself. Methods can be decorated, below
        @staticmethod and @classmethod.

        Raises TypeError for a coroutine function, which needs memlock.aio.Mutex, for a generator
        function and for a class; and by a call that returns a coroutine or a generator, which
        would run without the lock.
        """
    @overload
    def guard(
        self, function: None = None, /, *, skip_if_busy: Literal[False] = False
    ) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
        """Make a decorator: the function runs only while it holds the lock.

            @client.mutex("nightly-report", renew=True).guard
            def report(): ...

            @client.mutex("cleanup", renew=True).guard(skip_if_busy=True)
            def clean_up(): ...

        Each call acquires the lock, with this mutex's `timeout`, and releases it at its end, as
        a `with` statement does: it raises TimedOut without calling the function, and LockLost if
        the lock was lost meanwhile. With skip_if_busy=True a call tries once; if another holder
        has the lock, the call logs that as INFO of the logger "memlock" and returns None. A
        server that does not answer is not busy: Unreachable is raised, and Recovering with
        skip_if_busy=True.

        Each call is a holder of its own, also if several threads call the function at once, and
        this object holds nothing: memlock.current_mutex() is the mutex of the call, with its
        fence. A function that calls itself waits for itself. Methods can be decorated, below
        @staticmethod and @classmethod.

        Raises TypeError for a coroutine function, which needs memlock.aio.Mutex, for a generator
        function and for a class; and by a call that returns a coroutine or a generator, which
        would run without the lock.
        """
    @overload
    def guard(
        self, function: None = None, /, *, skip_if_busy: bool
    ) -> Callable[[Callable[_P, _R]], Callable[_P, _R | None]]:
        """Make a decorator: the function runs only while it holds the lock.

            @client.mutex("nightly-report", renew=True).guard
            def report(): ...

            @client.mutex("cleanup", renew=True).guard(skip_if_busy=True)
            def clean_up(): ...

        Each call acquires the lock, with this mutex's `timeout`, and releases it at its end, as
        a `with` statement does: it raises TimedOut without calling the function, and LockLost if
        the lock was lost meanwhile. With skip_if_busy=True a call tries once; if another holder
        has the lock, the call logs that as INFO of the logger "memlock" and returns None. A
        server that does not answer is not busy: Unreachable is raised, and Recovering with
        skip_if_busy=True.

        Each call is a holder of its own, also if several threads call the function at once, and
        this object holds nothing: memlock.current_mutex() is the mutex of the call, with its
        fence. A function that calls itself waits for itself. Methods can be decorated, below
        @staticmethod and @classmethod.

        Raises TypeError for a coroutine function, which needs memlock.aio.Mutex, for a generator
        function and for a class; and by a call that returns a coroutine or a generator, which
        would run without the lock.
        """
    def _copy(self, try_once: bool = False) -> Mutex: ...
    def _release_sql(self) -> str: ...
    def _acquire(
        self,
        timeout: float | None,
        on_lease_at_risk: Callable[[float], object] | None,
        on_lost: Callable[[_Loss], object] | None,
    ) -> _Call: ...
    def _call(self, function: Callable[[], object]) -> _Call: ...
    def _defer_release(self) -> DeferredRelease: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

@final
class DeferredRelease:
    """The release of one acquisition, which the end of a transaction runs. Deallocating it runs it,
    too: then the transaction cannot end any more, because its connection is gone.
    """

    def release(self) -> None:
        """Release, once. Failures are logged, as warnings of the logger "memlock"."""

@final
class Owner:
    """The holder of a mutex, as read from the server. If the holder does not use memlock, only
    `value`, `token` and `remaining` are known. Two are equal if they are the same acquisition,
    whenever they were seen.
    """

    @property
    def host(self) -> str | None:
        """The holder's host name."""
    @property
    def pid(self) -> int | None:
        """The holder's process id on that host."""
    @property
    def since(self) -> int | None:
        """The time of the acquisition in Unix seconds, by the holder's clock."""
    @property
    def token(self) -> str:
        """Identifies this acquisition, for Mutex.force_unlock()."""
    @property
    def value(self) -> bytes:
        """The value of the lock's item on the server: bytes."""
    @property
    def remaining(self) -> float | None:
        """The time until the mutex expires on the server, in seconds, accurate to one second; None:
        never.
        """
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Semaphore:
    """A semaphore by its name: limits the number of permits that are held at the same time by all
    processes. Made by Client.semaphore().

    It is used like threading.BoundedSemaphore, in a `with` statement or by acquire() and
    release(). Threads may share the object, which may hold any number of acquisitions at once.
    "The acquisition" to which release(), extend(), `remaining` and others apply is the latest
    one of the calling thread or, in a thread that has none, the oldest one of the object.
    permit() returns an acquisition as an object of its own.

    A holder keeps its permits for at most the lease, unless it extends the lease; the permits of
    a program that died become available when its lease ends. After that another holder may
    acquire them: check `remaining`.

    With renew=True leases are renewed automatically while permits are held, also those of
    permit(), until they are released or lost.

    An object that is deallocated while it holds permits releases them on a best-effort basis. In
    a forked child it holds nothing, and neither releasing nor deallocating it affects what the
    parent holds.

    All users of a semaphore share its number of permits. An object that was made without that
    number raises SemaphoreNotFound if the semaphore was not set up; one that was made with
    another number raises Invalid at its first use.
    """

    def acquire(
        self,
        blocking: bool = True,
        timeout: float | None = -1,
        *,
        permits: int = 1,
        priority: int = 0,
        ages: bool = True,
        cancel: CancelHandle | None = None,
    ) -> bool:
        """Acquire one permit, or several together or not at all, and return whether they were
        acquired.

        blocking=False tries once, and returns False when they are not available. Otherwise it
        waits for `timeout` seconds, and returns False when they have passed. The defaults, -1
        and None, mean the semaphore's own `timeout`, by default no limit.

        Waiters of higher `priority` are served first, and waiters of the same priority in FIFO
        order. A waiter that was overtaken 16 times is served next whatever its priority, unless
        it waits with ages=False. A waiter for several permits is not overtaken by waiters of the
        same or a lower priority that want fewer. Acquiring available permits takes one or two
        round trips.

        `cancel` is a CancelHandle of the same client, by which another thread may end the wait.

        Raises Interrupted when the wait was cancelled, and ClientClosed when the client is
        closed; ValueError or OverflowError for a timeout that threading.Lock refuses too;
        Invalid for 0 permits, for more than the semaphore has, and when the object was made with
        another number of permits than the semaphore has; SemaphoreNotFound when it was made
        without a number and the semaphore was not set up; Unreachable when there is no server at
        the first attempt, or for longer than the URL's `outage` while waiting; OutcomeUnknown;
        ProtocolError. An exception from a signal handler, such as KeyboardInterrupt, ends a wait
        of the main thread within 100 ms; nothing is held then, and no entry is left in the
        queue.
        """
    def release(self, n: int = 1) -> None:
        """Release the last `n` acquisitions, each in one or two round trips. Any thread may call
        this.

        An acquisition of several permits counts as one, and all its permits are released: so
        release() undoes acquire(), whatever its arguments. The latest acquisitions of the
        calling thread are released first; if it has fewer than `n`, also the oldest ones of the
        object. If the object holds fewer than `n`, none is released.

        Raises NotHeld, a RuntimeError, when the object holds fewer than `n`; LockLost when the
        lease of one had expired or the server had lost it, so that another holder may have had
        the permits meanwhile; Invalid, a ValueError, for n below 1. Shortly after the end of a
        lease that is not renewed the server may still have the permits for this holder:
        release() then succeeds, and no other holder has had them. After Unreachable,
        OutcomeUnknown and ProtocolError the acquisitions that could not be released are still
        held, and release() can be called again.

        An acquisition whose release was left to the end of a transaction counts, and is released
        there: see docs/transactions.md.
        """
    def permit(
        self,
        timeout: float | None = -1,
        *,
        permits: int = 1,
        priority: int = 0,
        ages: bool = True,
        cancel: CancelHandle | None = None,
    ) -> Permit:
        """Acquire as acquire() does, and return a Permit: this acquisition as an object of its own,
        for a `with` statement or to pass to another thread.

        The semaphore's own release(), extend() and `remaining` do not apply to it. Raises
        TimedOut when `timeout` seconds have passed, and otherwise as acquire(). timeout=0 tries
        once.
        """
    def extend(self, lease: _Duration | None = None) -> None:
        """Give the acquisition a new lease, counted from now; by default as long as the first. One
        or two round trips.

        Raises NotHeld; LockLost, as release() does; Invalid for a lease out of range or with
        renew=True; Unreachable when nothing was changed; OutcomeUnknown or ProtocolError when it
        may have been: the old lease may then still apply, and `remaining` assumes the shorter of
        the two.
        """
    @property
    def remaining(self) -> float:
        """The number of seconds for which the acquisition is guaranteed to be held, provided that
        the server does not lose it; 0.0 when it is not held. Counted locally, from before the
        request was sent. No I/O.
        """
    @property
    def is_held(self) -> bool:
        """Whether the acquisition is guaranteed to be held, provided that the server has not lost
        it. No I/O: decided by the clock and by what earlier calls and renewals have found.
        """
    def check(self) -> bool:
        """Ask the server whether the acquisition is still held. One round trip, or none when the
        lease has expired: the answer is then False, although release() and extend() may still
        succeed.

        A renewed acquisition that is not held any more is lost for good. Raises NotHeld when the
        object holds nothing; Unreachable or ProtocolError.
        """
    @property
    def lost(self) -> _Loss | None:
        """Why the acquisition was lost; None while no loss is known. No I/O.

        "expired": the lease has expired, or was not renewed in time; "gone": the server lost the
        permits, or they were taken away; "max_hold": the maximum hold time has passed.
        """
    def wait_lost(self, timeout: _Duration | None = None) -> _Loss | None:
        """Wait for a loss for at most `timeout` seconds, and return the reason as `lost` does.

        Returns None when the time has passed, or when the permits were released meanwhile. An
        exception from a signal handler ends the wait in the main thread.
        """
    @property
    def permits(self) -> int:
        """The number of permits of the semaphore, held or not. One round trip.

        Raises SemaphoreNotFound when the semaphore was not set up and this object was made
        without the number; Unreachable or ProtocolError.
        """
    @property
    def available(self) -> int:
        """The number of permits that no process holds. A snapshot, for diagnostics and not for
        decisions. One round trip.

        Raises as `permits`.
        """
    def holders(self) -> list[Holder]:
        """A list of Holder, one for each acquisition, in all processes. A snapshot. One round trip.

        Raises as `permits`.
        """
    def resize(self, n: int) -> int:
        """Change the number of permits for all processes, and return the previous number.

        The new number may be lower than the number of held permits: no holder loses any, and no
        permit is granted until enough were released. Objects that are made afterwards need the
        new number.

        Raises Invalid for n below 1; SemaphoreNotFound when there is no such semaphore;
        Unreachable, OutcomeUnknown or ProtocolError.
        """
    def set_up(self, life: _Duration) -> bool:
        """Set up the semaphore with the number of permits with which this object was made.

        The semaphore expires `life` (1 second to 366 days) after its last use. Returns True if
        it is new, False if it already existed. If this is not called, the first process that
        acquires sets it up, with a lifetime of one day.

        Raises Invalid for a life out of range, and when the semaphore has another number of
        permits; SemaphoreNotFound when there is none and this object was made without a number;
        Unreachable, OutcomeUnknown or ProtocolError.
        """
    def tear_down(self) -> bool:
        """Remove the semaphore for all processes. Returns False if there was none.

        Holders lose their permits. Waiters whose object was made without the number of permits
        get SemaphoreNotFound.

        Raises Unreachable, OutcomeUnknown or ProtocolError.
        """
    def _acquire(
        self,
        timeout: float | None,
        request: tuple[int, int, bool],
        on_lease_at_risk: Callable[[float], object] | None,
        on_lost: Callable[[_Loss], object] | None,
    ) -> _Call: ...
    def _call(self, function: Callable[[], object]) -> _Call: ...
    def _defer_release(self) -> DeferredRelease: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

@final
class Permit:
    """One acquisition of a semaphore, of one permit or several. Made by Semaphore.permit(), which
    acquires.

    The permits are held until release(), the end of the `with` statement, or the deallocation of
    the object, and for at most the lease, unless it is extended. Any thread may use the object.
    In a forked child it holds nothing, and neither releasing nor deallocating it affects what
    the parent holds.
    """

    def release(self) -> None:
        """Release the permits, all together, in one or two round trips.

        Raises NotHeld, a RuntimeError, when they were already released; LockLost when the lease
        had expired or the server had lost them, so that another holder may have had them
        meanwhile. Shortly after the end of a lease that is not renewed the server may still have
        them for this holder: release() then succeeds, and no other holder has had them. After
        Unreachable, OutcomeUnknown and ProtocolError they are still held, and release() can be
        called again.

        Does nothing when the release was left to the end of a transaction: see
        docs/transactions.md.
        """
    def extend(self, lease: _Duration | None = None) -> None:
        """Give the permits a new lease, counted from now; by default that of the semaphore. One or
        two round trips.

        Raises NotHeld; LockLost, as release() does; Invalid for a lease out of range or with
        renew=True; Unreachable when nothing was changed; OutcomeUnknown or ProtocolError when it
        may have been: the old lease may then still apply, and `remaining` assumes the shorter of
        the two.
        """
    @property
    def remaining(self) -> float:
        """The number of seconds for which the permits are guaranteed to be held, provided that the
        server does not lose them; 0.0 when they are not held. Counted locally, from before the
        request was sent. No I/O.
        """
    @property
    def is_held(self) -> bool:
        """Whether the permits are guaranteed to be held, provided that the server has not lost
        them. No I/O: decided by the clock and by what earlier calls and renewals have found.
        """
    def check(self) -> bool:
        """Ask the server whether the permits are still held. One round trip, or none when the lease
        has expired: the answer is then False, although release() and extend() may still succeed.

        Renewed permits that are not held any more are lost for good. Raises NotHeld in a forked
        child; Unreachable or ProtocolError.
        """
    @property
    def lost(self) -> _Loss | None:
        """Why the permits were lost; None while no loss is known. No I/O.

        "expired": the lease has expired, or was not renewed in time; "gone": the server lost the
        permits, or they were taken away; "max_hold": the maximum hold time has passed.
        """
    def wait_lost(self, timeout: _Duration | None = None) -> _Loss | None:
        """Wait for a loss for at most `timeout` seconds, and return the reason as `lost` does.

        Returns None when the time has passed, or when the permits were released meanwhile. An
        exception from a signal handler ends the wait in the main thread.
        """
    @property
    def permits(self) -> int:
        """The number of permits that were acquired."""
    @property
    def token(self) -> str:
        """Identifies this acquisition, as Holder.token does."""
    def _defer_release(self) -> DeferredRelease: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

@final
class Holder:
    """A holder of permits of a semaphore, as read from the server."""

    @property
    def token(self) -> str:
        """Identifies this acquisition, as Permit.token does."""
    @property
    def host(self) -> str:
        """The holder's host name, truncated to 32 characters."""
    @property
    def pid(self) -> int:
        """The holder's process id on that host."""
    @property
    def since(self) -> int:
        """The time of the acquisition in Unix seconds, by the holder's clock."""
    @property
    def permits(self) -> int:
        """The number of permits that it holds."""
    @property
    def remaining(self) -> float:
        """The time until the lease expires on the server, in seconds, at most."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Counter:
    """A plain counter of free permits: one item with their number in decimal, for use beside
    programs that already have such an item. Made by Client.counter(). Prefer a Semaphore where
    you can.

    It has no leases. The item contains the number of free permits and nothing about the holders
    of the others: the permits of a program that died are lost until the item is written anew,
    and a program that releases twice creates a permit. Therefore there is no `with`, and the
    object holds nothing. Any thread and any forked child may use it.

    Every call may raise Unreachable, when nothing was changed, and ProtocolError, also when the
    item is not a number. Calls that change the item may raise OutcomeUnknown: the request was
    sent and no reply arrived, so a permit may have been taken that no caller holds.
    """

    def set_up(self, n: int) -> bool:
        """Create the item with `n` free permits. The item never expires.

        Returns False if there is already such an item, which stays unchanged.
        """
    def try_acquire(self) -> bool:
        """Acquire one permit if one is free, and return whether one was. Two round trips.

        Raises CounterNotFound when there is no such item.
        """
    def acquire(
        self,
        timeout: float | None = -1,
        priority: int | None = None,
        *,
        cancel: CancelHandle | None = None,
    ) -> bool:
        """Wait for one permit for `timeout` seconds, or without a limit for -1 or None.

        Returns False if the timeout expired. Without `priority` it retries, with pauses that
        grow from 1 to 50 ms, without a queue or fairness. With `priority` it waits in a queue,
        in the order of priority, higher first, and of arrival among equals; a release by
        memlock, in any process, wakes the first waiter. Callers that retry may overtake the
        queue.

        `cancel` is a CancelHandle of the same client, by which another thread may end the wait.

        Raises Interrupted when the wait was cancelled; ValueError or OverflowError for a timeout
        that threading.Lock refuses too; CounterNotFound when there is no such item. An exception
        from a signal handler, such as KeyboardInterrupt, ends a wait of the main thread within
        100 ms.
        """
    def release(self) -> int:
        """Release one permit, whichever process acquired it, wake the first waiter in the queue,
        and return the number of free permits. One round trip.

        Raises CounterNotFound when there is no such item. After OutcomeUnknown the permit may or
        may not have been released.
        """
    def _acquire(self, timeout: float | None, priority: int | None) -> _Call: ...
    def _call(self, function: Callable[[], object]) -> _Call: ...
    @property
    def available(self) -> int:
        """The number of free permits. A snapshot. One round trip.

        Raises CounterNotFound when there is no such item.
        """

@final
class DistinctList:
    """A named set of keys with ids, shared by all processes that use the session's name. Made by
    Client.distinct_list().

    Exactly one of all inserts of a key returns True, and all callers get the same id for a key.
    Keys are str or bytes of 1 byte to 64 KiB; a str is the same key as its UTF-8 bytes. Keys are
    returned as str; bytes that are not UTF-8 are returned as surrogates, as by os.fsdecode(), so
    that inserting a returned key always means the same key, and key.encode("utf-8",
    "surrogateescape") returns its bytes.

    The object belongs to the session that it set up or joined. Once that session is torn down or
    has expired, every call raises SessionNotFound, even if there is another session of the same
    name. Every call may also raise Unreachable and ProtocolError, and those that change the list
    OutcomeUnknown. Any number of threads may use it, and so may forked children.
    """

    @property
    def created(self) -> bool:
        """Whether this object has set the session up; False if it joined an existing one."""
    def insert(self, key: _Name) -> bool:
        """Insert a key, and return whether this insert was the first.

        Three round trips for a new key, one for a duplicate. Raises Invalid for an empty key or
        one above 64 KiB. After OutcomeUnknown the key may or may not be in the list; inserting
        it again is safe, but may report the caller's own key as a duplicate.
        """
    def insert_many(self, keys: Iterable[_Name]) -> list[tuple[int, bool]]:
        """Insert many keys, and return a list with (id, first) for each, in the same order: the id
        of the key, and whether this insert was the first.

        A key that occurs twice is a duplicate the second time. Keys are taken from the iterable
        and sent in batches of 1,000, in three round trips each, and one more if some are
        duplicates. Raises as insert(); some of the keys may then be in the list.
        """
    # Aliases of insert() and insert_many(), the names that sets use.
    def add(self, key: _Name) -> bool:
        """An alias of insert(), the name that sets use."""
    def add_many(self, keys: Iterable[_Name]) -> list[tuple[int, bool]]:
        """An alias of insert_many()."""
    def id(self, key: _Name) -> int:
        """The id of a key, counted from 1 in the order of insertion, and the same for all callers.
        One round trip.

        Raises KeyError when the key is not in the list.
        """
    def items(self) -> Iterator[tuple[int, str]]:
        """An iterator over (id, key), in the order of ids, of the keys that are in the list now.

        Reads 256 keys at a time, in two round trips. Raises SessionNotFound if the session ends
        during the iteration.
        """
    def tear_down(self) -> bool:
        """End the session for all processes, in one atomic step. Returns False if it had already
        ended.
        """
    def _call(self, function: Callable[[], object]) -> _Call: ...
    def __contains__(self, key: _Name, /) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...

# What memlock.aio is made of.

@final
class _Completions:
    def __new__(cls) -> Self: ...
    def fileno(self) -> int: ...
    def take(self) -> list[int]: ...
    def add(self, number: int) -> None: ...

@final
class _Call:
    def notify(self, completions: _Completions, number: int) -> None: ...
    def result(self) -> Any: ...
    def cancel(self) -> None: ...

@final
class _Held:
    def release(self) -> _Call: ...
    def extend(self, lease: _Duration | None = None) -> _Call: ...
    def check(self) -> _Call: ...
    @property
    def remaining(self) -> float: ...
    @property
    def lost(self) -> _Loss | None: ...
    @property
    def fence(self) -> int | None: ...
    @property
    def permits(self) -> int: ...
    @property
    def token(self) -> str: ...

def init(url: str) -> None:
    """Set the URL of the default client, as for connect().

    Call it once, before the first call of one of these functions. Without it the default client
    uses MEMLOCK_URL, or memcached://127.0.0.1:11211. Opens no connection.

    Raises ConfigError for an invalid URL, or when there is already a default client.
    """

def cancel_waits() -> None:
    """End all waits of mutex_lock() and semaphore_acquire() that are in progress, in all threads.

    Each wait raises Interrupted. Waits that begin later are not affected. No I/O.

    Raises ConfigError when the default client cannot be made.
    """

def mutex_lock(mutex_key: _Name, duration: _Duration) -> bool:
    """Lock a mutex for at most `duration` (1 second to 366 days), wait without a timeout, and
    return True.

    The lock belongs to the process: any of its threads may unlock it, and two of its threads
    exclude each other.

    Raises Deadlock when this thread already holds the mutex; Invalid; Unreachable,
    OutcomeUnknown or ProtocolError as Mutex.acquire(). KeyboardInterrupt ends a wait of the main
    thread within 100 ms; nothing is held then, and no entry is left in the queue.
    """

def mutex_lock_nonblock(mutex_key: _Name, duration: _Duration) -> bool:
    """Like mutex_lock(), but try only once.

    Returns True if the mutex is now locked, False if it was already held.
    """

def mutex_unlock(mutex_key: _Name) -> bool:
    """Unlock a mutex that this process locked by mutex_lock() or mutex_lock_nonblock(), and return
    True.

    Any thread may call it. Raises NotHeld when this process does not hold the mutex; LockLost
    when the duration had passed or the server had lost the lock, so that another holder may have
    held it meanwhile. Shortly after the duration the server may still have the lock for this
    process: the call then succeeds, and no other holder has had it. After Unreachable,
    OutcomeUnknown and ProtocolError the mutex is still held, and can be unlocked again.
    """

def semaphore_set_up(name: _Name, permits: int, duration: _Duration) -> bool:
    """Set up a semaphore with the given number of permits.

    The semaphore expires `duration` (1 second to 366 days) after its last use. Returns True if
    it is new, False if it already existed; it can be used in both cases.

    Raises Invalid, also when the semaphore has another number of permits; Unreachable,
    OutcomeUnknown or ProtocolError.
    """

def semaphore_acquire(name: _Name, duration: _Duration) -> bool:
    """Acquire one permit for at most `duration` (1 second to 366 days), wait without a timeout, and
    return True.

    The permit belongs to the process: any of its threads may release it. A process may hold
    several permits.

    Raises SemaphoreNotFound when the semaphore was not set up; Invalid; Unreachable,
    OutcomeUnknown or ProtocolError as Semaphore.acquire(). KeyboardInterrupt ends a wait of the
    main thread within 100 ms; nothing is held then, and no entry is left in the queue.
    """

def semaphore_acquire_nonblock(name: _Name, duration: _Duration) -> bool:
    """Like semaphore_acquire(), but try only once.

    Returns True if a permit was acquired, False if none is available.
    """

def semaphore_release(name: _Name) -> bool:
    """Release a permit of semaphore_acquire() or semaphore_acquire_nonblock(), and return True.

    The permit is the one that the calling thread acquired last or, if it has none, the one that
    the process has held for the longest time.

    Raises NotHeld when this process holds no permit; LockLost when the duration had passed or
    the server had lost the permit, so that another holder may have had it meanwhile. Shortly
    after the duration the server may still have the permit for this process: the call then
    succeeds, and no other holder has had it. After Unreachable, OutcomeUnknown and ProtocolError
    the permit is still held, and can be released again.
    """

def semaphore_tear_down(name: _Name) -> bool:
    """Remove a semaphore for all processes. Holders lose their permits.

    Returns False if there was none. Raises Invalid, Unreachable, OutcomeUnknown or
    ProtocolError.
    """

def distinct_list_set_up(session: _Name, duration: _Duration) -> bool:
    """Set up a session, which expires with all its keys after `duration` (1 second to 366 days).

    Returns True if the session is new, False if it already existed and was joined; it can be
    used in both cases.

    Raises Invalid, Unreachable, OutcomeUnknown or ProtocolError.
    """

def distinct_list_insert(session: _Name, key: _Name) -> bool:
    """Insert a key.

    Returns True for exactly one of all inserts of the key, False if it was already in the list.

    Raises SessionNotFound when there is no such session, and otherwise as DistinctList.insert().
    """

def distinct_list_tear_down(session: _Name) -> bool:
    """End a session for all processes.

    Returns False if there was none. Raises Invalid, Unreachable, OutcomeUnknown or
    ProtocolError.
    """
