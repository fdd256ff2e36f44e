"""Locks that are held until the transaction of Django has ended."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from django.db import connections, transaction  # type: ignore[import-untyped, unused-ignore]

from memlock._deferral import Releasable, Release, defer, release_all
from memlock._locked_calls import held
from memlock._memlock import Mutex

# The list of a connection's releases, among its attributes.
_RELEASES = "_memlock_releases"


def release_on_commit(lock: Releasable, using: str | None = None) -> None:
    """Release what `lock` holds when the outermost transaction has ended.

    `lock` is a held Mutex, Semaphore or Permit; or another object with release(). The transaction
    is that of the database `using`, by default "default". The lock is released after the COMMIT,
    and also after a ROLLBACK or when the connection is closed: unlike the callbacks of
    transaction.on_commit(), which are dropped then. A savepoint that is rolled back releases
    nothing. Without a transaction (autocommit) the lock is released at once.

    Until then the lock stays held: neither the end of its `with` statement nor release() releases
    it, and renew=True goes on. Other objects than memlock's must not be released before.

    Failures of the release are logged, as warnings of the logger "memlock", and raise nothing: the
    transaction is committed. `lost` tells of a loss. Raises NotHeld if nothing is held.

    In a TestCase the outermost transaction is that of the test: use TransactionTestCase, or
    captureOnCommitCallbacks(execute=True), which releases.
    """
    defer_to_end(lock, transaction.get_connection(using))


def defer_to_end(lock: Releasable, connection: Any) -> Release:
    """Leave the release to the returned object, which the end of the transaction runs."""
    # Opens the connection, which may fail.
    if not connection.in_atomic_block and connection.get_autocommit():
        release = defer(lock)
        release.release()
        return release
    _watch(connection)
    release = defer(lock)
    if connection.closed_in_transaction:
        # The server has rolled back, or will: nothing more is written in this transaction.
        release.release()
        return release
    releases: list[Release] = getattr(connection, _RELEASES)
    releases.append(release)
    if any(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks):
        transaction.on_commit(release.release, using=connection.alias, robust=True)
    return release


@contextlib.contextmanager
def held_until_commit(mutex: Mutex) -> Iterator[Mutex]:
    """Hold the lock for the block, and to the end of the transactions that are open around it."""
    with held(mutex):
        for connection in connections.all(initialized_only=True):
            if _may_be_committed(connection):
                defer_to_end(mutex, connection)
        yield mutex


def _may_be_committed(connection: Any) -> bool:
    """Whether a transaction is open: of atomic(), or by hand. That of a TestCase never ends so."""
    if connection.connection is None:
        return False
    if not connection.in_atomic_block:
        return not connection.autocommit
    return not any(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def _watch(connection: Any) -> None:
    """Run the releases of this connection when a transaction has ended.

    Django calls these methods for nothing else: savepoints have methods of their own. A COMMIT or
    ROLLBACK that fails is followed by another ROLLBACK, or by closing the connection. Callbacks of
    on_commit() run later, and may raise.
    """
    if hasattr(connection, _RELEASES):
        return
    setattr(connection, _RELEASES, [])
    _wrap(connection, "_commit")
    _wrap(connection, "_rollback")
    _wrap(connection, "_set_autocommit", bool)
    _wrap(connection, "_close", even_if_it_fails=True)


def _wrap(
    connection: Any,
    name: str,
    ends: Callable[..., bool] = lambda: True,
    *,
    even_if_it_fails: bool = False,
) -> None:
    method = getattr(connection, name)

    @functools.wraps(method)
    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        is_over = even_if_it_fails
        try:
            result = method(*arguments, **keywords)
            is_over = is_over or ends(*arguments, **keywords)
        finally:
            if is_over:
                release_all(getattr(connection, _RELEASES))
        return result

    setattr(connection, name, wrapper)
