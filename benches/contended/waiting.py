"""Contenders whose waiters the server wakes, as programs have them that use no library of locks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import psycopg
import pymysql
import redis

LEASE_S = 30


class Lock(NamedTuple):
    """The operations of a contender, a lock or a semaphore; fence 0 means none."""

    acquire: Callable[[], object]
    release: Callable[[], object]
    fence: Callable[[], int] = lambda: 0


def pubsub_locks(url: str) -> Callable[[str], Lock]:
    """The pattern of Redisson: a waiter subscribes, tries, and waits for a message of the releaser.

    All waiters get the message, and one of them acquires the lock. The lease's end is waited for,
    too. Redisson also counts how often the holder has acquired the lock.
    """
    client = redis.Redis.from_url(url, socket_timeout=None)
    release = client.register_script("""
        if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
        redis.call('DEL', KEYS[1])
        redis.call('PUBLISH', KEYS[2], '')
        return 1
    """)
    token = uuid.uuid4().hex

    def make(name: str) -> Lock:
        channel = f"{name}:released"

        def is_acquired() -> bool:
            return client.set(name, token, nx=True, px=LEASE_S * 1000) is not None

        def acquire() -> None:
            if is_acquired():
                return
            with client.pubsub() as messages:
                messages.subscribe(channel)
                messages.get_message(timeout=LEASE_S)  # the reply to the subscription
                while not is_acquired():
                    left_ms = client.pttl(name)
                    if left_ms > 0:
                        messages.get_message(timeout=left_ms / 1000)

        return Lock(acquire, lambda: release(keys=[name, channel], args=[token]))

    return make


def listen_locks(url: str) -> Callable[[str], Lock]:
    """PostgreSQL: a row for each lock; a releaser notifies the waiters, who listen."""
    connection = psycopg.connect(url, autocommit=True)
    run = connection.execute
    # Creating a table at the same time fails.
    run("SELECT pg_advisory_lock(1)")
    run("CREATE UNLOGGED TABLE IF NOT EXISTS locks (name text PRIMARY KEY, ends timestamptz)")
    run("SELECT pg_advisory_unlock(1)")

    def make(name: str) -> Lock:
        channel = name.replace("-", "_")

        def is_acquired() -> bool:
            done = run(
                "INSERT INTO locks VALUES (%s, clock_timestamp() + %s * interval '1 s')"
                " ON CONFLICT (name) DO UPDATE SET ends = EXCLUDED.ends"
                " WHERE locks.ends < clock_timestamp()",
                (name, LEASE_S),
            )
            return done.rowcount == 1

        def acquire() -> None:
            if is_acquired():
                return
            run(f"LISTEN {channel}")
            limit = time.monotonic() + LEASE_S
            while not is_acquired():
                for _ in connection.notifies(timeout=limit - time.monotonic(), stop_after=1):
                    pass
            run(f"UNLISTEN {channel}")

        def release() -> None:
            run(
                "WITH gone AS (DELETE FROM locks WHERE name = %s RETURNING name)"
                " SELECT pg_notify(%s, '') FROM gone",
                (name, channel),
            )

        return Lock(acquire, release)

    return make


def advisory_locks(url: str) -> Callable[[str], Lock]:
    """PostgreSQL's advisory locks, whose waiters the server queues."""
    run = psycopg.connect(url, autocommit=True).execute

    def make(name: str) -> Lock:
        return Lock(
            lambda: run("SELECT pg_advisory_lock(hashtext(%s))", (name,)),
            lambda: run("SELECT pg_advisory_unlock(hashtext(%s))", (name,)),
        )

    return make


def get_lock_locks(url: str) -> Callable[[str], Lock]:
    """GET_LOCK of MariaDB and MySQL, whose waiters the server queues."""
    place = urlsplit(url)
    socket = parse_qs(place.query)["socket"][0]
    connection = pymysql.connect(
        user=place.username, database=place.path[1:], unix_socket=socket, autocommit=True
    )
    cursor = connection.cursor()

    def make(name: str) -> Lock:
        return Lock(
            lambda: cursor.execute("SELECT GET_LOCK(%s, %s)", (name, LEASE_S)),
            lambda: cursor.execute("SELECT RELEASE_LOCK(%s)", (name,)),
        )

    return make
