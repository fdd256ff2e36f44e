"""memlock.sqlalchemy: a lock is held until SQLAlchemy's outermost transaction has ended."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import memlock
import psycopg
import pytest
from databases import Postgres, Sqlite
from memlock.sqlalchemy import release_on_commit
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session
from support import Unwanted, Witness, run


@pytest.fixture(scope="module", params=["postgres", "sqlite"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    is_sqlite, get = request.param == "sqlite", request.getfixturevalue
    database = Sqlite(tmp_path_factory.mktemp("sqlalchemy")) if is_sqlite else get("postgres")
    engine = create_engine(database.url)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS work"))
        connection.execute(text("CREATE TABLE work (n int)"))
    yield engine
    engine.dispose()


WRITE = text("INSERT INTO work VALUES (1)")


def hold(mutex: memlock.Mutex, work: Any) -> None:
    """Leaves its release to the transaction of a session or a connection."""
    with mutex:
        release_on_commit(mutex, work)


def test_the_commit_comes_before_the_release(engine: Engine) -> None:
    def rows() -> int:
        with engine.connect() as other:
            return int(other.execute(text("SELECT count(*) FROM work")).scalar_one())

    for work in (Session(engine), engine.connect()):
        before, lock = rows(), Witness(rows)
        with work:
            release_on_commit(lock, work)
            work.execute(WRITE)
            work.commit()
        assert lock.seen == [before + 1]


def test_the_ends_of_a_session(engine: Engine, mutex: memlock.Mutex) -> None:
    for end in (Session.commit, Session.rollback, Session.close, Session.invalidate):
        for writes in (False, True):
            with Session(engine, expire_on_commit=writes) as session:
                # Before the first statement: a transaction begins here.
                hold(mutex, session)
                if writes:
                    session.execute(WRITE)
                assert mutex.locked()
                end(session)
                assert not mutex.locked()
                # The next transaction has nothing to release.
                with mutex:
                    session.commit()
                    assert mutex.locked()


def test_the_nested_transactions_of_a_session_release_nothing(
    engine: Engine, mutex: memlock.Mutex
) -> None:
    with Session(engine) as session, session.begin():
        with contextlib.suppress(Unwanted), session.begin_nested():
            hold(mutex, session)
            session.execute(WRITE)
            raise Unwanted
        assert mutex.locked()
        with session.begin_nested(), session.begin_nested():
            session.execute(WRITE)
        assert mutex.locked()
    assert not mutex.locked()


def test_listeners_that_raise(engine: Engine, mutex: memlock.Mutex) -> None:
    def raise_unwanted(*_: object) -> None:
        raise Unwanted

    for name in ("before_commit", "after_commit", "after_rollback", "after_transaction_end"):
        session = Session(engine)
        event.listen(session, name, raise_unwanted)
        with contextlib.suppress(Unwanted):
            hold(mutex, session)
            session.execute(WRITE)
            session.rollback() if name == "after_rollback" else session.commit()
        event.remove(session, name, raise_unwanted)
        session.close()
        assert not mutex.locked(), name


def test_the_ends_of_a_connection(engine: Engine, mutex: memlock.Mutex) -> None:
    for end in ("commit", "rollback", "close"):
        for begins in (False, True):
            with engine.connect() as connection:
                if begins:
                    connection.begin()
                hold(mutex, connection)
                connection.execute(WRITE)
                with contextlib.suppress(Unwanted), connection.begin_nested():
                    raise Unwanted
                with connection.begin_nested():
                    pass
                assert mutex.locked()
                getattr(connection, end)()
                assert not mutex.locked()
    with engine.begin() as connection, mutex:
        release_on_commit(mutex, connection)
    assert not mutex.locked()
    with pytest.raises(Unwanted), engine.begin() as connection, mutex:
        release_on_commit(mutex, connection)
        raise Unwanted
    assert not mutex.locked()
    with engine.connect() as connection, connection.begin() as trans:
        hold(mutex, connection)
        trans.commit()
        assert not mutex.locked()


def test_autocommit_holds_until_the_end_of_the_logical_transaction(
    engine: Engine, mutex: memlock.Mutex
) -> None:
    automatic = engine.execution_options(isolation_level="AUTOCOMMIT")
    with automatic.connect() as connection:
        hold(mutex, connection)
        connection.execute(WRITE)
        assert mutex.locked()
        connection.commit()
        assert not mutex.locked()
    with Session(automatic) as session:
        hold(mutex, session)
        assert mutex.locked()
    assert not mutex.locked()


def test_a_session_in_the_transaction_of_a_connection(engine: Engine, mutex: memlock.Mutex) -> None:
    with engine.connect() as connection, connection.begin() as outer:
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            hold(mutex, session)
            session.execute(WRITE)
            session.commit()
            assert mutex.locked()
        assert mutex.locked()
        outer.rollback()
        assert not mutex.locked()
    # A session that begins the transaction of its connection ends it, too.
    with engine.connect() as connection, Session(connection) as session:
        hold(mutex, session)
        session.execute(WRITE)
        session.commit()
        assert not mutex.locked()


def test_a_commit_that_fails(postgres: Postgres, mutex: memlock.Mutex) -> None:
    engine = create_engine(postgres.url)
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE IF NOT EXISTS late (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        )
    for work in (Session(engine), engine.connect()):
        with work:
            hold(mutex, work)
            work.execute(text("INSERT INTO late VALUES (1), (1)"))
            with pytest.raises(IntegrityError):
                work.commit()
            work.rollback()
            assert not mutex.locked()
    with pytest.raises(IntegrityError), engine.begin() as connection:
        hold(mutex, connection)
        connection.execute(text("INSERT INTO late VALUES (1), (1)"))
    assert not mutex.locked()
    engine.dispose()


@pytest.mark.parametrize("with_session", [False, True])
def test_a_connection_that_is_lost(
    postgres: Postgres, mutex: memlock.Mutex, with_session: bool
) -> None:
    engine = create_engine(postgres.url)
    work = Session(engine) if with_session else engine.connect()
    with pytest.raises(DBAPIError), work:
        hold(mutex, work)
        pid = work.execute(text("SELECT pg_backend_pid()")).scalar_one()
        with psycopg.connect(postgres.dsn, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
        work.commit()
    assert not mutex.locked()
    engine.dispose()


def test_two_phases(postgres: Postgres, mutex: memlock.Mutex) -> None:
    engine = create_engine(postgres.url)
    other = create_engine(postgres.url)
    with Session(engine, twophase=True) as session:
        hold(mutex, session)
        session.execute(text("SELECT 1"))
        session.execute(text("SELECT 1"), bind_arguments={"bind": other})
        session.prepare()
        assert mutex.locked()
        session.commit()
        assert not mutex.locked()
    with engine.connect() as connection:
        trans = connection.begin_twophase()
        hold(mutex, connection)
        trans.prepare()
        assert mutex.locked()
        trans.commit()
        assert not mutex.locked()
    engine.dispose()
    other.dispose()


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
def test_a_transaction_that_is_forgotten(engine: Engine, mutex: memlock.Mutex) -> None:
    for make in (Session, Engine.connect):
        work = make(engine)
        hold(mutex, work)
        work.execute(text("SELECT 1"))
        assert mutex.locked()
        del work
        gc.collect()
        assert not mutex.locked()


def test_asynchronous_sessions_and_connections(tmp_path: Path, mutex: memlock.Mutex) -> None:
    async def work() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'work.db'}")
        async with AsyncSession(engine) as session, session.begin():
            hold(mutex, session)
            await session.execute(text("SELECT 1"))
            assert mutex.locked()
        assert not mutex.locked()
        async with engine.connect() as connection:
            hold(mutex, connection)
            await connection.execute(text("SELECT 1"))
            assert mutex.locked()
            await connection.rollback()
            assert not mutex.locked()
            hold(mutex, connection)
        assert not mutex.locked()
        scoped = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
        hold(mutex, scoped)
        await scoped.execute(text("SELECT 1"))
        assert mutex.locked()
        await scoped.remove()
        assert not mutex.locked()
        await engine.dispose()

    asyncio.run(work())


def test_several_locks_and_nothing_held(engine: Engine, client: memlock.Client, name: str) -> None:
    limit, mutex = client.semaphore(name, 2), client.mutex(name)
    with Session(engine) as session, session.begin():
        with pytest.raises(memlock.NotHeld):
            release_on_commit(mutex, session)
        with limit, limit.permit() as permit, mutex:
            for lock in (limit, permit, mutex, mutex):
                release_on_commit(lock, session)
        assert limit.available == 0
    assert limit.available == 2
    assert not mutex.locked()
    with pytest.raises(TypeError, match="Session"):
        release_on_commit(mutex, object())  # type: ignore[arg-type]


def test_memlock_imports_neither_django_nor_sqlalchemy_and_works_without_greenlet() -> None:
    program = """
import sys, memlock
print("django" in sys.modules or "sqlalchemy" in sys.modules)
sys.modules["greenlet"] = None
import memlock.sqlalchemy
"""
    assert run(program) == ["False"]
