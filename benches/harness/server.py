"""The servers of the contenders, or files: their URLs, and their numbers of commands."""

from __future__ import annotations

from private_memcached import PrivateMemcached, executable

from .private_database import PrivateMariadb, PrivatePostgresql
from .private_redis import PrivateRedis
from .sqlite_file import SqliteFile

__all__ = ["SERVERS", "Mariadb", "Memcached", "Postgresql", "Redis", "Sqlite", "executable"]

# Every memcached counts these; one command increments exactly one of them. Checked on 1.6.18: the
# meta commands go into the classic counters (`ms` cmd_set, `mg` cmd_get or with T cmd_touch, `md`
# delete_*, `ma` incr_* or decr_*), and cmd_meta is `me` alone. Not counted anywhere: `mn`, and an
# `ma` that creates its counter, which a list does once.
COMMAND_COUNTERS = (
    "cmd_get",
    "cmd_set",
    "cmd_touch",
    "cmd_flush",
    "cmd_meta",
    "delete_hits",
    "delete_misses",
    "incr_hits",
    "incr_misses",
    "decr_hits",
    "decr_misses",
)

# Enough memory for all keys of a batch run: evictions would slow the faster contender more.
FLAGS = ("-t", "1", "-m", "1024")


class Memcached(PrivateMemcached):
    """One memcached with one worker thread on one core."""

    def __init__(self, core: int) -> None:
        super().__init__(FLAGS, wrapper=_on(core))

    def url_at(self, port: int) -> str:
        """Return the URL by another port of loopback."""
        return f"memcached://127.0.0.1:{port}"

    def commands(self) -> int:
        """Return the number of commands on items so far."""
        stats = self.stats()
        return sum(int(stats.get(counter, 0)) for counter in COMMAND_COUNTERS)


class Redis(PrivateRedis):
    """One redis-server, which runs all commands in one thread, on one core."""

    def __init__(self, core: int) -> None:
        super().__init__(wrapper=_on(core))


class Postgresql(PrivatePostgresql):
    """One PostgreSQL with all its processes on one core."""

    def __init__(self, core: int) -> None:
        super().__init__(wrapper=_on(core))


class Mariadb(PrivateMariadb):
    """One MariaDB with all its threads on one core."""

    def __init__(self, core: int) -> None:
        super().__init__(wrapper=_on(core))


class Sqlite(SqliteFile):
    """A file instead of a server."""

    def __init__(self, _core: int) -> None:
        super().__init__()


def _on(core: int) -> tuple[str, ...]:
    return ("taskset", "-c", str(core))


SERVERS = {
    "mariadb": Mariadb,
    "memcached": Memcached,
    "postgresql": Postgresql,
    "redis": Redis,
    "sqlite": Sqlite,
}
