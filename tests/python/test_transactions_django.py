"""memlock.django: a lock is held until Django's outermost transaction has ended."""

from __future__ import annotations

import contextlib
import gc
import threading
import unittest
from collections.abc import Iterator
from typing import Any

import django
import django.conf
import django.test
import memlock
import psycopg
import pytest
from databases import Postgres
from django.db import DatabaseError, connections, transaction
from memlock.django import release_on_commit
from support import Unwanted, Witness, safe, together

DATABASES = ["postgres", "sqlite"]


@pytest.fixture(scope="module", autouse=True)
def settings(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    path = tmp_path_factory.mktemp("django") / "work.db"
    sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path)}
    databases = {"default": sqlite, "sqlite": sqlite, "postgres": postgres.for_django}
    if not django.conf.settings.configured:
        django.conf.settings.configure(DATABASES=databases, USE_TZ=True)
        django.setup()
    for alias in DATABASES:
        execute(alias, "DROP TABLE IF EXISTS work")
        execute(alias, "CREATE TABLE work (n int)")
    yield
    connections.close_all()


@pytest.fixture(params=DATABASES)
def using(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param
    connections[request.param].close()


def execute(using: str, statement: str) -> Any:
    with connections[using].cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone() if statement.startswith("SELECT") else None


def write(using: str) -> None:
    execute(using, "INSERT INTO work VALUES (1)")


def hold(mutex: memlock.Mutex, using: str | None = None) -> None:
    """Leaves its release to the transaction."""
    with mutex:
        release_on_commit(mutex, using)


def test_the_commit_comes_before_the_release(using: str, mutex: memlock.Mutex) -> None:
    def rows() -> int:
        try:
            return int(execute(using, "SELECT count(*) FROM work")[0])
        finally:
            connections[using].close()

    # By a connection of another thread.
    lock = Witness(lambda: together(rows, 1)[0])
    (before,) = together(rows, 1)
    seen: list[bool] = []
    with transaction.atomic(using):
        release_on_commit(lock, using)
        hold(mutex, using)
        # Other hooks run when the lock is free already.
        transaction.on_commit(lambda: seen.append(mutex.locked()), using)
        with transaction.atomic(using):
            write(using)
        assert mutex.locked()
    assert not mutex.locked()
    assert seen == [False]
    assert lock.seen == [before + 1]


def test_a_rollback_releases(using: str, mutex: memlock.Mutex) -> None:
    with pytest.raises(Unwanted), transaction.atomic(using), mutex:
        release_on_commit(mutex, using)
        write(using)
        raise Unwanted
    assert not mutex.locked()
    with transaction.atomic(using):
        hold(mutex, using)
        transaction.set_rollback(True, using)
        assert mutex.locked()
    assert not mutex.locked()


@pytest.mark.parametrize("savepoint_fails", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_release_in_is_a_part_of_the_transaction(
    postgres: Postgres, name: str, fails: bool, savepoint_fails: bool
) -> None:
    mutex, other = (memlock.connect(postgres.store_url).mutex(name) for _ in range(2))
    with contextlib.suppress(Unwanted), transaction.atomic("postgres"):
        with contextlib.suppress(Unwanted), transaction.atomic("postgres"):
            with mutex:
                write("postgres")
                mutex.release_in(connections["postgres"])
            safe(not other.acquire(blocking=False), "held twice")
            if savepoint_fails:
                raise Unwanted
        safe(not other.acquire(blocking=False), "held twice")
        if fails:
            raise Unwanted
    assert other.acquire(blocking=False)
    other.release()


def test_savepoints_release_nothing(using: str, mutex: memlock.Mutex) -> None:
    with transaction.atomic(using):
        with contextlib.suppress(Unwanted), transaction.atomic(using):
            hold(mutex, using)
            raise Unwanted
        # Callbacks of on_commit() are dropped with their savepoint.
        assert mutex.locked()
        savepoint = transaction.savepoint(using)
        transaction.savepoint_rollback(savepoint, using)
        assert mutex.locked()
        with transaction.atomic(using, savepoint=False):
            pass
        assert mutex.locked()
    assert not mutex.locked()
    with transaction.atomic(using, durable=True):
        with transaction.atomic(using), transaction.atomic(using):
            hold(mutex, using)
        assert mutex.locked()
    assert not mutex.locked()


def test_transactions_by_hand(using: str, mutex: memlock.Mutex) -> None:
    for end in (transaction.commit, transaction.rollback):
        transaction.set_autocommit(False, using)
        try:
            hold(mutex, using)
            with transaction.atomic(using):
                write(using)
            assert mutex.locked()
            end(using)
            assert not mutex.locked()
        finally:
            transaction.set_autocommit(True, using)


def test_autocommit_that_is_switched_on_commits(mutex: memlock.Mutex) -> None:
    """SQLite's module commits then; PostgreSQL's refuses it in a transaction."""
    transaction.set_autocommit(False, "sqlite")
    hold(mutex, "sqlite")
    write("sqlite")
    assert mutex.locked()
    transaction.set_autocommit(True, "sqlite")
    assert not mutex.locked()


def test_a_transaction_that_is_closed(using: str, mutex: memlock.Mutex) -> None:
    with contextlib.suppress(DatabaseError), transaction.atomic(using):
        hold(mutex, using)
        connections[using].close()
        assert not mutex.locked()
        # The transaction is over, although its block is not.
        hold(mutex, using)
        assert not mutex.locked()
    # And the next one is as usual.
    with transaction.atomic(using):
        hold(mutex, using)
        assert mutex.locked()
    assert not mutex.locked()


def test_a_commit_that_fails(postgres: Postgres, mutex: memlock.Mutex) -> None:
    late = "CREATE TABLE IF NOT EXISTS late (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)"
    execute("postgres", late)
    with pytest.raises(DatabaseError), transaction.atomic("postgres"):
        hold(mutex, "postgres")
        execute("postgres", "INSERT INTO late VALUES (1), (1)")
        assert mutex.locked()
    assert not mutex.locked()


def test_a_connection_that_is_lost(postgres: Postgres, mutex: memlock.Mutex) -> None:
    with pytest.raises(DatabaseError), transaction.atomic("postgres"):
        hold(mutex, "postgres")
        (pid,) = execute("postgres", "SELECT pg_backend_pid()")
        with psycopg.connect(postgres.dsn, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    assert not mutex.locked()


# Drivers warn of connections that were not closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_thread_that_forgets_its_transaction(using: str, mutex: memlock.Mutex) -> None:
    def work() -> None:
        transaction.set_autocommit(False, using)
        hold(mutex, using)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    del thread
    gc.collect()
    assert not mutex.locked()


def test_without_a_transaction_or_a_lock(using: str, mutex: memlock.Mutex) -> None:
    with mutex:
        # In autocommit mode it is released at once.
        release_on_commit(mutex, using)
        assert not mutex.locked()
    with pytest.raises(memlock.NotHeld), transaction.atomic(using):
        release_on_commit(mutex, using)
    with pytest.raises(memlock.NotHeld):
        release_on_commit(mutex, using)


def test_a_test_case(mutex: memlock.Mutex) -> None:
    class Case(django.test.TestCase):
        databases = ("default", "sqlite", "postgres")

        def test(self) -> None:
            with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
                hold(mutex)
                assert mutex.locked()
            assert not mutex.locked()
            with transaction.atomic(), mutex:
                release_on_commit(mutex)
            # The transaction of the test has not ended.
            assert mutex.locked()

    result = unittest.TestResult()
    unittest.TestSuite([Case("test")]).run(result)
    assert result.testsRun == 1
    assert result.wasSuccessful(), result.failures + result.errors
    assert not mutex.locked()


def test_the_fence_guard(using: str, name: str) -> None:
    connection = connections[using]
    execute(using, memlock.fence_table_ddl(connection.vendor))
    with pytest.raises(memlock.Invalid, match="autocommit"):
        memlock.check_fence(connection, name, 2)
    with transaction.atomic(using):
        memlock.check_fence(connection, name, 2)
    with pytest.raises(memlock.Fenced), transaction.atomic(using):
        write(using)
        memlock.check_fence(connection, name, 1)
    # The proxy of django.db, too.
    with transaction.atomic():
        memlock.check_fence(django.db.connection, name, 2, create=True)
