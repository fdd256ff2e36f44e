"""The release of a lock as a part of a transaction on the database that the lock is on."""

from __future__ import annotations

from typing import Any

from memlock._deferral import Release
from memlock._memlock import LockLost, Mutex
from memlock.fences import database_of
from memlock.transactions import end_of, has_transaction, leave_to


def release_in(mutex: Mutex, connection: Any) -> Release:
    """See Mutex.release_in()."""
    database = database_of(connection)
    plain = _plain_connection(connection)
    if plain is not None and has_transaction(plain) is False:
        end_of(plain)
    statement = mutex._release_sql()
    release = _defer(mutex, connection, plain)
    if database.run(statement) == 1:
        return release
    raise LockLost(
        f"{mutex!r} cannot be released in the transaction: it was lost, and another holder may "
        "have had it meanwhile. Roll back."
    )


def _defer(mutex: Mutex, connection: Any, plain: Any) -> Release:
    """Leave the rest of the release, which wakes the next waiter, to the end of the transaction."""
    roots = {str(kind.__module__).split(".")[0] for kind in type(connection).__mro__}
    if "sqlalchemy" in roots:
        from memlock import sqlalchemy  # noqa: PLC0415 -- only for those who use it

        return sqlalchemy.defer_to_end(mutex, connection)
    if plain is None:
        from memlock import django  # noqa: PLC0415

        return django.defer_to_end(mutex, connection)
    return leave_to(plain, mutex._defer_release())


def _plain_connection(connection: Any) -> Any:
    """The connection of a DB-API module; None if it is one of Django or SQLAlchemy."""
    roots = {str(kind.__module__).split(".")[0] for kind in type(connection).__mro__}
    if roots & {"django", "sqlalchemy"}:
        return None
    return (
        getattr(connection, "connection", None) if hasattr(connection, "fetchone") else connection
    )
