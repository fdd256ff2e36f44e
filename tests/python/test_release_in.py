"""Mutex.release_in(): the lock and the work are committed together, or neither is."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any

import memlock
import pytest
import sqlalchemy
from databases import MariaDb, Postgres
from memlock import transactions
from sqlalchemy.orm import Session
from support import PATIENCE, answered


class Store:
    """A database with the locks in it, and connections to it, which are closed at the end."""

    def __init__(self, database: Postgres | MariaDb, opened: Callable[[Any], Any]) -> None:
        self.url, self.engine_url = database.store_url, database.url
        self.connect = lambda **options: opened(database.connect(**options))

    def mutexes(self, name: str) -> tuple[memlock.Mutex, memlock.Mutex]:
        """The same lock, of two clients."""
        return memlock.connect(self.url).mutex(name), memlock.connect(self.url).mutex(name)


@pytest.fixture(params=["postgres", "mariadb"])
def store(request: pytest.FixtureRequest, opened: Callable[[Any], Any]) -> Store:
    return Store(request.getfixturevalue(request.param), opened)


@pytest.fixture
def table(store: Store, name: str) -> str:
    table = name.replace("-", "_")
    connection = store.connect()
    connection.cursor().execute(f"CREATE TABLE {table} (n int)")
    connection.commit()
    return table


def rows(store: Store, table: str) -> int:
    connection = store.connect()
    cursor = connection.cursor()
    cursor.execute(f"SELECT count(*) FROM {table}")
    (count,) = cursor.fetchone()
    connection.rollback()
    return int(count)


def work(connection: Any, table: str) -> None:
    connection.cursor().execute(f"INSERT INTO {table} VALUES (1)")


def test_a_commit_releases_and_wakes_the_next_waiter(store: Store, table: str, name: str) -> None:
    (mutex, next_holder), connection = store.mutexes(name), store.connect()
    seen: list[int] = []

    def wait() -> None:
        with next_holder:
            seen.append(rows(store, table))

    waiter = threading.Thread(target=wait)
    with memlock.transaction(mutex, connection) as held:
        work(connection, table)
        waiter.start()
        held.release_in(connection)
        assert held.remaining == 0
    waiter.join()
    assert seen == [1]
    assert not mutex.locked()


def test_after_a_rollback_it_is_held_until_it_is_released(
    store: Store, table: str, name: str
) -> None:
    (mutex, other), connection = store.mutexes(name), store.connect()
    assert mutex.acquire()
    work(connection, table)
    release = mutex.release_in(connection)
    connection.rollback()
    assert rows(store, table) == 0
    assert not other.acquire(blocking=False)
    release.release()
    assert other.acquire(blocking=False)
    other.release()


def test_the_end_of_the_with_statement_releases_nothing(
    store: Store, table: str, name: str
) -> None:
    (mutex, other), connection = store.mutexes(name), store.connect()
    with mutex:
        work(connection, table)
        release = mutex.release_in(connection)
    assert not mutex.is_held
    connection.commit()
    assert other.acquire(blocking=False)
    # The lock is another's by now, and stays so.
    release.release()
    assert other.check()
    other.release()
    assert rows(store, table) == 1


def test_a_connection_that_is_used_for_long_keeps_no_releases(
    store: Store, table: str, name: str
) -> None:
    mutex, connection = memlock.connect(store.url).mutex(name), store.connect()
    for _ in range(3):
        assert mutex.acquire()
        work(connection, table)
        release = mutex.release_in(connection)
        connection.commit()
        release.release()
        assert not transactions._releases[connection]
    assert rows(store, table) == 3


def test_nobody_else_is_granted_it_before_the_end(store: Store, name: str) -> None:
    url = store.url.replace("io_timeout=20s", "io_timeout=300ms")
    connection, other = store.connect(), memlock.connect(url).mutex(name)
    mutex = memlock.connect(store.url).mutex(name, lease=5)
    assert answered(mutex.acquire)
    release = mutex.release_in(connection)
    # Beyond its lease.
    end = time.monotonic() + 5.5
    while time.monotonic() < end:
        # It may have to wait for the row, and for the row that tells the outcome.
        with contextlib.suppress(memlock.Unreachable, memlock.OutcomeUnknown):
            assert not other.acquire(blocking=False)
    connection.commit()
    assert answered(lambda: other.acquire(timeout=PATIENCE))
    release.release()
    assert answered(other.check)


def test_a_lost_lock_is_no_release(store: Store, table: str, name: str) -> None:
    (mutex, other), connection = store.mutexes(name), store.connect()
    with pytest.raises(memlock.LockLost), memlock.transaction(mutex, connection) as held:
        work(connection, table)
        owner = other.owner()
        assert owner is not None
        assert other.force_unlock(owner.token)
        assert other.acquire(blocking=False)
        held.release_in(connection)
    assert rows(store, table) == 0
    assert other.check()
    other.release()


def test_a_pipeline_does_not_tell_whether_it_was_released(postgres: Postgres, name: str) -> None:
    mutex = memlock.connect(postgres.store_url).mutex(name)
    with postgres.connect() as connection, mutex:
        with connection.pipeline(), pytest.raises(memlock.ConfigError, match="pipeline"):
            mutex.release_in(connection)
        connection.rollback()
        assert mutex.locked()


@pytest.mark.parametrize("kind", ["session", "connection"])
def test_sqlalchemy(store: Store, table: str, name: str, kind: str) -> None:
    engine = sqlalchemy.create_engine(store.engine_url)
    mutex, other = store.mutexes(name)
    insert = sqlalchemy.text(f"INSERT INTO {table} VALUES (1)")
    for end, count in (("rollback", 0), ("commit", 1)):
        target: Any = Session(engine) if kind == "session" else engine.connect()
        with target, mutex:
            target.execute(insert)
            mutex.release_in(target)
            getattr(target, end)()
        assert other.acquire(blocking=False), end
        other.release()
        assert rows(store, table) == count
    engine.dispose()


def test_what_cannot_be_released_so_is_refused(
    store: Store, client: memlock.Client, name: str
) -> None:
    mutex, other = store.mutexes(name)
    with pytest.raises(memlock.NotHeld):
        mutex.release_in(store.connect())
    with client.mutex(name) as elsewhere, pytest.raises(memlock.ConfigError, match="memcached"):
        elsewhere.release_in(store.connect())
    engine = sqlalchemy.create_engine(store.engine_url, isolation_level="AUTOCOMMIT")
    with mutex, contextlib.closing(sqlite3.connect(":memory:")) as another_kind:
        with Session(engine) as session, session.begin():
            for connection, why in [
                (another_kind, r"sqlite3\.Connection"),
                (session, "transaction"),
                (store.connect(autocommit=True), "transaction"),
            ]:
                with pytest.raises(memlock.Invalid, match=why):
                    mutex.release_in(connection)
                assert mutex.is_held
            with pytest.raises(memlock.Invalid, match="transaction"):
                memlock.check_fence(session, name, mutex.fence)
        assert not other.acquire(blocking=False)
    assert other.acquire(blocking=False)
    engine.dispose()
