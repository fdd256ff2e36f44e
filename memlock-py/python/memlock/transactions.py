"""Transactions of DB-API connections under a lock."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

from memlock._deferral import Release, defer, release_all
from memlock._memlock import Invalid

_Entered_co = TypeVar("_Entered_co", covariant=True)


# The releases of DB-API connections, which have no hook for the end of a transaction.
_releases: weakref.WeakKeyDictionary[Any, list[Release]] = weakref.WeakKeyDictionary()


class _Lock(Protocol[_Entered_co]):
    """What a `with` statement acquires: a Mutex, a Semaphore, or a Permit, which is held."""

    def __enter__(self) -> _Entered_co: ...
    def __exit__(self, *exception: Any) -> Any: ...
    def release(self) -> object: ...


@contextlib.contextmanager
def transaction(lock: _Lock[_Entered_co], connection: Any) -> Iterator[_Entered_co]:
    """Acquire the lock, run the body in a transaction, commit, and then release.

        with memlock.transaction(client.mutex("account:7"), connection) as mutex:
            connection.execute(...)

    If the body raises an exception, the transaction is rolled back, and then the lock is released.
    If the COMMIT fails, its exception is raised after an attempt to roll back. The release comes
    last in each case. A failure of the release is logged, as a warning of the logger "memlock", and
    not raised: the transaction is committed. `lost` tells of a loss.

    `connection` is a connection of sqlite3, psycopg, psycopg2, PyMySQL, mysqlclient or another
    DB-API module. In autocommit mode BEGIN, COMMIT and ROLLBACK are executed; otherwise commit()
    and rollback() are called. The lock is acquired before the transaction begins, so that the body
    sees what the previous holder has committed. Raises Invalid, a ValueError, when a transaction is
    open already, as far as the module tells: it may have read before.
    """
    refuse_open_transaction(connection)
    with lock as entered:
        release = defer(lock)
        try:
            # Another thread may share the connection.
            is_explicit = is_autocommit(connection)
            if is_explicit:
                _execute(connection, "BEGIN")
            try:
                yield entered
                _refuse_failed_transaction(connection, is_explicit)
                _end(connection, "COMMIT", is_explicit)
            except BaseException:
                # The first exception counts. A connection that cannot roll back is lost, and the
                # server rolls back.
                with contextlib.suppress(Exception):
                    _end(connection, "ROLLBACK", is_explicit)
                raise
        finally:
            end_of(connection)
            release.release()


class _Left:
    """A release that is left to a connection until it is run."""

    def __init__(self, release: Release, pending: list[Release]) -> None:
        self._release, self._pending = release, pending

    def release(self) -> None:
        self._release.release()
        # Otherwise a connection that is used for long would keep one for each of its transactions.
        with contextlib.suppress(ValueError):
            self._pending.remove(self._release)


def leave_to(connection: Any, release: Release) -> Release:
    """Run a release when the transaction of this connection has ended, as far as that is seen: by
    transaction(), by the next release_in() there, when the connection is deallocated, or by the
    object that is returned.
    """
    pending = _releases.setdefault(connection, [])
    pending.append(release)
    return _Left(release, pending)


def end_of(connection: Any) -> None:
    """The transaction of this connection has ended."""
    # What has no weak references has no releases.
    if type(connection).__weakrefoffset__:
        release_all(_releases.pop(connection, []))


def is_autocommit(connection: Any) -> bool:
    """Whether each statement is a transaction of its own unless BEGIN was executed."""
    # PyMySQL and mysqlclient: there `autocommit` is the method that sets it.
    get_autocommit = getattr(connection, "get_autocommit", None)
    if callable(get_autocommit):
        return bool(get_autocommit())
    autocommit = getattr(connection, "autocommit", None)
    # sqlite3 since Python 3.12: -1 stands for the older isolation_level.
    if isinstance(autocommit, bool):
        return autocommit
    if hasattr(connection, "isolation_level") and hasattr(connection, "in_transaction"):
        return connection.isolation_level is None
    return False


def has_transaction(connection: Any) -> bool | None:
    """Whether a transaction is open; None if the module does not tell."""
    # sqlite3.
    in_transaction = getattr(connection, "in_transaction", None)
    if isinstance(in_transaction, bool):
        return in_transaction
    # psycopg and psycopg2. 0: idle; 4: unknown, because the connection is lost.
    status = getattr(getattr(connection, "info", None), "transaction_status", None)
    if status is not None:
        return None if status == 4 else status != 0
    # PyMySQL. Bit 0: in a transaction.
    status = getattr(connection, "server_status", None)
    return bool(status & 1) if isinstance(status, int) else None


def refuse_open_transaction(connection: Any) -> None:
    if has_transaction(connection):
        raise Invalid(
            "A transaction is open on this connection. It may have read before the lock was "
            "acquired: commit it or roll it back first."
        )


def _refuse_failed_transaction(connection: Any, is_explicit: bool) -> None:
    # psycopg and psycopg2, 3: PostgreSQL answers COMMIT with a silent ROLLBACK.
    if getattr(getattr(connection, "info", None), "transaction_status", None) == 3:
        raise Invalid(
            "The transaction cannot be committed, because a statement in it has failed: let the "
            "exception of that statement leave the `with` statement."
        )
    # Otherwise a body without statements has none, either.
    if is_explicit and has_transaction(connection) is False:
        raise Invalid(
            "The transaction has ended before the end of the `with` statement: by a COMMIT or "
            "ROLLBACK in it, or by an error after which the database rolled back."
        )


def _execute(connection: Any, statement: str) -> None:
    cursor = connection.cursor()
    try:
        cursor.execute(statement)
    finally:
        cursor.close()


def _end(connection: Any, statement: str, is_explicit: bool) -> None:
    if not is_explicit:
        connection.commit() if statement == "COMMIT" else connection.rollback()
    elif has_transaction(connection) is not False:
        _execute(connection, statement)
