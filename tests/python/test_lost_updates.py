"""Two processes that read, work, and write one row under a lock.

With a lock that is released before the commit, updates are lost. SQLite refuses them instead: there
transactions fail. With a lock that is held until the commit, nothing is lost and nothing fails.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from databases import Postgres
from support import Memcached, safe

ROUNDS = 500
WORKERS = 2

WORKER = """
import json, sys, time
import memlock

framework, alias, url, name, rounds, early, databases, engine_url = json.loads(sys.argv[1])
client = memlock.connect(url)
mutex = client.mutex(name, lease=30)
failures = 0

def add_one(execute):
    value = execute("SELECT n FROM work").fetchone()[0]
    execute(f"UPDATE work SET n = {value + 1}")

if framework == "django":
    import django.conf
    django.conf.settings.configure(DATABASES=databases, USE_TZ=True)
    django.setup()
    from django.db import DatabaseError, connections, transaction
    from memlock.django import release_on_commit

    def one_round():
        with transaction.atomic(alias), connections[alias].cursor() as cursor:
            with mutex:
                if not early:
                    release_on_commit(mutex, alias)
                def execute(statement):
                    cursor.execute(statement)
                    return cursor
                add_one(execute)
            # The transaction does something else, too.
            time.sleep(0.001)
elif framework == "sqlalchemy":
    from sqlalchemy import create_engine, text
    from sqlalchemy.exc import DBAPIError as DatabaseError
    from sqlalchemy.orm import Session
    from memlock.sqlalchemy import release_on_commit
    engine = create_engine(engine_url)

    def one_round():
        with Session(engine) as session, session.begin():
            with mutex:
                if not early:
                    release_on_commit(mutex, session)
                add_one(lambda statement: session.execute(text(statement)))
            time.sleep(0.001)
else:
    if alias == "postgres":
        import psycopg
        connection = psycopg.connect(engine_url)
        DatabaseError = psycopg.Error
    else:
        import sqlite3
        connection = sqlite3.connect(engine_url)
        DatabaseError = sqlite3.Error

    def one_round():
        if not early:
            with memlock.transaction(mutex, connection):
                add_one(connection.execute)
                time.sleep(0.001)
            return
        try:
            with mutex:
                add_one(connection.execute)
            time.sleep(0.001)
            connection.commit()
        except DatabaseError:
            connection.rollback()
            raise

print("ready", flush=True)
sys.stdin.readline()
for _ in range(rounds):
    try:
        one_round()
    except DatabaseError:
        failures += 1
print(failures, flush=True)
"""


@pytest.mark.parametrize("early", [True, False], ids=["released early", "held until commit"])
@pytest.mark.parametrize("alias", ["postgres", "sqlite"])
@pytest.mark.parametrize("framework", ["django", "sqlalchemy", "plain"])
def test_updates(
    framework: str, alias: str, early: bool, server: Memcached, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue("tmp_path")
    name: str = request.getfixturevalue("name")
    path = str(folder / "work.db")
    databases: dict[str, Any] = {
        "default": {},
        "sqlite": {"ENGINE": "django.db.backends.sqlite3", "NAME": path},
    }
    if alias == "postgres":
        postgres: Postgres = request.getfixturevalue("postgres")
        databases["postgres"] = postgres.for_django
        database: Any = postgres.connect(autocommit=True)
        location = postgres.dsn if framework == "plain" else postgres.url
    else:
        database = sqlite3.connect(path, isolation_level=None)
        # As applications that write concurrently have it. It does not wait for the disk.
        database.execute("PRAGMA journal_mode = WAL")
        location = path if framework == "plain" else f"sqlite:///{path}"
    database.execute("DROP TABLE IF EXISTS work")
    database.execute("CREATE TABLE work (n int)")
    database.execute("INSERT INTO work VALUES (0)")
    rounds = ROUNDS // WORKERS
    settings = [framework, alias, server.url, name, rounds, early, databases, location]
    command = [sys.executable, "-c", WORKER, json.dumps(settings)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen(command, **pipes) for _ in range(WORKERS)]
    try:
        for worker in workers:
            assert worker.stdout
            assert worker.stdout.readline() == "ready\n"
        outputs = [""] * WORKERS
        for worker in workers:
            assert worker.stdin
            worker.stdin.write("go\n")
            worker.stdin.flush()
        for number, worker in enumerate(workers):
            outputs[number], _ = worker.communicate(timeout=100)
            assert worker.returncode == 0
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    failed = sum(int(output) for output in outputs)
    lost = ROUNDS - failed - database.execute("SELECT n FROM work").fetchone()[0]
    database.close()
    print(f"{framework}, {alias}: {lost} updates lost, {failed} failed")
    if early:
        assert failed + lost > 0
    else:
        safe(lost <= 0, f"{lost} updates lost")
        assert (failed, lost) == (0, 0)
    if early and alias == "postgres":
        assert lost > 0
