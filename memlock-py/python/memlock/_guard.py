"""The decorator of a mutex: each call of a function holds the lock."""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import Any, Callable, Optional

from memlock import _current
from memlock._functions import check_function, is_coroutine_function, name_of, refuse_deferred
from memlock._memlock import Mutex, TimedOut
from memlock._subject import subject_of

_log = logging.getLogger("memlock")

# What a call does when the lock is busy. Its result is the result of the call.
WhenBusy = Optional[Callable[[TimedOut], Any]]


def guard(mutex: Mutex, function: Any, skip_if_busy: bool) -> Any:
    """See Mutex.guard()."""
    subject = subject_of(mutex._copy())

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        check_blocking_function(subject, function)
        busy = log_skipped(function) if skip_if_busy else None

        @functools.wraps(function)
        def guarded(*arguments: Any, **keywords: Any) -> Any:
            # Each call is a holder of its own.
            own = mutex._copy(skip_if_busy)
            return call_locked(own, busy, subject, function, *arguments, **keywords)

        return guarded

    return decorate if function is None else decorate(function)


def check_blocking_function(subject: str, function: Any) -> None:
    """Raise TypeError for what a blocking mutex cannot hold its lock for."""
    check_function(subject, function)
    if is_coroutine_function(function):
        raise TypeError(
            f"{subject} cannot hold its lock for {name_of(function)}, a coroutine function: use "
            "the mutex of a client of memlock.aio."
        )


def call_locked(
    mutex: contextlib.AbstractContextManager[Any],
    busy: WhenBusy,
    subject: str,
    function: Callable[..., Any],
    /,
    *arguments: Any,
    **keywords: Any,
) -> Any:
    """Call a function while the lock is held."""
    with contextlib.ExitStack() as stack:
        # A TimedOut of the function means something else.
        try:
            entered = stack.enter_context(mutex)
        except TimedOut as error:
            if busy is None:
                raise
            return busy(error)
        stack.callback(_current.blocking.reset, _current.blocking.set(entered))
        result = function(*arguments, **keywords)
        refuse_deferred(subject, function, result)
        return result


def log_skipped(function: Any) -> Callable[[TimedOut], None]:
    """Return what logs that a call was skipped."""
    return lambda error: _log.info("%s was skipped. %s", name_of(function), str(error))
