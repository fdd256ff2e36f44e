"""memlock.aio.Mutex."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, overload

from memlock._memlock import TimedOut
from memlock.aio._acquirable import Acquirable, limit
from memlock.aio._guard import guard
from memlock.aio._held import Acquisition, Options, acquire
from memlock.aio._loop import running

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Literal, TypeVar

    from typing_extensions import ParamSpec

    import memlock

    _P = ParamSpec("_P")
    _R = TypeVar("_R")


class Mutex(Acquirable):
    """A mutex by its name, held by at most one holder at a time, in all processes.

    Made by Client.mutex(). It is used like asyncio.Lock, in an `async with` statement or by
    acquire() and release(). The object is the owner: tasks that share it exclude each other, a task
    that acquires it twice waits for itself, and any task may release it.

    A holder keeps the lock for at most the lease, unless it extends the lease. After that another
    holder may acquire it: check `remaining`, or pass `fence` to the resource that the lock
    protects.

    With renew=True the lease is renewed automatically while the lock is held, by a thread of the
    client, also while the event loop is busy. An object that is deallocated while it holds the lock
    releases it.
    """

    def __init__(self, core: memlock.Mutex, options: Options) -> None:
        """Use Client.mutex()."""
        super().__init__(core, options, newest=True)
        self._core = core

    async def acquire(self, blocking: bool = True, timeout: float | None = -1) -> bool:
        """Acquire the lock, and return whether it was acquired.

        blocking=False tries once, and returns False when another holder has the lock. Otherwise it
        waits for `timeout` seconds, and returns False when they have passed. The default, -1, and
        None mean the mutex's own `timeout`, by default no limit. Acquiring a free lock takes one
        round trip.

        A task that is cancelled holds nothing, leaves no entry in the queue, and what was granted
        at the same moment is released. Raises Interrupted when the client's waits were cancelled,
        and ClientClosed when the client is closed; with blocking=False, Recovering when the server
        gives no new locks yet; ValueError or OverflowError for an invalid timeout; Unreachable when
        there is no server at the first attempt, or for longer than the URL's `outage` while
        waiting; OutcomeUnknown; ProtocolError.
        """
        acquired = await self._acquire(limit(blocking, timeout))
        if isinstance(acquired, TimedOut):
            return False
        self._held.add(acquired)
        return True

    async def _acquire(self, timeout: float | None) -> Acquisition | TimedOut:
        return await acquire(lambda *notify: self._core._acquire(timeout, *notify), self._options)

    async def release(self) -> None:
        """Release the lock, in one round trip.

        It is released also if the task is cancelled meanwhile. Raises NotHeld, a RuntimeError, when
        this object holds nothing; LockLost when the lease had expired or the server had lost the
        lock, so that another holder may have had it meanwhile. After Unreachable, OutcomeUnknown
        and ProtocolError the object still holds the lock, and release() can be called again.
        """
        await self._held.release(self._held.must_be_held())

    async def locked(self) -> bool:
        """Whether the lock is held, in any process. For diagnostics, not for decisions.

        One round trip. Raises Unreachable or ProtocolError.
        """
        return bool(await running().result_of(self._core._call(self._core.locked)))

    async def owner(self) -> memlock.Owner | None:
        """The holder of the lock, or None. A snapshot. One round trip.

        Raises Unreachable or ProtocolError.
        """
        owner: memlock.Owner | None = await running().result_of(self._core._call(self._core.owner))
        return owner

    async def force_unlock(self, token: str) -> bool:
        """Release the lock on behalf of the holder that Owner.token identifies.

        For operators who know that this holder is dead; it finds its lock lost. Returns False when
        that acquisition no longer holds the lock. A later holder is never affected.
        """
        call = self._core._call(lambda: self._core.force_unlock(token))
        return bool(await running().result_of(call))

    @property
    def fence(self) -> int:
        """The fencing token: greater than the fence of every earlier holder of this mutex.

        Pass it to the resource that the lock protects; the resource refuses any number below the
        greatest it has accepted. Raises NotHeld when the object holds nothing. No I/O.
        """
        return self._held.must_be_held().held.fence or 0

    @overload
    def guard(
        self, function: Callable[_P, Coroutine[Any, Any, _R]], /
    ) -> Callable[_P, Coroutine[Any, Any, _R]]: ...

    @overload
    def guard(
        self, function: None = None, /, *, skip_if_busy: Literal[False] = False
    ) -> Callable[
        [Callable[_P, Coroutine[Any, Any, _R]]], Callable[_P, Coroutine[Any, Any, _R]]
    ]: ...

    @overload
    def guard(
        self, function: None = None, /, *, skip_if_busy: bool
    ) -> Callable[
        [Callable[_P, Coroutine[Any, Any, _R]]], Callable[_P, Coroutine[Any, Any, _R | None]]
    ]: ...

    def guard(self, function: Any = None, /, *, skip_if_busy: bool = False) -> Any:
        """Make a decorator: the coroutine function runs only while it holds the lock.

            @client.mutex("nightly-report", renew=True, cancel_on_lost=True).guard
            async def report(): ...

            @client.mutex("cleanup", renew=True).guard(skip_if_busy=True)
            async def clean_up(): ...

        Each call acquires the lock, with this mutex's `timeout`, and releases it at its end, as an
        `async with` statement does: it raises TimedOut without calling the function, and LockLost
        if the lock was lost meanwhile. With skip_if_busy=True a call tries once; if another holder
        has the lock, the call logs that as INFO of the logger "memlock" and returns None. A server
        that does not answer is not busy: Unreachable is raised, and Recovering with
        skip_if_busy=True.

        Each call is a holder of its own, also if several tasks call the function at once, and this
        object holds nothing: memlock.aio.current_mutex() is the mutex of the call, with its fence.
        A function that calls itself waits for itself. Methods can be decorated, below @staticmethod
        and @classmethod.

        Raises TypeError for a function that is no coroutine function, such as one that blocks or an
        asynchronous generator function, and for a class.
        """
        return guard(self, function, skip_if_busy)

    def _copy(self, try_once: bool = False) -> Mutex:
        """Return a mutex of the same name and options that holds nothing."""
        return Mutex(self._core._copy(try_once), self._options)

    def __repr__(self) -> str:
        """Tell the name, and whether it is held."""
        return self._described("held" if len(self._held) else "not held")
