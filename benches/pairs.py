"""The rate of pairs of one Python process: of lock+unlock, or of acquire+release.

    pairs.py CONTENDER URL seconds=T     warm up for T/4, then run for T seconds
    pairs.py CONTENDER URL count=N       exactly N pairs and no warm-up, for counting commands

Prints one line for benches/run, in the form that pairs.c describes.

Which semaphores there are for Python (PyPI, looked up in November 2026): py-redis-semaphore 0.2.0
is maintained, has leases, and waits by BLPOP: so it is raced. redsync 2.0.0 and self-limiters 0.4.0
are for asyncio only, and redsync's permits are lost with a holder that dies. Redis-Semaphore 0.2.2
has had no release since 2020 at least. The cheapest is a list of tokens with BLPOP and RPUSH, as
written by hand, which also loses a permit with each holder that dies: it is raced too.

filelock uses a file beside the one of the URL.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import filelock
import memlock
import MySQLdb
import pairs_program
import pottery
import psycopg
import pylibmc
import redis
import redis_lock
import redis_semaphore
import sherlock
from pairs_program import Limit, Measured
from pymemcache.client.base import Client
from pymemcache.serde import pickle_serde

# memlock's item for the mutex "bench": key, length of the value, seconds.
LOCK_KEY = "lock:bench"
LOCK_VALUE = b"0123456789abcdef" * 5
LOCK_TTL_S = 31

LEASE_S = 30
QUORUM_S = 4
PERMITS = 5

PAIRS_PER_LOOK = 16  # how often the clock is read: rarely enough to cost little


# Each contender is a function that connects and returns its `pair`.


def memlock_pair(url: str) -> Callable[[], None]:
    """memlock's mutex: owner-checked, and the waiters' queue is looked at on every release."""
    mutex = memlock.connect(url).mutex("bench", lease=LEASE_S)

    def pair() -> None:
        if not mutex.acquire():
            raise RuntimeError("acquire: the lock is taken")
        mutex.release()

    return pair


def quorum_pair(url: str) -> Callable[[], None]:
    """The same on a quorum of servers."""
    mutex = memlock.connect(url).mutex("bench", lease=QUORUM_S)

    def pair() -> None:
        if not mutex.acquire():
            raise RuntimeError("acquire: the lock is taken")
        mutex.release()

    return pair


def pottery_pair(url: str) -> Callable[[], None]:
    """Redlock on several Redis."""
    masters = {redis.Redis.from_url(f"redis://{host}") for host in urlsplit(url).netloc.split(",")}
    lock = pottery.Redlock(key="bench", masters=masters, auto_release_time=QUORUM_S)

    def pair() -> None:
        if not lock.acquire(blocking=False):
            raise RuntimeError("acquire: the lock is taken")
        lock.release()

    return pair


def pylibmc_pair(url: str) -> Callable[[], None]:
    """The usual unsafe recipe, add then a blind delete, over libmemcached."""
    client = pylibmc.Client([urlsplit(url).netloc], binary=False, behaviors={"tcp_nodelay": True})

    def pair() -> None:
        if not client.add(LOCK_KEY, LOCK_VALUE, time=LOCK_TTL_S):
            raise RuntimeError("add: the lock is taken")
        if not client.delete(LOCK_KEY):
            raise RuntimeError("delete: the lock is gone")

    return pair


def sherlock_pair(url: str) -> Callable[[], None]:
    """sherlock's MCLock (add; get, compare here, then delete) over pymemcache."""
    # MCLock uses the answer to `add` and compares values with a str: answers must be awaited, and a
    # str must be returned as a str (which this serde does without pickling it).
    client = Client(_host(url), no_delay=True, default_noreply=False, serde=pickle_serde)
    lock = sherlock.MCLock("lock:bench", client=client, expire=LOCK_TTL_S, timeout=1)

    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair


def semaphore_pair(url: str) -> Callable[[], None]:
    """memlock's semaphore: leased permits, and the waiters' queue is looked at on every release."""
    client = memlock.connect(url)
    semaphore = client.semaphore("bench", PERMITS, lease=LEASE_S)

    def pair() -> None:
        if not semaphore.acquire():
            raise RuntimeError("acquire: there is no permit")
        semaphore.release()

    return pair


def redis_list_pair(url: str) -> Callable[[], None]:
    """A list of as many tokens as there are permits: one is popped and pushed back."""
    client = redis.Redis.from_url(url)
    client.rpush("bench", *range(PERMITS))

    def pair() -> None:
        _, token = client.blpop("bench")
        client.rpush("bench", token)

    return pair


