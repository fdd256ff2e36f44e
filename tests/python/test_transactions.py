"""memlock.transaction(): acquires, begins, commits or rolls back, and then releases."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import memlock
import psycopg
import pytest
from memlock.transactions import is_autocommit
from support import Memcached, MemcachedText, Witness

KINDS = [
    f"{module}, autocommit {mode}"
    for module in ("sqlite3", "psycopg", "pymysql")
    for mode in ("off", "on")
]


class Unwanted(Exception):  # noqa: N818
    """What a body raises."""


@pytest.fixture(params=KINDS)
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Connections to a database with an empty table, `work`."""
    module, _, mode = request.param.partition(", autocommit ")
    opened: list[Any] = []

    def connect() -> Any:
        on = mode == "on"
        if module == "sqlite3":
            level = {"isolation_level": None} if on else {}
            made: Any = sqlite3.connect(tmp_path / "work.db", check_same_thread=False, **level)
        elif module == "psycopg":
            made = request.getfixturevalue("postgres").connect(autocommit=on)
        else:
            made = request.getfixturevalue("mariadb").connect(autocommit=on)
        opened.append(made)
        return made

    creator = connect()
    execute(creator, "DROP TABLE IF EXISTS work")
    execute(creator, "CREATE TABLE work (n int)")
    creator.commit()
    yield connect
    for connection in opened:
        # PyMySQL's refuses to be closed twice.
        if getattr(connection, "open", True):
            connection.close()


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
    connect: Callable[[], Any], client: memlock.Client, name: str
) -> None:
    connection, other = connect(), connect()
    mutex = client.mutex(name)
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


def test_an_open_transaction_is_refused(
    connect: Callable[[], Any], client: memlock.Client, name: str
) -> None:
    connection = connect()
    mutex = client.mutex(name)
    execute(connection, "BEGIN")
    execute(connection, "INSERT INTO work VALUES (1)")
    with pytest.raises(memlock.Invalid, match="open"), memlock.transaction(mutex, connection):
        pytest.fail("the body was run")
    assert not mutex.locked()
    connection.rollback()
    assert count(connection) == 0


def test_a_body_that_ends_its_transaction(
    connect: Callable[[], Any], client: memlock.Client, name: str
) -> None:
    connection = connect()
    is_off = not is_autocommit(connection)
    refused = nullcontext() if is_off else pytest.raises(memlock.Invalid, match="has ended")
    with refused, memlock.transaction(client.mutex(name), connection):
        execute(connection, "INSERT INTO work VALUES (1)")
        execute(connection, "COMMIT")
    assert count(connection) == 1
    assert not client.mutex(name).locked()


def test_a_connection_that_is_lost(
    connect: Callable[[], Any], client: memlock.Client, name: str
) -> None:
    mutex, connection = client.mutex(name), connect()
    with pytest.raises(Exception, match=r".") as lost, memlock.transaction(mutex, connection):
        execute(connection, "INSERT INTO work VALUES (1)")
        connection.close()
    assert "pytest" not in type(lost.value).__module__
    assert not mutex.locked()
    assert count(connect()) == 0


def test_semaphores_permits_and_timeouts(
    connect: Callable[[], Any], client: memlock.Client, name: str
) -> None:
    connection = connect()
    limit = client.semaphore(name, 1, timeout=0.05)
    with memlock.transaction(limit, connection):
        assert limit.available == 0
        with pytest.raises(memlock.TimedOut), memlock.transaction(limit, connect()):
            pytest.fail("the body was run")
    assert limit.available == 1
    with memlock.transaction(limit.permit(), connection) as permit:
        assert permit.is_held
        assert limit.available == 0
    assert limit.available == 1


def test_a_transaction_with_a_failed_statement_is_not_committed(
    request: pytest.FixtureRequest, client: memlock.Client, name: str
) -> None:
    """PostgreSQL answers its COMMIT with a ROLLBACK, which psycopg does not report."""
    for autocommit in (False, True):
        connection = request.getfixturevalue("postgres").connect(autocommit=autocommit)
        mutex = client.mutex(name)
        failed = pytest.raises(memlock.Invalid, match="failed")
        with failed, memlock.transaction(mutex, connection), pytest.raises(psycopg.Error):
            connection.execute("SELECT 1 / 0")
        assert not mutex.locked()
        assert connection.info.transaction_status == 0
        connection.close()


def test_a_loss_or_a_dead_server_does_not_look_like_a_failed_commit(
    mortal_server: Memcached, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = uuid.uuid4().hex
    client = memlock.connect(mortal_server.url)
    connection = sqlite3.connect(tmp_path / "work.db")
    mutex = client.mutex(name)
    with memlock.transaction(mutex, connection):
        execute(connection, "CREATE TABLE work (n int)")
        with MemcachedText(mortal_server.port) as plain:
            assert plain.delete(f"lock:{name}")
    assert mutex.lost == "gone"
    assert "LockLost" in caplog.text
    with memlock.transaction(mutex, connection):
        execute(connection, "INSERT INTO work VALUES (1)")
        mortal_server.kill()
    assert "Unreachable" in caplog.text or "OutcomeUnknown" in caplog.text
    assert count(connection) == 1
    connection.close()
