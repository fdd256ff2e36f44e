"""memlock.aio.Client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import memlock._memlock as _core
from memlock.aio._counter import Counter
from memlock.aio._distinct_list import DistinctList
from memlock.aio._held import Options
from memlock.aio._loop import running
from memlock.aio._mutex import Mutex
from memlock.aio._semaphore import Semaphore

if TYPE_CHECKING:
    from datetime import timedelta
    from types import TracebackType

    from typing_extensions import Self

    from memlock._memlock import _Loss


def connect(url: str | None = None) -> Client:
    """Make a client for the servers that `url` names. The argument is that of memlock.connect().

    Opens no connection and needs no event loop: a client may be a global variable, be used by
    several loops and threads, and by forked children.
    """
    return Client(_core.connect(url))


class Client:
    """A client of one server, a group of servers, or a file, for coroutines. Made by connect().

    Threads of the client carry out all calls, so that none blocks the event loop: two for each of
    at most two groups of servers, while there is something to do. They use no executor of the loop.
    """

    def __init__(self, core: _core.Client) -> None:
        """Share a client with code that blocks; connect() makes one of its own."""
        self._core = core

    def mutex(
        self,
        name: str | bytes,
        lease: float | timedelta = 30,
        timeout: float | timedelta | None = None,
        *,
        renew: bool = False,
        max_hold: float | timedelta | None = None,
        on_lease_at_risk: Callable[[float], object] | None = None,
        on_lost: Callable[[_Loss], object] | None = None,
        cancel_on_lost: bool = False,
    ) -> Mutex:
        """Make a Mutex by its name. Sends nothing.

        A holder keeps the lock for at most `lease` (1 second to 366 days), unless it extends the
        lease. `timeout` is how long acquire() without a timeout, and `async with`, wait for the
        lock: None for no limit, 0 to try only once.

        With renew=True the lease is renewed automatically while the lock is held, for at most
        `max_hold`. `on_lease_at_risk` and `on_lost` are called in the event loop that acquired;
        they must not block, and their exceptions go to sys.unraisablehook. With cancel_on_lost=True
        a loss cancels the block of an `async with` statement, with all tasks that the block awaits;
        the statement then raises LockLost.

        Raises Invalid for an empty name, one above 64 KiB or with a NUL byte, for durations out of
        range, and for the other options without renew=True.
        """
        options = self._options(renew, on_lease_at_risk, on_lost, cancel_on_lost)
        core = self._core.mutex(name, lease, timeout, renew=renew, max_hold=max_hold)
        return Mutex(core, options)

    def semaphore(
        self,
        name: str | bytes,
        permits: int | None = None,
        lease: float | timedelta = 30,
        timeout: float | timedelta | None = None,
        *,
        renew: bool = False,
        max_hold: float | timedelta | None = None,
        on_lease_at_risk: Callable[[float], object] | None = None,
        on_lost: Callable[[_Loss], object] | None = None,
        cancel_on_lost: bool = False,
    ) -> Semaphore:
        """Make a Semaphore by its name. Sends nothing.

        `permits` is the number of permits (1 to 4,294,967,295); permits=None opens an existing
        semaphore with any number. The other arguments are those of mutex(), for each acquisition.
        """
        options = self._options(renew, on_lease_at_risk, on_lost, cancel_on_lost)
        core = self._core.semaphore(name, permits, lease, timeout, renew=renew, max_hold=max_hold)
        return Semaphore(core, options)

    def _options(self, renew: bool, *others: Any) -> Options:
        if not renew and any(others):
            text = "on_lease_at_risk, on_lost and cancel_on_lost require renewal: pass renew=True."
            raise _core.Invalid(text)
        return Options(renew, *others)

    def counter(self, key: str | bytes) -> Counter:
        """Make a Counter for the item with this key, which other programs may use too."""
        return Counter(self._core.counter(key))

    async def distinct_list(
        self, session: str | bytes, duration: float | timedelta
    ) -> DistinctList:
        """Set up a distinct list by its session name, or join it: `created` tells which.

        The session and all its keys expire after `duration` (1 second to 366 days), counted from
        the first set-up. Raises Invalid as mutex() does; Unreachable, OutcomeUnknown or
        ProtocolError.
        """
        call = self._core._call(session, lambda: self._core.distinct_list(session, duration))
        return DistinctList(await running().result_of(call))

    def cancel_waits(self) -> None:
        """End all waits of this client that are in progress, in all loops and threads.

        Each wait raises Interrupted; nothing is held then. Waits that begin later are not affected.
        """
        self._core.cancel_waits()

    def close(self) -> None:
        """Close the client. Sends nothing and does not wait. A second call changes nothing.

        Waits that are in progress raise ClientClosed, and so does every later call of the client
        and of the objects made from it. **Locks and permits stay held**: they can still be
        extended, checked and released, and renewal continues until then.
        """
        self._core.close()

    async def aclose(self) -> None:
        """Close the client, as close()."""
        self.close()

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._core.closed

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the client."""
        self.close()

    def __repr__(self) -> str:
        """Tell the URL, without its password."""
        return repr(self._core).replace("memlock.", "memlock.aio.", 1)
