"""check_fence(): a holder that overslept its lease cannot write, on real databases."""

from __future__ import annotations

import itertools
import pickle
import sqlite3
import threading
import uuid
from collections.abc import Callable
from typing import Any
from unittest import mock

import memlock
import psycopg
import psycopg2
import pymysql
import pytest
import sqlalchemy
from databases import MariaDb, Postgres, Sqlite
from memlock.fences import Database
from sqlalchemy.orm import Session
from support import PATIENCE, eventually, safe

ISOLATIONS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
# SQLite has only one.
LEVELS = [("sqlite", "SERIALIZABLE"), *itertools.product(["postgresql", "mysql"], ISOLATIONS)]
at_each_level = pytest.mark.parametrize(("dialect", "isolation"), LEVELS, indirect=["dialect"])
# What a database answers to the second of two transactions above READ COMMITTED.
REFUSALS = (memlock.Fenced, psycopg.errors.SerializationFailure, pymysql.err.OperationalError)

Connect = Callable[..., Any]


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


DATABASES = {"sqlite": "sqlite", "postgresql": "postgres", "mysql": "mariadb"}


@pytest.fixture
def connect(dialect: str, request: pytest.FixtureRequest, opened: Callable[[Any], Any]) -> Connect:
    """Connections that have the table, to the database of the dialect."""
    database = request.getfixturevalue(DATABASES[dialect])
    creator = opened(database.connect())
    creator.cursor().execute(memlock.fence_table_ddl(dialect))
    creator.commit()
    return lambda **options: opened(database.connect(**options))


@pytest.fixture
def resource() -> str:
    # Not only ASCII, and a name that differs from others by case alone.
    return f"Invoice:ü:{uuid.uuid4().hex}"


def test_a_smaller_fence_is_refused_and_an_equal_one_is_not(
    connect: Connect, resource: str
) -> None:
    connection = connect()
    for fence in (5, 5, 7, 7, 2**63 - 1):
        memlock.check_fence(connection, resource, fence)
        connection.commit()
    with pytest.raises(memlock.Fenced, match="newer holder") as refused:
        memlock.check_fence(connection, resource, 6)
    assert (refused.value.resource, refused.value.fence) == (resource, 6)
    assert refused.value.seen == 2**63 - 1
    assert isinstance(refused.value, memlock.LockLost)
    assert refused.value.code == memlock.LockLost.code
    copy = pickle.loads(pickle.dumps(refused.value))
    assert (str(copy), copy.seen) == (str(refused.value), refused.value.seen)
    connection.rollback()


def test_resources_are_compared_exactly(connect: Connect, resource: str) -> None:
    connection = connect()
    memlock.check_fence(connection, resource, 9)
    for other in (resource.lower(), resource + " ", resource.replace("ü", "u"), "'\"%s:1?" * 2):
        memlock.check_fence(connection, other, 1)
    connection.rollback()


def set_isolation(connection: Any, dialect: str, isolation: str) -> None:
    if dialect == "postgresql":
        connection.isolation_level = psycopg.IsolationLevel[isolation.replace(" ", "_")]
    elif dialect == "mysql":
        connection.cursor().execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")


@at_each_level
def test_a_holder_that_read_before_the_next_one_wrote_is_refused(
    connect: Connect, dialect: str, isolation: str, resource: str
) -> None:
    stalled, newer = connect(), connect()
    for connection in (stalled, newer):
        set_isolation(connection, dialect, isolation)
    if dialect == "mysql" and isolation == "SERIALIZABLE":
        # There every read locks: the newer holder would have to wait for the stalled one.
        stalled.cursor().execute("SELECT 1")
    else:
        stalled.cursor().execute("SELECT count(*) FROM memlock_fences")
    if dialect == "sqlite":
        stalled.rollback()
    memlock.check_fence(newer, resource, 2)
    newer.commit()
    with pytest.raises(REFUSALS) as refused:
        memlock.check_fence(stalled, resource, 1)
    if isolation == "READ COMMITTED" or dialect == "mysql":
        assert isinstance(refused.value, memlock.Fenced)
    stalled.rollback()
    # A repeated transaction knows why.
    with pytest.raises(memlock.Fenced):
        memlock.check_fence(stalled, resource, 1)
    stalled.rollback()


