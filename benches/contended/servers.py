"""The servers for contention, with their default threads and on any core; or files."""

from __future__ import annotations

from typing import NamedTuple

from harness import server
from harness.private_database import DATABASE, PrivateMariadb, PrivatePostgresql
from harness.private_redis import PrivateRedis
from harness.sqlite_file import SqliteFile
from private_memcached import PrivateMemcached


class Used(NamedTuple):
    """The work of a server since its start."""

    commands: int
    cpu_s: float
    # For memcached: compare-and-swaps, and those of them that came too late.
    swaps: int = 0
    refused: int = 0


class Memcached(PrivateMemcached):
    """A private memcached."""

    def __init__(self) -> None:
        # Enough connections for all threads.
        super().__init__(("-c", "8192"))

    def used(self) -> Used:
        """Return the number of commands on items, and processor time."""
        stats = self.stats()
        commands = sum(int(stats.get(counter, 0)) for counter in server.COMMAND_COUNTERS)
        cpu_s = float(stats["rusage_user"]) + float(stats["rusage_system"])
        refused = int(stats["cas_badval"])
        return Used(commands, cpu_s, int(stats["cas_hits"]) + refused, refused)


class Redis(PrivateRedis):
    """A private redis-server."""

    def used(self) -> Used:
        """Return the number of commands, with scripts' and without the harness's; and CPU time."""
        commands, info = self.commands(), self.info()
        return Used(commands, float(info["used_cpu_user"]) + float(info["used_cpu_sys"]))


class Postgresql(PrivatePostgresql):
    """A private PostgreSQL, which counts statements as they end."""

    OPTIONS = ("-c", "shared_preload_libraries=pg_stat_statements")
    COUNT = f"""
        SELECT coalesce(sum(calls), 0) FROM pg_stat_statements
        WHERE dbid = (SELECT oid FROM pg_database WHERE datname = '{DATABASE}')
    """

    def __init__(self) -> None:
        super().__init__()
        self.ask("CREATE EXTENSION pg_stat_statements")

    def used(self) -> Used:
        """Return the number of statements, and processor time."""
        return Used(int(self.ask(self.COUNT)), self.cpu_s())


class Mariadb(PrivateMariadb):
    """A private MariaDB."""

    def used(self) -> Used:
        """Return the number of statements, with three of the harness's; and CPU time."""
        return Used(self.commands(), self.cpu_s())


class File(SqliteFile):
    """A file without a server: for SQLite, or to be locked."""

    def used(self) -> Used:
        """Return no work: the processes do it all."""
        return Used(0, 0.0)


SERVERS = {
    "file": File,
    "mariadb": Mariadb,
    "memcached": Memcached,
    "postgresql": Postgresql,
    "redis": Redis,
}
