"""Locks that are held until the transaction of SQLAlchemy has ended.

    from memlock.sqlalchemy import release_on_commit

    with Session(engine) as session, session.begin():
        with client.mutex(f"account:{pk}") as mutex:
            release_on_commit(mutex, session)
            ...

Requires SQLAlchemy 2.0 or later: `pip install memlock[sqlalchemy]`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Union

from sqlalchemy.engine import Connection
from sqlalchemy.engine.base import RootTransaction
from sqlalchemy.orm import Session, SessionTransaction, scoped_session

from memlock._deferral import Releasable, Release, defer, release_all

if TYPE_CHECKING:
    # Importing it requires greenlet.
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

__all__ = ["release_on_commit"]

_Target = Union[
    Session,
    Connection,
    "AsyncSession",
    "AsyncConnection",
    "scoped_session[Any]",
    "async_scoped_session[Any]",
]

# What the end of each transaction releases. The releases of a transaction that is never ended are
# run when it is deallocated.
_releases: weakref.WeakKeyDictionary[Any, list[Release]] = weakref.WeakKeyDictionary()
# The watched classes of transactions, by the classes of SQLAlchemy.
_classes: dict[type[RootTransaction], type[RootTransaction]] = {}


def release_on_commit(lock: Releasable, session_or_connection: _Target) -> None:
    """Release what `lock` holds when the outermost transaction has ended.

    `lock` is a held Mutex, Semaphore or Permit; or another object with release(). The transaction
    is that of a Session or a Connection, also an asynchronous or a scoped one. If none has begun,
    it begins here, as it would by a statement (autobegin). The lock is released after the COMMIT,
    and also after a ROLLBACK, or when the session or connection is closed or deallocated. A
    savepoint (begin_nested) releases nothing. If the COMMIT fails, the ROLLBACK that must follow
    releases.

    Until then the lock stays held: neither the end of its `with` statement nor release() releases
    it, and renew=True goes on. Other objects than memlock's must not be released before.

    A session that joined the transaction of its connection releases at the end of that one.

    Failures of the release are logged, as warnings of the logger "memlock", and raise nothing: the
    transaction is committed. `lost` tells of a loss. Raises NotHeld if nothing is held.
    """
    defer_to_end(lock, session_or_connection)


def defer_to_end(lock: Releasable, session_or_connection: _Target) -> Release:
    """Leave the release to the returned object, which the end of the transaction runs."""
    target = _synchronous(session_or_connection)
    if isinstance(target, Session):
        transaction: Any = target.get_transaction() or target.begin()
        watch: Callable[[Any], None] = _watch_session
    else:
        transaction = target.get_transaction() or target.begin()
        watch = _watch_connection
    release = defer(lock)
    watch(transaction)
    _releases.setdefault(transaction, []).append(release)
    return release


def _synchronous(target: Any) -> Session | Connection:
    if hasattr(target, "registry"):
        target = target.registry()
    for name in ("sync_session", "sync_connection"):
        target = getattr(target, name, target)
    if isinstance(target, (Session, Connection)):
        return target
    raise TypeError(f"a Session or a Connection is needed, not a {type(target).__name__}")


def _watch_session(transaction: SessionTransaction) -> None:
    """Run the releases when this transaction has been closed.

    Not by an event: the listeners of others run before, and may raise.
    """
    if "close" in vars(transaction):
        return
    weak = weakref.ref(transaction)

    def close(invalidate: bool = False) -> None:
        transaction = weak()
        if transaction is None:
            return
        session = transaction.session
        try:
            type(transaction).close(transaction, invalidate)
        finally:
            outer = session.bind if session is not None else None
            if isinstance(outer, Connection) and (joined := outer.get_transaction()):
                _watch_connection(joined)
                _releases.setdefault(joined, []).extend(_releases.pop(transaction, []))
            else:
                release_all(_releases.pop(transaction, []))

    transaction.close = close  # type: ignore[method-assign]


def _watch_connection(transaction: RootTransaction) -> None:
    """Run the releases when this transaction has ended.

    SQLAlchemy's events commit and rollback come before the fact.
    """
    if not isinstance(transaction, _Watched):
        # Neither class has attributes of its own, so an instance of one can become the other's.
        transaction.__class__ = _watched(type(transaction))


class _Watched:
    """A transaction that runs its releases. Its methods are those of Transaction."""

    __slots__ = ()

    def commit(self: Any) -> None:
        try:
            super().commit()  # type: ignore[misc]
        finally:
            _run_if_over(self)

    def rollback(self: Any) -> None:
        try:
            super().rollback()  # type: ignore[misc]
        finally:
            _run_if_over(self)

    def close(self: Any) -> None:
        try:
            super().close()  # type: ignore[misc]
        finally:
            _run_if_over(self)


def _watched(base: type[RootTransaction]) -> type[RootTransaction]:
    if base not in _classes:
        _classes[base] = type(base.__name__, (_Watched, base), {"__slots__": ()})
    return _classes[base]


def _run_if_over(transaction: RootTransaction) -> None:
    # After a failed COMMIT it stays the connection's, until it is rolled back.
    if transaction.connection.get_transaction() is not transaction:
        release_all(_releases.pop(transaction, []))
