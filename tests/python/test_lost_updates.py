"""Two processes that read, work, and write one row under a lock.

With a lock that is released before the commit, updates are lost. SQLite refuses them instead: there
transactions fail. With a lock that is held until the commit, nothing is lost and nothing fails.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from databases import Postgres
from support import Child, Memcached, eventually, safe

ROUNDS = 200
WORKERS = 2

# It does some rounds in a database for each line that it is sent.
WORKER = """
import json, sys, time
import memlock

framework, url, name, databases, locations = json.loads(sys.argv[1])
mutex = memlock.connect(url).mutex(name)

def add_one(execute):
    value = execute("SELECT n FROM work").fetchone()[0]
    execute(f"UPDATE work SET n = {value + 1}")

def the_transaction_does_something_else_too():
    time.sleep(0.001)

if framework == "django":
    import django.conf
    django.conf.settings.configure(DATABASES=databases, USE_TZ=True)
    django.setup()
    from django.db import DatabaseError, connections, transaction
    from memlock.django import release_on_commit

    def one_round(alias, early):
        with transaction.atomic(alias), connections[alias].cursor() as cursor:
            with mutex:
                if not early:
                    release_on_commit(mutex, alias)
                def execute(statement):
                    cursor.execute(statement)
                    return cursor
                add_one(execute)
            the_transaction_does_something_else_too()
elif framework == "sqlalchemy":
    from sqlalchemy import create_engine, text
    from sqlalchemy.exc import DBAPIError as DatabaseError
    from sqlalchemy.orm import Session
    from memlock.sqlalchemy import release_on_commit
    engines = {alias: create_engine(location) for alias, location in locations.items()}

    def one_round(alias, early):
        with Session(engines[alias]) as session, session.begin():
            with mutex:
                if not early:
                    release_on_commit(mutex, session)
                add_one(lambda statement: session.execute(text(statement)))
            the_transaction_does_something_else_too()
else:
    import psycopg, sqlite3
    connect = {"postgres": psycopg.connect, "sqlite": sqlite3.connect}
    opened = {alias: connect[alias](location) for alias, location in locations.items()}
    DatabaseError = (psycopg.Error, sqlite3.Error)

    def one_round(alias, early):
        connection = opened[alias]
        if not early:
            with memlock.transaction(mutex, connection):
                add_one(connection.execute)
                the_transaction_does_something_else_too()
            return
        try:
            with mutex:
                add_one(connection.execute)
            the_transaction_does_something_else_too()
            connection.commit()
        except DatabaseError:
            connection.rollback()
            raise

print("ready")
for alias, early, rounds in map(str.split, sys.stdin):
    failures = 0
    for _ in range(int(rounds)):
        try:
            one_round(alias, early == "early")
        except DatabaseError:
            failures += 1
    print(failures)
"""


@pytest.mark.parametrize("framework", ["django", "sqlalchemy", "plain"])
def test_updates(
    framework: str, server: Memcached, postgres: Postgres, name: str, tmp_path: Path
) -> None:
    path, is_plain = str(tmp_path / "work.db"), framework == "plain"
    databases: dict[str, Any] = {
        "default": {},
        "sqlite": {"ENGINE": "django.db.backends.sqlite3", "NAME": path},
        "postgres": postgres.for_django,
    }
    locations = {
        "sqlite": path if is_plain else f"sqlite:///{path}",
        "postgres": postgres.dsn if is_plain else postgres.url,
    }
    ours: dict[str, Any] = {
        "sqlite": sqlite3.connect(path, isolation_level=None),
        "postgres": postgres.connect(autocommit=True),
    }
    # As applications that write concurrently have it. It does not wait for the disk.
    ours["sqlite"].execute("PRAGMA journal_mode = WAL")
    with ExitStack() as stack:
        settings = json.dumps([framework, server.url, name, databases, locations])
        workers = [stack.enter_context(Child(WORKER, settings)) for _ in range(WORKERS)]
        for worker in workers:
            assert worker.reads() == "ready"

        def lost_and_failed(alias: str, how: str, rounds: int) -> tuple[int, int]:
            ours[alias].execute("DROP TABLE IF EXISTS work")
            ours[alias].execute("CREATE TABLE work (n int)")
            ours[alias].execute("INSERT INTO work VALUES (0)")
            for worker in workers:
                worker.says(f"{alias} {how} {rounds // WORKERS}")
            failed = sum(int(worker.reads()) for worker in workers)
            (done,) = ours[alias].execute("SELECT n FROM work").fetchone()
            return rounds - failed - done, failed

        for alias in ours:
            lost, failed = lost_and_failed(alias, "late", ROUNDS)
            safe(lost <= 0, f"{alias}: {lost} updates lost")
            assert (lost, failed) == (0, 0), alias

            def is_lost(alias: str = alias) -> bool:
                lost, failed = lost_and_failed(alias, "early", ROUNDS // 10)
                return lost > 0 if alias == "postgres" else lost + failed > 0

            # Which shows that these workers would find it.
            eventually(is_lost)
    for database in ours.values():
        database.close()
