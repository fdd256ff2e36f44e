"""Functions of a framework, such as views and tasks, of which each call holds a lock."""

from __future__ import annotations

import functools
import logging
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Callable, Union

from memlock._functions import check_function
from memlock._guard import call_locked, check_blocking_function
from memlock._lock_name import LockName, NameOf, signature_of
from memlock._memlock import Client, Error, LockLost

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    import memlock.aio
    from memlock._memlock import Mutex, TimedOut

Duration = Union[float, timedelta]
AnyClient = Union[Client, "memlock.aio.Client"]

_log = logging.getLogger("memlock")


class Locks:
    """Makes the mutexes of calls. Their leases are renewed."""

    def __init__(
        self,
        client: AnyClient,
        name: NameOf | bytes,
        lease: Duration,
        timeout: Duration | None,
        max_hold: Duration | None,
    ) -> None:
        """Raise Invalid for wrong durations, and TypeError for what is no client."""
        if not isinstance(client, Client):
            client = getattr(client, "_core", client)
        if not isinstance(client, Client):
            raise TypeError(
                "the first argument must be a client, as memlock.connect() returns it, and not "
                f"{client!r}"
            )
        self._client = client
        self._options = {
            "lease": lease,
            "timeout": timeout,
            "renew": True,
            "max_hold": max_hold,
        }
        self._name = name
        self.mutex("-" if callable(name) else name)

    def mutex(self, name: str | bytes) -> Mutex:
        """Make the mutex of a call."""
        return self._client.mutex(name, **self._options)  # type: ignore[arg-type]

    def aio_mutex(self, name: str | bytes) -> memlock.aio.Mutex:
        """Make the mutex of a call of a coroutine function, which a loss cancels."""
        from memlock import aio  # noqa: PLC0415 -- only for those who use it

        options = {**self._options, "cancel_on_lost": True}
        return aio.Client(self._client).mutex(name, **options)  # type: ignore[arg-type]

    def wrap(
        self,
        function: Callable[..., Any],
        busy: Callable[[TimedOut], Any],
        *,
        is_coroutine_function: bool = False,
        hold: Callable[[Mutex], AbstractContextManager[Mutex]] | None = None,
    ) -> Callable[..., Any]:
        """Return a function that holds the lock, or returns what `busy` does."""
        assert not isinstance(self._name, bytes)
        subject = f'The lock "{self._name}"' if isinstance(self._name, str) else "A lock"
        name = LockName(self._name, function)
        if is_coroutine_function:
            return self._wrap_coroutine_function(function, name, subject, busy)
        check_blocking_function(subject, function)

        @functools.wraps(function)
        def locked(*arguments: Any, **keywords: Any) -> Any:
            mutex = (hold or held)(self.mutex(name.of(arguments, keywords)))
            return call_locked(mutex, busy, subject, function, *arguments, **keywords)

        return with_signature_of(function, locked)

    def _wrap_coroutine_function(
        self,
        function: Callable[..., Any],
        name: LockName,
        subject: str,
        busy: Callable[[TimedOut], Any],
    ) -> Callable[..., Any]:
        from memlock.aio._guard import call_locked  # noqa: PLC0415

        check_function(subject, function)

        @functools.wraps(function)
        async def locked(*arguments: Any, **keywords: Any) -> Any:
            mutex = AsyncHeld(self.aio_mutex(name.of(arguments, keywords)))
            return await call_locked(mutex, busy, subject, function, *arguments, **keywords)

        return with_signature_of(function, locked)


def with_signature_of(
    function: Callable[..., Any], wrapper: Callable[..., Any]
) -> Callable[..., Any]:
    """Let those see the parameters that do not follow __wrapped__."""
    wrapper.__signature__ = signature_of(function)  # type: ignore[attr-defined]
    return wrapper


@contextmanager
def held(mutex: Mutex) -> Iterator[Mutex]:
    """Hold the lock; a release that fails for want of the server does not undo the work."""
    mutex.__enter__()
    try:
        yield mutex
    except BaseException as error:
        mutex.__exit__(type(error), error, error.__traceback__)
        raise
    try:
        mutex.__exit__(None, None, None)
    except LockLost:
        raise
    except Error as error:
        log_unreleased(error)


class AsyncHeld:
    """Does the same for coroutines."""

    def __init__(self, mutex: memlock.aio.Mutex) -> None:
        self._mutex = mutex

    async def __aenter__(self) -> memlock.aio.Mutex:
        """Acquire the lock."""
        return await self._mutex.__aenter__()

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        """Release the lock."""
        try:
            await self._mutex.__aexit__(kind, error, traceback)
        except LockLost:
            raise
        except Error as failure:
            log_unreleased(failure)


def log_unreleased(error: Error) -> None:
    """Tell that the lock stays held after the work is done, for its lease at most."""
    text = "Not released after the work, and so held until its lease ends at most. %s: %s"
    # A record that is kept must not keep the error: its traceback refers to the mutex.
    _log.warning(text, type(error).__name__, str(error))