WAITS = {
    "postgresql": "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'",
    "mysql": "SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}


def waits_for_lock(connection: Any, query: str) -> bool:
    cursor = connection.cursor()
    cursor.execute(query)
    connection.rollback()
    return bool(cursor.rowcount)


@at_each_level
@pytest.mark.parametrize("known", [False, True])
def test_of_two_that_race_the_older_waits_and_is_refused(
    connect: Connect, dialect: str, isolation: str, known: bool, resource: str
) -> None:
    older, newer = connect(), connect()
    if known:
        memlock.check_fence(newer, resource, 1)
        newer.commit()
    for connection in (older, newer):
        set_isolation(connection, dialect, isolation)
    memlock.check_fence(newer, resource, 9)
    answers: list[BaseException | None] = []

    def write() -> None:
        try:
            memlock.check_fence(older, resource, 8)
            older.commit()
            answers.append(None)
        except BaseException as error:
            older.rollback()
            answers.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    # It waits for the row: nothing else can be observed of SQLite's lock.
    if dialect in WAITS:
        observer = connect()
        eventually(lambda: waits_for_lock(observer, WAITS[dialect]))
    assert not answers
    newer.commit()
    thread.join(PATIENCE)
    assert len(answers) == 1
    safe(answers[0] is not None, "an older fence was let in")
    assert isinstance(answers[0], REFUSALS)
    if isolation == "READ COMMITTED":
        assert isinstance(answers[0], memlock.Fenced)


@pytest.mark.parametrize("rolls_back", [False, True])
def test_of_two_that_race_the_newer_waits_and_wins(
    connect: Connect, dialect: str, rolls_back: bool, resource: str
) -> None:
    older, newer = connect(), connect()
    memlock.check_fence(older, resource, 8)
    done = threading.Event()

    def write() -> None:
        memlock.check_fence(newer, resource, 9)
        newer.commit()
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert not done.wait(0.1)
    older.rollback() if rolls_back else older.commit()
    assert done.wait(PATIENCE)
    thread.join()
    with pytest.raises(memlock.Fenced):
        memlock.check_fence(older, resource, 8)


@pytest.mark.parametrize("module", ["sqlite", "postgres", "mariadb"])
@pytest.mark.parametrize("with_session", [False, True])
def test_sqlalchemy(
    module: str, with_session: bool, request: pytest.FixtureRequest, resource: str
) -> None:
    engine = sqlalchemy.create_engine(request.getfixturevalue(module).url)
    with engine.begin() as connection:
        ddl = memlock.fence_table_ddl(engine.dialect.name)
        connection.execute(sqlalchemy.text(ddl))
    opened = Session(engine) if with_session else engine.connect()
    with opened as work:
        memlock.check_fence(work, resource, 3)
        memlock.check_fence(work, resource, 3)
        work.commit()
        with pytest.raises(memlock.Fenced, match=r"fence 3.* has 2"):
            memlock.check_fence(work, resource, 2)
        work.rollback()
        memlock.check_fence(work, resource, 4)
        work.rollback()
        memlock.check_fence(work, resource, 3)
        work.rollback()
    engine.dispose()


def test_autocommit_without_a_transaction_is_refused(connect: Connect, resource: str) -> None:
    connection = connect(autocommit=True)
    with pytest.raises(memlock.Invalid, match="autocommit"):
        memlock.check_fence(connection, resource, 1)
    with pytest.raises(memlock.Invalid, match="autocommit"):
        memlock.check_fence(connection.cursor(), resource, 1)
    connection.cursor().execute("BEGIN")
    memlock.check_fence(connection, resource, 1)
    connection.rollback()


@pytest.mark.parametrize(
    ("server", "options"),
    [
        ("mariadb", {"cursorclass": pymysql.cursors.DictCursor}),
        # A row that was found, although it was not changed, is counted then.
        ("mariadb", {"client_flag": pymysql.constants.CLIENT.FOUND_ROWS}),
        ("postgres", {"row_factory": psycopg.rows.dict_row}),
    ],
)
def test_connections_with_options(
    server: str, options: dict[str, Any], request: pytest.FixtureRequest, resource: str
) -> None:
    connection = request.getfixturevalue(server).connect(**options)
    dialect = "mariadb" if server == "mariadb" else "postgresql"
    connection.cursor().execute(memlock.fence_table_ddl(dialect))
    for fence in (2, 2, 3):
        memlock.check_fence(connection, resource, fence)
    with pytest.raises(memlock.Fenced, match="fence 3"):
        memlock.check_fence(connection, resource, 2)
    connection.close()


@pytest.mark.parametrize("autocommit", [False, True])
def test_psycopg2(
    postgres: Postgres, client: memlock.Client, resource: str, autocommit: bool
) -> None:
    connection = psycopg2.connect(postgres.dsn)
    connection.autocommit = autocommit
    cursor = connection.cursor()
    cursor.execute(memlock.fence_table_ddl("postgresql"))
    connection.commit()
    mutex = client.mutex(resource)
    with memlock.transaction(mutex, connection):
        memlock.check_fence(connection, resource, 5)
    with pytest.raises(memlock.Fenced), memlock.transaction(mutex, connection):
        memlock.check_fence(cursor, resource, 4)
    with pytest.raises(KeyError), memlock.transaction(mutex, connection):
        memlock.check_fence(connection, resource, 9)
        raise KeyError
    with pytest.raises(memlock.Fenced, match="fence 5"), memlock.transaction(mutex, connection):
        memlock.check_fence(connection, resource, 4)
    if autocommit:
        with pytest.raises(memlock.Invalid, match="autocommit"):
            memlock.check_fence(connection, resource, 9)
    connection.close()


def test_operators_of_others_are_not_used(postgres: Postgres, resource: str) -> None:
    """They would run with the rights of this user."""
    connection = postgres.connect()
    cursor = connection.cursor()
    cursor.execute("CREATE SCHEMA others")
    for operator, kind in (("<=", "bigint"), ("=", "text")):
        name = f"others.{kind}_alarm"
        cursor.execute(
            f"CREATE FUNCTION {name}({kind}, {kind}) RETURNS boolean LANGUAGE plpgsql"
            " AS 'BEGIN RAISE ''called''; END'"
        )
        cursor.execute(
            f"CREATE OPERATOR others.{operator} "
            f"(FUNCTION = {name}, LEFTARG = {kind}, RIGHTARG = {kind})"
        )
    cursor.execute(memlock.fence_table_ddl("postgresql"))
    cursor.execute("SET LOCAL search_path = others, pg_catalog, public")
    for fence in (2, 3):
        memlock.check_fence(connection, resource, fence)
    with pytest.raises(memlock.Fenced, match="fence 3"):
        memlock.check_fence(connection, resource, 2)
    with pytest.raises(psycopg.errors.RaiseException, match="called"):
        cursor.execute("SELECT 'a'::text = 'b'::text")
    connection.close()


@pytest.mark.parametrize("paramstyle", ["qmark", "named"])
def test_paramstyles(paramstyle: str, sqlite: Sqlite, resource: str) -> None:
    connection = sqlite.connect()
    memlock.check_fence(connection, resource, 2, create=True, paramstyle=paramstyle)
    with pytest.raises(memlock.Fenced):
        memlock.check_fence(connection, resource, 1, paramstyle=paramstyle)


def test_the_numeric_paramstyle() -> None:
    # SQLite would call it ?1: so its statement is looked at.
    cursor = mock.Mock(rowcount=1)
    assert Database(cursor, "sqlite", "numeric").run("{resource} {fence}", "a", 1) == 1
    cursor.execute.assert_called_once_with(":1 :2", ("a", 1))


def test_create_and_other_tables(sqlite: Sqlite, mariadb: MariaDb, postgres: Postgres) -> None:
    connection = sqlite.connect()
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        memlock.check_fence(connection, "a", 1)
    memlock.check_fence(connection, "a", 1, create=True, table="main.mine")
    connection.rollback()
    with postgres.connect() as other:
        memlock.check_fence(other, "a", 1, create=True, table="mine")
        memlock.check_fence(other, "a", 1, create=True, table="mine")
    maria = mariadb.connect()
    with pytest.raises(memlock.Invalid, match="create=True"):
        memlock.check_fence(maria, "a", 1, create=True)
    maria.close()


def test_wrong_arguments() -> None:
    connection = sqlite3.connect(":memory:")
    for resource, fence, more, why in [
        ("a", -1, {}, "fence"),
        ("a", 2**63, {}, "fence"),
        ("ü" * 128, 1, {}, "255"),
        ("a", 1, {"table": "a; DROP TABLE b"}, "table"),
    ]:
        with pytest.raises(memlock.Invalid, match=why):
            memlock.check_fence(connection, resource, fence, **more)  # type: ignore[arg-type]
    for resource, fence in [("a", 1.0), ("a", True), ("a", None), (b"a", 1)]:
        with pytest.raises(TypeError):
            memlock.check_fence(connection, resource, fence)  # type: ignore[arg-type]
    connection.close()
    with pytest.raises(memlock.Invalid, match="dialect"):
        memlock.check_fence(object(), "a", 1)
    with pytest.raises(memlock.Invalid, match="oracle"):
        memlock.fence_table_ddl("oracle")
