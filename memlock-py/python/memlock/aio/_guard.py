"""The decorator of a mutex: each call of a coroutine function holds the lock."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable

from memlock import _current
from memlock._functions import check_function, is_coroutine_function, name_of, refuse_deferred
from memlock._guard import WhenBusy, log_skipped
from memlock._memlock import TimedOut
from memlock._subject import subject_of

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from memlock.aio._mutex import Mutex


def guard(mutex: Mutex, function: Any, skip_if_busy: bool) -> Any:
    """See Mutex.guard()."""
    subject = subject_of(mutex._copy())

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        check_function(subject, function)
        if not is_coroutine_function(function):
            raise TypeError(
                f"{subject} cannot hold its lock for {name_of(function)}, which is not a coroutine "
                "function: use the mutex of a client of memlock.connect()."
            )
        busy = log_skipped(function) if skip_if_busy else None

        @functools.wraps(function)
        async def guarded(*arguments: Any, **keywords: Any) -> Any:
            # Each call is a holder of its own.
            own = mutex._copy(skip_if_busy)
            return await call_locked(own, busy, subject, function, *arguments, **keywords)

        return guarded

    return decorate if function is None else decorate(function)


def current_mutex() -> Mutex:
    """Return the mutex that this call holds, for its `fence`, `lost` and `remaining`.

    For coroutine functions that hold a lock by Mutex.guard, or by lock_view of memlock.django and
    memlock.flask, and for what they call in their task. The innermost one counts. Raises NotHeld, a
    RuntimeError, outside of such a call. No I/O.
    """
    mutex: Mutex = _current.current(_current.asynchronous)
    return mutex


async def call_locked(
    mutex: AbstractAsyncContextManager[Any],
    busy: WhenBusy,
    subject: str,
    function: Callable[..., Any],
    /,
    *arguments: Any,
    **keywords: Any,
) -> Any:
    """Call a coroutine function while the lock is held."""
    try:
        entered = await mutex.__aenter__()
    except TimedOut as error:
        if busy is None:
            raise
        return busy(error)
    # No task is cancelled between these two.
    async with Entered(mutex):
        token = _current.asynchronous.set(entered)
        try:
            result = await function(*arguments, **keywords)
        finally:
            _current.asynchronous.reset(token)
        refuse_deferred(subject, function, result)
        return result


class Entered:
    """The rest of an `async with` statement whose beginning has been carried out."""

    def __init__(self, mutex: AbstractAsyncContextManager[Any]) -> None:
        self._mutex = mutex

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *exception: Any) -> Any:
        return await self._mutex.__aexit__(*exception)
