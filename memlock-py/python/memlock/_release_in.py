"""The release of a lock as a part of a transaction on the database that the lock is on."""

from __future__ import annotations

from typing import Any

from memlock._deferral import Release
from memlock._memlock import ConfigError, Invalid, LockLost, Mutex
from memlock.fences import Database, SqlAlchemy, database_of
from memlock.transactions import end_of, has_transaction, leave_to


def release_in(mutex: Mutex, connection: Any) -> Release:
    """See Mutex.release_in()."""
    database = database_of(connection)
    plain = database.connection
    if plain is not None and not type(plain).__weakrefoffset__:
        raise Invalid(
            f"{mutex!r} cannot be released by a {type(plain).__module__}.{type(plain).__name__}: "
            "pass a connection to the PostgreSQL or MySQL database that the lock is on."
        )
    if plain is not None and has_transaction(plain) is False:
        end_of(plain)
    statement = mutex._release_sql()
    release = _defer(mutex, connection, database)
    removed = database.run(statement)
    if removed == 1:
        return release
    if removed < 0:
        raise ConfigError(
            f"{mutex!r} cannot be released in the transaction: the driver does not tell whether "
            "the statement found it (psycopg does not in pipeline mode). Roll back, and call "
            "release_in() outside of the pipeline."
        )
    raise LockLost(
        f"{mutex!r} cannot be released in the transaction: it was lost, and another holder may "
        "have had it meanwhile; or the connection is to another server or database than the "
        "lock's. Roll back."
    )


def _defer(mutex: Mutex, connection: Any, database: Database) -> Release:
    """Leave the rest of the release, which wakes the next waiter, to the end of the transaction."""
    if isinstance(database, SqlAlchemy):
        from memlock import sqlalchemy  # noqa: PLC0415 -- only for those who use it

        return sqlalchemy.defer_to_end(mutex, connection)
    if database.connection is None:
        from memlock.django import _transactions  # noqa: PLC0415

        return _transactions.defer_to_end(mutex, connection)
    return leave_to(database.connection, mutex._defer_release())
