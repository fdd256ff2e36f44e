"""The stub is what the module is, and a strict checker is content with it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")

SAMPLE = """
import sqlite3

import memlock
import sqlalchemy.orm
from datetime import timedelta
from memlock.django import release_on_commit
from memlock.sqlalchemy import release_on_commit as release_with_session

def use(url: str) -> int:
    client = memlock.connect(url)
    with client.mutex("x", lease=timedelta(seconds=30), timeout=1.5) as mutex:
        mutex.extend(30)
        left: float = mutex.remaining
        owner = mutex.owner()
        if owner is not None and owner.host is not None:
            mutex.force_unlock(owner.token)
        fence: int = mutex.fence
    def lost(why: str) -> None: ...
    with client.mutex("x", renew=True, max_hold=60, on_lease_at_risk=print, on_lost=lost) as kept:
        if kept.is_held and kept.check() and kept.lost is None and kept.wait_lost(1.5) == "gone":
            kept.release()
    with client.semaphore("limit", 5, renew=True, on_lost=lost).permit() as some:
        reason: str | None = some.wait_lost(timedelta(seconds=1))
    words = client.distinct_list(b"words", 60)
    ids: list[tuple[int, bool]] = words.insert_many(["a", b"b"])
    keys: list[str] = list(words)
    by_id: dict[int, str] = dict(words.items())
    limit = client.semaphore("limit", permits=5, lease=timedelta(minutes=1), timeout=1.5)
    client.semaphore("limit", 5, mismatch="resize")
    new: bool = limit.set_up(timedelta(days=1))
    with limit, limit.permit(1.5, permits=2, priority=7, ages=False) as permit:
        permit.extend()
        left += permit.remaining + limit.remaining
        mine = [holder for holder in limit.holders() if holder.token == permit.token]
        pids: set[int] = {holder.pid for holder in mine}
    if limit.acquire(True, None, permits=2) and limit.acquire(blocking=False, priority=-1):
        limit.release(2)
    free: int = limit.available + limit.resize(6)
    counter = client.counter("free")
    if counter.set_up(3) or counter.try_acquire() or counter.acquire(timeout=2, priority=5):
        free = counter.release() + counter.available
    handle = client.cancel_handle()
    if mutex.acquire(timeout=None, cancel=handle) and limit.acquire(cancel=handle):
        limit.permit(cancel=handle).release()
    handle.cancel()
    client.cancel_waits()
    if handle.cancelled and not client.closed and counter.acquire(cancel=handle):
        client.close()
    if mutex.acquire(timeout=2) and "a" in words and words.insert("a") and words.add("b"):
        mutex.release()
    database = sqlite3.connect("x")
    with memlock.transaction(mutex, database) as entered:
        memlock.check_fence(database, "x", entered.fence, create=True, table="fences")
    with memlock.transaction(limit.permit(), database) as one:
        fence += one.permits
    ddl: str = memlock.fence_table_ddl("postgresql")
    release_on_commit(limit, "default")
    release_with_session(mutex, sqlalchemy.orm.Session())
    try:
        memlock.mutex_lock("x", 30)
    except memlock.Fenced as fenced:
        return fenced.seen + len(ddl)
    except (memlock.NotFound, memlock.Interrupted, memlock.ClientClosed) as refused:
        return refused.code
    except memlock.Error as error:
        return error.code
    return fence + len(words) + len(ids) + len(keys) + len(by_id) + int(left)
"""


WRONG = """
import memlock

def use(client: memlock.Client) -> None:
    client.mutex(5, lease=30)
    client.mutex("x", lease="30")
    client.semaphore("x", "3")
    client.semaphore("x", 3, mismatch="ignore")
    client.semaphore("x", 3).acquire(priority=1.5)
"""


def python(*arguments: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_the_stub_agrees_with_the_module(tmp_path: Path) -> None:
    # The other modules have no stubs: their annotations are in them.
    said = python("-m", "mypy.stubtest", "memlock._memlock", folder=tmp_path)
    assert said.startswith("Success"), said


def test_a_program_passes_mypy_strict_and_a_wrong_one_does_not(tmp_path: Path) -> None:
    for name, program in {"sample.py": SAMPLE, "wrong.py": WRONG}.items():
        (tmp_path / name).write_text(program)
    # What SQLAlchemy's types are is found out once.
    cache = f"--cache-dir={Path(__file__).parents[2] / 'target/mypy'}"
    said = python("-m", "mypy", cache, "--strict", "sample.py", "wrong.py", folder=tmp_path)
    errors = re.findall(r"^(\S+?):(\d+): error: .*\[(.*)\]$", said, re.MULTILINE)
    assert errors == [("wrong.py", str(line), "arg-type") for line in range(5, 10)], said
