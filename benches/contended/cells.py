"""The cells: contenders, numbers of processes, holds, and durations."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

# Holds are in milliseconds. Long holds make a run longer, but need no more processor time.
HOLDS = (0.0, 1.0, 5.0, 50.0, 500.0)
PROCESSES = (2, 8, 32)
CROWD = 128

# Threads in each of a few processes that use one semaphore.
THREADS = (20, 100, 300, 500)

# Turns that every process should have: a first one, which Jain's index ignores, and three more.
TURNS = 4.2
SECONDS = 5.0
# Long enough for percentiles over some hundred hand-overs, where possible.
SECONDS_OF_LONG_HOLDS = 12.0
LONG_HOLD_MS = 50.0

QUICK_SECONDS = 1.2
QUICK_HOLDS = (0.0, 1.0, 50.0)
QUICK_PROCESSES = (8,)

# The time for starting and ending servers and processes.
SECONDS_AROUND = 0.5


@dataclass(frozen=True)
class Contender:
    """A lock or semaphore to contend for; `language` and `name` select the worker."""

    key: str
    title: str
    language: str
    name: str
    server: str
    holds: Sequence[float] = HOLDS
    processes: Sequence[int] = PROCESSES
    # The holds for which CROWD processes contend, too.
    crowd: Sequence[float] = ()
    # The maximum number of simultaneous holders; 1 is a lock.
    permits: int = 1
    # The number of contending threads in each process.
    threads: int = 1


_FEW = {"holds": (1.0, 50.0), "processes": (8, 32)}
_PEERS = {"holds": (1.0, 5.0, 50.0), "processes": (8, 32)}
_CROWDED = {"crowd": (0.0, 1.0, 5.0, 50.0)}
_POLLING = {"holds": (0.0, 1.0, 50.0), "crowd": (0.0,)}
_FOUR = {"holds": (1.0, 5.0, 50.0), "processes": (32,), "permits": 4}
# Permits are never exhausted: this measures the cost of writing one record.
_CROWD_OF_THREADS = {"holds": (10.0,), "processes": (5,), "permits": 1000}
_EIGHT = {"holds": (1.0, 5.0, 50.0), "processes": (8,)}
_RELAY = {"holds": (0.0, 1.0, 5.0, 50.0, 500.0), "processes": (8,)}

CONTENDERS = (
    Contender("c", "C: memlock", "c", "memlock", "memcached", **_CROWDED),
    Contender("python", "Python: memlock", "python", "memlock", "memcached"),
    Contender("asyncio", "asyncio: memlock.aio", "python", "memlock-aio", "memcached", **_EIGHT),
    Contender("polling", "C: polling at 1 ms", "c", "polling", "memcached", **_POLLING),
    Contender("relay", "C: relay (no lock)", "c", "relay", "memcached", **_RELAY),
    Contender("sqlite-c", "C: memlock, SQLite", "c", "memlock", "file", **_EIGHT),
    Contender("flock", "C: flock(2)", "c", "flock", "file", **_EIGHT),
    Contender("redis-c", "C: memlock, Redis", "c", "memlock", "redis", **_EIGHT),
    Contender("redis-python", "Python: memlock, Redis", "python", "memlock", "redis", **_EIGHT),
    Contender("redis-pubsub", "Redis, Pub/Sub", "python", "redis-pubsub", "redis", **_EIGHT),
    Contender("redis-lock", "python-redis-lock", "python", "python-redis-lock", "redis", **_PEERS),
    Contender("redis-py", "redis-py's Lock", "python", "redis-py", "redis", **_PEERS),
    Contender("postgresql-c", "C: memlock, PostgreSQL", "c", "memlock", "postgresql", **_EIGHT),
    Contender(
        "postgresql-python",
        "Python: memlock, PostgreSQL",
        "python",
        "memlock",
        "postgresql",
        **_EIGHT,
    ),
    Contender("listen", "LISTEN and NOTIFY", "python", "listen", "postgresql", **_EIGHT),
    Contender("advisory", "pg_advisory_lock", "python", "advisory", "postgresql", **_EIGHT),
    Contender("mariadb-c", "C: memlock, MariaDB", "c", "memlock", "mariadb", **_EIGHT),
    Contender(
        "mariadb-python", "Python: memlock, MariaDB", "python", "memlock", "mariadb", **_EIGHT
    ),
    Contender("get-lock", "GET_LOCK", "python", "get-lock", "mariadb", **_EIGHT),
    Contender("sherlock", "sherlock's MCLock", "python", "sherlock", "memcached", **_FEW),
    Contender("semaphore-c", "C: memlock", "c", "semaphore", "memcached", **_FOUR),
    Contender("semaphore-python", "Python: memlock", "python", "semaphore", "memcached", **_FOUR),
    Contender("semaphore-polling", "C: polling at 1 ms", "c", "polling", "memcached", **_FOUR),
    Contender("semaphore-list", "Redis list", "python", "redis-list", "redis", **_FOUR),
    Contender("semaphore-redis", "py-redis-semaphore", "python", "py-redis", "redis", **_FOUR),
    *(
        Contender(
            f"semaphore-threads-{count}",
            f"C: memlock, {count} threads each",
            "c",
            "semaphore",
            "memcached",
            threads=count,
            **_CROWD_OF_THREADS,
        )
        for count in THREADS
    ),
)

GROUPS = {
    "memcached": ("c", "python", "asyncio", "polling", "relay", "sherlock"),
    "redis": tuple(
        it.key for it in CONTENDERS if it.key.startswith("redis-") and it.server == "redis"
    ),
    "postgresql": tuple(it.key for it in CONTENDERS if it.server == "postgresql"),
    "mariadb": tuple(it.key for it in CONTENDERS if it.server == "mariadb"),
    "sqlite": ("sqlite-c", "flock"),
    "peers": ("redis-lock", "redis-py", "sherlock"),
    "semaphore": tuple(it.key for it in CONTENDERS if it.permits > 1 and it.threads == 1),
    "semaphore-threads": tuple(it.key for it in CONTENDERS if it.threads > 1),
}

# These grant too many holds at once, to test the detection of violations.
BROKEN = Contender("broken", "C: broken", "c", "broken", "memcached")
BROKEN_SEMAPHORE = Contender("broken", "C: broken", "c", "broken", "memcached", permits=4)


@dataclass(frozen=True)
class Cell:
    """One row of the table."""

    contender: Contender
    processes: int
    hold_ms: float
    seconds: float

    def __str__(self) -> str:
        permits = f", {self.contender.permits} permits" if self.contender.permits > 1 else ""
        who = f"{self.contender.title}{permits}"
        return f"{who}, {self.processes} processes, {self.hold_ms:g} ms"

    @property
    def order(self) -> tuple[float, int, int]:
        """The sort key: hold, then processes, then contender."""
        return self.hold_ms, self.processes, CONTENDERS.index(self.contender)


def cells(
    keys: Collection[str],
    processes: Sequence[int] | None = None,
    holds: Sequence[float] | None = None,
    seconds: float | None = None,
    *,
    quick: bool = False,
) -> list[Cell]:
    """Return the requested rows: given values apply to all contenders, otherwise defaults."""
    wanted = []
    for contender in CONTENDERS:
        if contender.key not in keys:
            continue
        its_holds = [hold for hold in QUICK_HOLDS if hold in contender.holds]
        its = [(count, hold) for count in QUICK_PROCESSES for hold in its_holds]
        if contender.threads > 1:
            its = [(count, hold) for count in contender.processes for hold in contender.holds]
        if processes or holds or not quick:
            its = [
                (count, hold)
                for count in processes or contender.processes
                for hold in holds or contender.holds
            ]
        if not (processes or holds or quick):
            its += [(CROWD, hold) for hold in contender.crowd]
        for count, hold in its:
            usual = QUICK_SECONDS if quick else _seconds(count / contender.permits, hold)
            lasting = seconds or usual
            wanted.append(Cell(contender, count, hold, lasting))
    return sorted(wanted, key=lambda cell: cell.order)


def duration(wanted: Sequence[Cell]) -> float:
    """Return the approximate total duration in seconds."""
    return sum(cell.seconds + SECONDS_AROUND for cell in wanted)


def _seconds(processes: float, hold_ms: float) -> float:
    """Return the duration of a run with so many processes for each permit."""
    least = SECONDS if hold_ms < LONG_HOLD_MS else SECONDS_OF_LONG_HOLDS
    return max(least, TURNS * processes * hold_ms / 1000)