def py_redis_semaphore_pair(url: str) -> Callable[[], None]:
    """py-redis-semaphore: a sorted set of holders, written by Lua, and a push for waiters."""
    # It always starts a thread for each acquisition, which renews the lease.
    config = redis_semaphore.SemaphoreConfig(name="bench", limit=PERMITS, lock_timeout=LEASE_S)
    semaphore = redis_semaphore.Semaphore(redis.Redis.from_url(url), config)

    def pair() -> None:
        if not semaphore.acquire().success:
            raise RuntimeError("acquire: there is no permit")
        if not semaphore.release():
            raise RuntimeError("release: the permit is lost")

    return pair


def redis_py_pair(url: str) -> Callable[[], None]:
    """redis-py's Lock: SET NX PX, and a release by Lua."""
    lock = redis.Redis.from_url(url).lock("bench", timeout=LEASE_S)

    def pair() -> None:
        if not lock.acquire(blocking=False):
            raise RuntimeError("acquire: the lock is taken")
        lock.release()

    return pair


def python_redis_lock_pair(url: str) -> Callable[[], None]:
    """python-redis-lock: SET NX EX, and a release by Lua that pushes to a list for waiters."""
    lock = redis_lock.Lock(redis.Redis.from_url(url), "bench", expire=LEASE_S)

    def pair() -> None:
        if not lock.acquire(blocking=False):
            raise RuntimeError("acquire: the lock is taken")
        lock.release()

    return pair


def psycopg_pair(url: str) -> Callable[[], None]:
    """Advisory locks of PostgreSQL, which have no lease and end with the connection."""
    # psycopg prepares a statement when it has run five times.
    cursor = psycopg.connect(url, autocommit=True).cursor()

    def pair() -> None:
        for function in ("pg_try_advisory_lock", "pg_advisory_unlock"):
            cursor.execute(f"SELECT {function}(%s)", (42,))
            if cursor.fetchone() != (True,):
                raise RuntimeError(f"{function}: refused")

    return pair


def mysqlclient_pair(url: str) -> Callable[[], None]:
    """GET_LOCK of MariaDB and MySQL, which has no lease and ends with the connection."""
    place = urlsplit(url)
    to = {"host": "127.0.0.1", "port": place.port} if place.port else _socket(place.query)
    cursor = MySQLdb.connect(user=place.username, db=place.path[1:], autocommit=True, **to).cursor()

    def pair() -> None:
        for call in ("GET_LOCK(%s, 0)", "RELEASE_LOCK(%s)"):
            cursor.execute(f"SELECT {call}", (LOCK_KEY,))
            if cursor.fetchone() != (1,):
                raise RuntimeError(f"{call}: refused")

    return pair


def filelock_pair(url: str) -> Callable[[], None]:
    """flock(2) on a file, which is opened and closed each time."""
    lock = filelock.FileLock(f"{urlsplit(url).path}.lock")

    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair


def _host(url: str) -> tuple[str, int]:
    place = urlsplit(url)
    return place.hostname, place.port


def _socket(query: str) -> dict[str, str]:
    return {"unix_socket": parse_qs(query)["socket"][0]}


CONTENDERS = {
    "filelock": filelock_pair,
    "memlock": memlock_pair,
    "memlock-quorum": quorum_pair,
    "pottery": pottery_pair,
    "mysqlclient": mysqlclient_pair,
    "psycopg": psycopg_pair,
    "py-redis-semaphore": py_redis_semaphore_pair,
    "pylibmc": pylibmc_pair,
    "python-redis-lock": python_redis_lock_pair,
    "redis-list": redis_list_pair,
    "redis-py": redis_py_pair,
    "semaphore": semaphore_pair,
    "sherlock": sherlock_pair,
}


def run(pair: Callable[[], None], count: int, seconds: float) -> int:
    """Run exactly `count` pairs, or as many as fit in `seconds`; return their number."""
    end = time.perf_counter() + seconds
    pairs = 0
    while True:
        look = count or PAIRS_PER_LOOK
        for _ in range(look):
            pair()
        pairs += look
        if count or time.perf_counter() >= end:
            return pairs


def measure(connect: Callable[[str], Callable[[], None]], url: str, limit: Limit) -> Measured:
    """Warm up, unless the number of pairs is given, and measure."""
    pair = connect(url)
    if not limit.count:
        run(pair, 0, limit.seconds / 4)
    begin = time.perf_counter()
    return run(pair, limit.count, limit.seconds), time.perf_counter() - begin


if __name__ == "__main__":
    pairs_program.main("pairs.py", CONTENDERS, measure)
