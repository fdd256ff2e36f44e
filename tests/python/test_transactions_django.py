"""memlock.django: a lock is held until Django's outermost transaction has ended."""

from __future__ import annotations

import contextlib
import gc
import threading
import unittest
from collections.abc import Iterator

import django.test
import memlock
import psycopg
import pytest
from databases import Postgres
from django.db import DatabaseError, connections, transaction
from memlock.django import release_on_commit

DATABASES = ["postgres", "sqlite"]


@pytest.fixture(scope="module", autouse=True)
def tables(django_databases: None) -> Iterator[None]:
    for alias in DATABASES:
        with connections[alias].cursor() as cursor:
            cursor.execute("DROP TABLE IF EXISTS work")
            cursor.execute("CREATE TABLE work (n int)")
    yield
    connections.close_all()


@pytest.fixture(params=DATABASES)
def using(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param
    connections[request.param].close()


@pytest.fixture
def mutex(any_client: memlock.Client, name: str) -> memlock.Mutex:
    return any_client.mutex(name)


def write(using: str) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute("INSERT INTO work VALUES (1)")


class Unwanted(Exception):  # noqa: N818
    """What a body raises."""


def test_the_commit_comes_before_the_release(using: str, mutex: memlock.Mutex) -> None:
    seen: list[bool] = []
    with transaction.atomic(using):
        with mutex:
            release_on_commit(mutex, using)
            write(using)
        assert mutex.locked()
        # Other hooks run when the lock is free already.
        transaction.on_commit(lambda: seen.append(mutex.locked()), using)
        with transaction.atomic(using):
            write(using)
        assert mutex.locked()
    assert not mutex.locked()
    assert seen == [False]


def test_another_connection_sees_the_work_when_the_lock_is_free(
    postgres: Postgres, client: memlock.Client, name: str
) -> None:
    counts: list[int] = []

    def look() -> None:
        with client.mutex(name), postgres.connect() as other:
            counts.append(other.execute("SELECT count(*) FROM work WHERE n = 77").fetchone()[0])

    with transaction.atomic("postgres"):
        with client.mutex(name) as mutex:
            release_on_commit(mutex, "postgres")
        thread = threading.Thread(target=look)
        thread.start()
        with connections["postgres"].cursor() as cursor:
            cursor.execute("INSERT INTO work VALUES (77)")
    thread.join(20)
    assert counts == [1]


def test_a_rollback_releases(using: str, mutex: memlock.Mutex) -> None:
    with pytest.raises(Unwanted), transaction.atomic(using), mutex:
        release_on_commit(mutex, using)
        write(using)
        raise Unwanted
    assert not mutex.locked()
    with transaction.atomic(using):
        with mutex:
            release_on_commit(mutex, using)
        transaction.set_rollback(True, using)
        assert mutex.locked()
    assert not mutex.locked()


@pytest.mark.parametrize("ends", ["commit", "rollback", "rollback of a savepoint"])
def test_release_in_is_a_part_of_the_transaction(postgres: Postgres, name: str, ends: str) -> None:
    mutex, other = (memlock.connect(postgres.store_url).mutex(name) for _ in range(2))

    def work() -> None:
        with mutex:
            write("postgres")
            mutex.release_in(connections["postgres"])
        assert not other.acquire(blocking=False)

    if ends == "commit":
        with transaction.atomic("postgres"):
            work()
    elif ends == "rollback":
        with pytest.raises(Unwanted), transaction.atomic("postgres"):
            work()
            raise Unwanted
    else:
        with transaction.atomic("postgres"):
            with pytest.raises(Unwanted), transaction.atomic("postgres"):
                work()
                raise Unwanted
            assert not other.acquire(blocking=False)
    assert other.acquire(blocking=False)
    other.release()


def test_savepoints_release_nothing(using: str, mutex: memlock.Mutex) -> None:
    with transaction.atomic(using):
        with contextlib.suppress(Unwanted), transaction.atomic(using):
            with mutex:
                release_on_commit(mutex, using)
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


def test_durable_and_nested_transactions(using: str, mutex: memlock.Mutex) -> None:
    with transaction.atomic(using, durable=True):
        with transaction.atomic(using), transaction.atomic(using), mutex:
            release_on_commit(mutex, using)
        assert mutex.locked()
    assert not mutex.locked()


def test_autocommit_releases_at_once(using: str, mutex: memlock.Mutex) -> None:
    with mutex:
        release_on_commit(mutex, using)
        assert not mutex.locked()
    assert not mutex.locked()


def test_transactions_by_hand(using: str, mutex: memlock.Mutex) -> None:
    for end in (transaction.commit, transaction.rollback):
        transaction.set_autocommit(False, using)
        try:
            with mutex:
                release_on_commit(mutex, using)
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
    with mutex:
        release_on_commit(mutex, "sqlite")
    write("sqlite")
    assert mutex.locked()
    transaction.set_autocommit(True, "sqlite")
    assert not mutex.locked()


def test_a_transaction_that_is_closed(using: str, mutex: memlock.Mutex) -> None:
    with contextlib.suppress(DatabaseError), transaction.atomic(using):
        with mutex:
            release_on_commit(mutex, using)
        connections[using].close()
        assert not mutex.locked()
        # The transaction is over, although its block is not.
        with mutex:
            release_on_commit(mutex, using)
        assert not mutex.locked()
    # And the next one is as usual.
    with transaction.atomic(using):
        with mutex:
            release_on_commit(mutex, using)
        assert mutex.locked()
    assert not mutex.locked()


def test_a_hook_that_raises(using: str, mutex: memlock.Mutex) -> None:
    def raise_unwanted() -> None:
        raise Unwanted

    with pytest.raises(Unwanted), transaction.atomic(using):
        transaction.on_commit(raise_unwanted, using)
        with mutex:
            release_on_commit(mutex, using)
    assert not mutex.locked()


def test_a_commit_that_fails(postgres: Postgres, mutex: memlock.Mutex) -> None:
    with connections["postgres"].cursor() as cursor:
        cursor.execute(
            "CREATE TABLE IF NOT EXISTS late (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)"
        )
    with pytest.raises(DatabaseError), transaction.atomic("postgres"):
        with mutex:
            release_on_commit(mutex, "postgres")
        with connections["postgres"].cursor() as cursor:
            cursor.execute("INSERT INTO late VALUES (1), (1)")
        assert mutex.locked()
    assert not mutex.locked()


def test_a_connection_that_is_lost(postgres: Postgres, mutex: memlock.Mutex) -> None:
    with pytest.raises(DatabaseError), transaction.atomic("postgres"):
        with mutex:
            release_on_commit(mutex, "postgres")
        with connections["postgres"].cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            (pid,) = cursor.fetchone()
        with psycopg.connect(postgres.dsn, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    assert not mutex.locked()


# Drivers warn of connections that were not closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_thread_that_forgets_its_transaction(using: str, mutex: memlock.Mutex) -> None:
    def work() -> None:
        transaction.set_autocommit(False, using)
        with mutex:
            release_on_commit(mutex, using)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    del thread
    gc.collect()
    assert not mutex.locked()


def test_the_wrong_moment(using: str, mutex: memlock.Mutex) -> None:
    with pytest.raises(memlock.NotHeld), transaction.atomic(using):
        release_on_commit(mutex, using)
    with pytest.raises(memlock.NotHeld):
        release_on_commit(mutex, using)


def test_requests_and_semaphores(any_client: memlock.Client, name: str, using: str) -> None:
    """As ATOMIC_REQUESTS does: the view is called in atomic()."""
    limit = any_client.semaphore(name, 2)

    @transaction.atomic(using)
    def view() -> int:
        with limit, limit.permit() as permit:
            release_on_commit(limit, using)
            release_on_commit(permit, using)
        return limit.available

    assert view() == 0
    assert limit.available == 2


def test_the_loss_of_a_lock_raises_nothing(
    client: memlock.Client, name: str, using: str, caplog: pytest.LogCaptureFixture
) -> None:
    with transaction.atomic(using):
        with client.mutex(name) as mutex:
            release_on_commit(mutex, using)
        owner = mutex.owner()
        assert owner
        assert mutex.force_unlock(owner.token)
        write(using)
    assert mutex.lost == "gone"
    assert "LockLost" in caplog.text


def test_a_test_case(mutex: memlock.Mutex) -> None:
    class Case(django.test.TestCase):
        databases = ("default", "sqlite", "postgres")

        def test(self) -> None:
            with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
                with mutex:
                    release_on_commit(mutex)
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
    with connection.cursor() as cursor:
        cursor.execute(memlock.fence_table_ddl(connection.vendor))
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


def test_two_databases(mutex: memlock.Mutex) -> None:
    """The end of a transaction of one database does not release what another one's will."""
    with transaction.atomic("postgres"):
        with transaction.atomic("sqlite"), mutex:
            release_on_commit(mutex, "sqlite")
            release_on_commit(mutex, "postgres")
        assert mutex.locked()
    assert not mutex.locked()
