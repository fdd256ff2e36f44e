"""memlock.transaction(): acquires, begins, commits or rolls back, and then releases."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import memlock
import psycopg
import pytest
from databases import Postgres
from memlock.transactions import is_autocommit
from support import Memcached, Unwanted, Witness


@pytest.fixture(params=[False, True], ids=["autocommit off", "autocommit on"])
def autocommit(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def connect(
    request: pytest.FixtureRequest, autocommit: bool, opened: Callable[[Any], Any]
) -> Callable[[], Any]:
    """Connections to a database with an empty table, `work`."""
    database = request.getfixturevalue(request.param)
    creator = opened(database.connect())
    execute(creator, "DROP TABLE IF EXISTS work")
    execute(creator, "CREATE TABLE work (n int)")
    creator.commit()
    return lambda: opened(database.connect(autocommit=autocommit))


def execute(connection: Any, statement: str) -> Any:
    cursor = connection.cursor()
    cursor.execute(statement)
    rows = cursor.fetchall() if statement.startswith("SELECT") else None
    cursor.close()
    return rows


def count(connection: Any) -> int:
    number: int = execute(connection, "SELECT count(*) FROM work")[0][0]
    connection.rollback()
    return number


def test_the_next_holder_sees_the_work(connect: Callable[[], Any]) -> None:
    connection, other = connect(), connect()
    lock = Witness(lambda: count(other))
    with memlock.transaction(lock, connection) as entered:
        assert entered is lock
        execute(connection, "INSERT INTO work VALUES (1)")
    assert lock.seen == [1]


def test_an_exception_rolls_back_and_then_releases(
    connect: Callable[[], Any], mutex: memlock.Mutex
) -> None:
    connection, other = connect(), connect()
    for error in (Unwanted, KeyboardInterrupt):
        with pytest.raises(error), memlock.transaction(mutex, connection):
            execute(connection, "INSERT INTO work VALUES (1)")
            raise error
        assert not mutex.locked()
        assert count(other) == 0
    # And the connection is as it was.
    with memlock.transaction(mutex, connection):
        execute(connection, "INSERT INTO work VALUES (1)")
        assert mutex.is_held
    assert not mutex.locked()
    assert count(other) == 1


def test_an_open_transaction_is_refused(connect: Callable[[], Any], mutex: memlock.Mutex) -> None:
    connection = connect()
    execute(connection, "BEGIN")
    execute(connection, "INSERT INTO work VALUES (1)")
    with pytest.raises(memlock.Invalid, match="open"), memlock.transaction(mutex, connection):
        pytest.fail("the body was run")
    assert not mutex.locked()
    connection.rollback()
    assert count(connection) == 0


def test_a_body_that_ends_its_transaction(connect: Callable[[], Any], mutex: memlock.Mutex) -> None:
    connection = connect()
    is_off = not is_autocommit(connection)
    refused = nullcontext() if is_off else pytest.raises(memlock.Invalid, match="has ended")
    with refused, memlock.transaction(mutex, connection):
        execute(connection, "INSERT INTO work VALUES (1)")
        execute(connection, "COMMIT")
    assert count(connection) == 1
    assert not mutex.locked()


def test_a_connection_that_is_lost(connect: Callable[[], Any], mutex: memlock.Mutex) -> None:
    connection = connect()
    with pytest.raises(Exception, match=r".") as lost, memlock.transaction(mutex, connection):
        execute(connection, "INSERT INTO work VALUES (1)")
        connection.close()
    assert "pytest" not in type(lost.value).__module__
    assert not mutex.locked()
    assert count(connect()) == 0


def test_a_transaction_with_a_failed_statement_is_not_committed(
    postgres: Postgres, mutex: memlock.Mutex, autocommit: bool
) -> None:
    """PostgreSQL answers its COMMIT with a ROLLBACK, which psycopg does not report."""
    failed = pytest.raises(memlock.Invalid, match="failed")
    with postgres.connect(autocommit=autocommit) as connection:
        with failed, memlock.transaction(mutex, connection), pytest.raises(psycopg.Error):
            connection.execute("SELECT 1 / 0")
        assert not mutex.locked()
        assert connection.info.transaction_status == 0


def test_a_loss_or_a_dead_server_does_not_look_like_a_failed_commit(
    mortal_server: Memcached, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = uuid.uuid4().hex
    client = memlock.connect(mortal_server.url)
    connection = sqlite3.connect(tmp_path / "work.db")
    mutex = client.mutex(name)
    with memlock.transaction(mutex, connection):
        execute(connection, "CREATE TABLE work (n int)")
        with mortal_server.plain() as plain:
            assert plain.delete(f"lock:{name}")
    assert mutex.lost == "gone"
    assert "LockLost" in caplog.text
    with memlock.transaction(mutex, connection):
        execute(connection, "INSERT INTO work VALUES (1)")
        mortal_server.kill()
    assert "Unreachable" in caplog.text or "OutcomeUnknown" in caplog.text
    assert count(connection) == 1
    connection.close()
