"""The fence guard: a table of an SQL database that refuses the writes of earlier holders.

A lock with a lease cannot stop a holder that was suspended and continues after its lease. The
database can: each grant of a lock has a greater fence than all earlier ones, the table
`memlock_fences` has the greatest fence that was presented for each resource, and a smaller one is
refused in the transaction of the work.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from memlock._memlock import Invalid, LockLost
from memlock.transactions import has_transaction, is_autocommit

TABLE = "memlock_fences"
# The longest resource, in bytes, and the greatest fence that the table can store.
_LONGEST = 255
_GREATEST = 2**63 - 1

_DDL = {
    "sqlite": "CREATE TABLE IF NOT EXISTS {table} (\n"
    "    resource TEXT NOT NULL PRIMARY KEY,\n"
    "    fence    INTEGER NOT NULL\n"
    ")",
    # Not a type that somebody has created in a schema of the search path.
    "postgresql": "CREATE TABLE IF NOT EXISTS {table} (\n"
    "    resource pg_catalog.text NOT NULL PRIMARY KEY,\n"
    "    fence    bigint NOT NULL\n"
    ")",
    # Compared byte by byte: collations ignore case, accents or trailing spaces.
    "mysql": "CREATE TABLE IF NOT EXISTS {table} (\n"
    "    resource varbinary(255) NOT NULL PRIMARY KEY,\n"
    "    fence    bigint NOT NULL\n"
    ") ENGINE=InnoDB",
}

# The row is locked until the end of the transaction, whichever fence is greater. It counts as
# changed unless a greater fence was there.
_ON_CONFLICT = (
    "INSERT INTO {table} (resource, fence) VALUES ({resource}, {fence})"
    " ON CONFLICT (resource) DO UPDATE SET fence = excluded.fence"
    " WHERE {table}.fence <= excluded.fence"
)
_RECORD = {
    "sqlite": _ON_CONFLICT,
    # Not an operator that somebody has created in a schema of the search path.
    "postgresql": _ON_CONFLICT.replace("<=", "OPERATOR(pg_catalog.<=)"),
    # Here the number of rows depends on the flags of the connection: the row must be read.
    "mysql": "INSERT INTO {table} (resource, fence) VALUES ({resource}, {fence})"
    " ON DUPLICATE KEY UPDATE fence = GREATEST(fence, VALUES(fence))",
}
_READ = {
    "sqlite": "SELECT fence FROM {table} WHERE resource = {resource}",
    "postgresql": "SELECT fence FROM {table} WHERE resource OPERATOR(pg_catalog.=) {resource}",
    # A locking read sees what was committed last, also by REPEATABLE READ.
    "mysql": "SELECT fence FROM {table} WHERE resource = {resource} FOR UPDATE",
}

# The dialects of DB-API modules, by the first part of the module's name.
_DIALECTS = {
    "sqlite3": "sqlite",
    "_sqlite3": "sqlite",
    "pysqlite3": "sqlite",
    "sqlcipher3": "sqlite",
    "psycopg": "postgresql",
    "psycopg2": "postgresql",
    "pg8000": "postgresql",
    "pymysql": "mysql",
    "MySQLdb": "mysql",
    "mysql": "mysql",
    "mariadb": "mysql",
}
_ALIASES = {"mariadb": "mysql", "postgres": "postgresql", "sqlite3": "sqlite"}
# The parameters of a statement, in the order resource, fence.
_PLACEHOLDERS = {
    "qmark": ("?", "?"),
    "format": ("%s", "%s"),
    "pyformat": ("%(resource)s", "%(fence)s"),
    "named": (":resource", ":fence"),
    "numeric": (":1", ":2"),
}


class Fenced(LockLost):
    """A newer holder of the lock has presented its fence: this one must not write.

    Roll the transaction back. `resource` and `fence` are those that were passed to check_fence(),
    `seen` is the newer fence.
    """

    def __init__(self, message: str, resource: str = "", fence: int = 0, seen: int = 0) -> None:
        super().__init__(message)
        self.resource = resource
        self.fence = fence
        self.seen = seen

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.resource, self.fence, self.seen)


def fence_table_ddl(dialect: str, table: str = TABLE) -> str:
    """The statement that creates the table of fences: for "sqlite", "postgresql", or "mysql" and
    "mariadb". Raises Invalid, a ValueError, for another dialect.
    """
    return _DDL[_known_dialect(dialect)].format(table=_checked_table(table))


def check_fence(
    connection: Any,
    resource: str,
    fence: int,
    *,
    table: str = TABLE,
    create: bool = False,
    dialect: str | None = None,
    paramstyle: str | None = None,
) -> None:
    """Refuse the work of a holder that has lost its lock: raise Fenced if a greater fence was
    presented for the resource; otherwise record this one.

        with memlock.transaction(mutex, connection):
            memlock.check_fence(connection, "account:7", mutex.fence)
            connection.execute(...)

    Call it in the transaction of the work, before the work. The fence is recorded when that
    transaction commits. Until it ends, the row of the resource is locked: other holders wait there.
    An equal fence is accepted, so that a holder can write several times. A transaction above READ
    COMMITTED may fail with a serialization error of the database instead, which refuses the write
    too.

    `connection` is a connection or cursor of a DB-API module; a Session or Connection of
    SQLAlchemy; or a connection of Django, such as django.db.connection. SQLite 3.24 or later,
    PostgreSQL, MariaDB and MySQL are supported. `dialect` and `paramstyle` are needed only for a
    connection whose module is not known: its dialect as for fence_table_ddl(), and its paramstyle.

    The table is created by the statement of fence_table_ddl(); or by create=True, if it is missing,
    except on MariaDB and MySQL, where that would commit the transaction.

    Raises Invalid, a ValueError, for a connection that is in autocommit mode without a transaction,
    as far as its module tells; for a resource of more than 255 bytes; and for a fence below 0 or
    above 2**63 - 1. Exceptions of the database are not converted.
    """
    if isinstance(fence, bool) or not isinstance(fence, int):
        raise TypeError(f"a fence must be an int, not {type(fence).__name__}")
    if not isinstance(resource, str):
        raise TypeError(f"a resource must be a str, not {type(resource).__name__}")
    if not 0 <= fence <= _GREATEST:
        raise Invalid(f"The fence {fence} is not between 0 and 2**63 - 1.")
    if len(resource.encode()) > _LONGEST:
        raise Invalid(f"The resource has more than {_LONGEST} bytes: {resource[:40]!r}...")
    database = database_of(connection, dialect, paramstyle)
    database.table = _checked_table(table)
    if create:
        if database.dialect == "mysql":
            raise Invalid(
                "create=True would commit the transaction on this database: create the table once, "
                "by the statement of fence_table_ddl()."
            )
        database.run(_DDL[database.dialect])
    # Bytes, because the column is: it does not depend on the connection's character set.
    key = resource.encode() if database.dialect == "mysql" else resource
    changed = database.run(_RECORD[database.dialect], key, fence)
    if database.dialect != "mysql" and changed == 1:
        return
    seen = database.read(_READ[database.dialect], key)
    if database.dialect == "mysql" and seen <= fence:
        return
    raise Fenced(
        f'"{resource}": a newer holder has presented the fence {seen}, this one has {fence}. Its '
        "lock was lost: roll back.",
        resource,
        fence,
        seen,
    )


class Database:
    """Runs statements in the transaction of a connection or cursor of a DB-API module."""

    table = TABLE
    # That of a DB-API module; None for one of Django or SQLAlchemy.
    connection: Any = None

    def __init__(self, handle: Any, dialect: str, paramstyle: str) -> None:
        self.dialect = dialect
        self._handle = handle
        self._paramstyle = paramstyle

    def run(self, statement: str, *values: Any) -> int:
        """Return the number of changed rows."""
        return self._execute(statement, values, lambda cursor: int(cursor.rowcount))

    def read(self, statement: str, *values: Any) -> int:
        return self._execute(statement, values, lambda cursor: _number(cursor.fetchone()))

    def _execute(self, statement: str, values: tuple[Any, ...], result: Any) -> int:
        resource, fence = _PLACEHOLDERS[self._paramstyle]
        text = statement.format(table=self.table, resource=resource, fence=fence)
        parameters: Any = values
        if self._paramstyle in ("named", "pyformat"):
            parameters = dict(zip(("resource", "fence"), values))
        is_cursor = hasattr(self._handle, "fetchone")
        cursor = self._handle if is_cursor else self._handle.cursor()
        try:
            cursor.execute(text, parameters) if values else cursor.execute(text)
            found: int = result(cursor)
            return found
        finally:
            if not is_cursor:
                cursor.close()


class SqlAlchemy(Database):
    """Runs statements in the transaction of a connection of SQLAlchemy."""

    def _execute(self, statement: str, values: tuple[Any, ...], result: Any) -> int:
        from sqlalchemy import text  # noqa: PLC0415 -- only for those who use it

        sql = statement.format(table=self.table, resource=":resource", fence=":fence")
        found: int = result(
            self._handle.execute(text(sql), dict(zip(("resource", "fence"), values)))
        )
        return found


def _number(row: Any) -> int:
    # Cursors may return dictionaries.
    return int(row["fence"] if isinstance(row, Mapping) else row[0])


def database_of(handle: Any, dialect: str | None = None, paramstyle: str | None = None) -> Database:
    """The database of a connection. Raises Invalid in autocommit mode without a transaction."""
    modules = [kind.__module__ for kind in type(handle).__mro__]
    roots = [str(module).split(".")[0] for module in modules]
    if "sqlalchemy" in roots and dialect is None:
        # A Session, also a scoped one, has connection().
        connection = handle.connection() if hasattr(handle, "get_bind") else handle
        # Its users do not execute BEGIN.
        _refuse_autocommit(connection.connection.dbapi_connection, unknown_is_open=False)
        return SqlAlchemy(connection, _known_dialect(connection.dialect.name), "")
    vendor = getattr(handle, "vendor", None)
    if vendor is not None and hasattr(handle, "in_atomic_block") and dialect is None:
        if not handle.in_atomic_block and handle.get_autocommit():
            raise _without_transaction()
        return Database(handle, _known_dialect(vendor), "format")
    root = next((root for root in roots if root in _DIALECTS), None)
    dialect = dialect or (root and _DIALECTS[root])
    if dialect is None:
        raise Invalid(
            f"The database of this {type(handle).__name__} is not known: pass `dialect`, and the "
            "`paramstyle` of its module."
        )
    if paramstyle is None:
        module = sys.modules.get("sqlite3" if root == "_sqlite3" else root or "")
        paramstyle = str(getattr(module, "paramstyle", "format"))
    if paramstyle not in _PLACEHOLDERS:
        raise Invalid(f"{paramstyle!r} is not a paramstyle of the DB-API.")
    connection = getattr(handle, "connection", None) if hasattr(handle, "fetchone") else handle
    _refuse_autocommit(connection, unknown_is_open=True)
    database = Database(handle, _known_dialect(dialect), paramstyle)
    database.connection = connection
    return database


def _refuse_autocommit(connection: Any, unknown_is_open: bool) -> None:
    """`unknown_is_open`: what counts if the module does not tell of the transaction."""
    is_open = has_transaction(connection)
    if is_autocommit(connection) and not (unknown_is_open if is_open is None else is_open):
        raise _without_transaction()


def _without_transaction() -> Invalid:
    return Invalid(
        "The connection is in autocommit mode, and no transaction is open: begin one, and "
        "call this in the transaction of the work."
    )


def _known_dialect(dialect: str) -> str:
    known = _ALIASES.get(dialect, dialect)
    if known not in _DDL:
        raise Invalid(f"{dialect!r} is none of the dialects {', '.join(_DDL)}.")
    return known


def _checked_table(table: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", table, re.ASCII):
        raise Invalid(f"{table!r} is not the name of a table.")
    return table
