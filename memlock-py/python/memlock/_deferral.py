"""The release of a lock that is left to the end of a transaction."""

from __future__ import annotations

import inspect
import logging
from typing import Protocol

_logger = logging.getLogger("memlock")


class Releasable(Protocol):
    """A mutex, a semaphore, a permit, or any other object with release()."""

    def release(self) -> object: ...


class Release(Protocol):
    """Releases once, and raises nothing: a failure is logged."""

    def release(self) -> None: ...


class _PlainRelease:
    """The release of an object that is not memlock's, or of a Counter."""

    def __init__(self, lock: Releasable) -> None:
        self._lock: Releasable | None = lock

    def release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is None:
            return
        try:
            lock.release()
        except Exception as error:
            kind = type(error).__name__
            _logger.warning("Not released after the end of the transaction. %s: %s", kind, error)


def defer(lock: Releasable) -> Release:
    """Leave the release of what `lock` holds to the returned object.

    Raises NotHeld if it holds nothing.
    """
    defer_release = getattr(lock, "_defer_release", None)
    if defer_release is not None:
        release: Release = defer_release()
        return release
    method = getattr(lock, "release", None)
    if not callable(method):
        raise TypeError(f"a lock must have release(), which {type(lock).__name__} has not")
    if inspect.iscoroutinefunction(method):
        raise TypeError(f"{type(lock).__name__}.release() is a coroutine: it cannot be deferred")
    return _PlainRelease(lock)


def release_all(releases: list[Release]) -> None:
    """Empty the list, and run all of them, in reverse order, also if one is interrupted."""
    pending = releases[:]
    releases.clear()
    while pending:
        release = pending.pop()
        try:
            release.release()
        except BaseException:
            # KeyboardInterrupt of a signal handler.
            release_all(pending)
            raise
