"""The servers of the contenders, or files: their URLs, and their numbers of commands."""

from __future__ import annotations

import atexit
import os
import signal
import socket
import time
from typing import ClassVar

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


# How many servers a quorum has, and its guard, as in pairs.h.
QUORUM = 3
QUORUM_GUARD_S = 4
# As in pairs.h. The uptime begins at 2 s, and may be a second ahead.
GUARD_S = 2
RECOVERED_S = GUARD_S + 4


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


class GuardedMemcached(Memcached):
    """The same, whose clients agree on a guard, and which has recovered."""

    def __init__(self, core: int) -> None:
        super().__init__(core)
        while int(self.stats()["uptime"]) < RECOVERED_S:
            time.sleep(0.1)

    def url_at(self, port: int) -> str:
        """Return the URL by another port of loopback."""
        return f"{super().url_at(port)}?guard={GUARD_S}s"

    @property
    def url(self) -> str:
        """What clients connect to."""
        return self.url_at(self.port)


class Quorum:
    """Three memcacheds of which a majority decides. All runs share them: they start slowly.

    Commands are those of all three; round trips are counted at the first.
    """

    _running: ClassVar[list[_Member]] = []
    _pids: ClassVar[list[int]] = []
    _is_hung = False

    def __init__(self, core: int) -> None:
        if not self._running:
            self._running.extend(_Member(core) for _ in range(QUORUM))
            for member in self._running:
                atexit.register(member.close)
                while int(member.stats()["uptime"]) < QUORUM_GUARD_S + 4:
                    time.sleep(0.1)
        if self._is_hung:
            os.kill(self._last(), signal.SIGSTOP)
        self.port = self._running[0].port

    def close(self) -> None:
        """Leave them running."""
        os.kill(self._last(), signal.SIGCONT)

    def _last(self) -> int:
        if not self._pids:
            self._pids.extend(int(member.stats()["pid"]) for member in self._running)
        return self._pids[-1]

    def _up(self) -> list[_Member]:
        return self._running[:-1] if self._is_hung else self._running

    def url_at(self, port: int) -> str:
        """Return the URL with another port of loopback for the first."""
        # What they agree on names the members, which have other names by a relay.
        ports = [port, *(member.port for member in self._running[1:])]
        for member in self._up():
            member.forget("memlock%config")
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"memcached://{hosts}?quorum=majority&guard={QUORUM_GUARD_S}s"

    @property
    def url(self) -> str:
        """What clients connect to."""
        return self.url_at(self.port)

    def commands(self) -> int:
        """Return the number of commands on items so far."""
        return sum(member.commands() for member in self._up())


class HungQuorum(Quorum):
    """The same, of which one hangs."""

    _is_hung = True


class _Member(Memcached):
    def __init__(self, core: int) -> None:
        PrivateMemcached.__init__(self, (*FLAGS, "-M", "-F"), wrapper=_on(core))

    def forget(self, key: str) -> None:
        """Delete an item."""
        with socket.create_connection(("127.0.0.1", self.port)) as plain:
            plain.sendall(f"delete {key}\r\n".encode())
            plain.recv(64)


class ThreeRedis:
    """Three redis-servers, each as below."""

    def __init__(self, core: int) -> None:
        self._all = [Redis(core) for _ in range(QUORUM)]
        self.port = self._all[0].port

    def close(self) -> None:
        """Stop them."""
        for one in self._all:
            one.close()

    def url_at(self, port: int) -> str:
        """Return their ports, with another one for the first."""
        ports = [port, *(one.port for one in self._all[1:])]
        return "redis://" + ",".join(f"127.0.0.1:{port}" for port in ports)

    @property
    def url(self) -> str:
        """What clients connect to."""
        return self.url_at(self.port)

    def commands(self) -> int:
        """Return the number of commands so far."""
        return sum(one.commands() for one in self._all)


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
    "guarded": GuardedMemcached,
    "memcached": Memcached,
    "hung": HungQuorum,
    "postgresql": Postgresql,
    "quorum": Quorum,
    "redis": Redis,
    "three redis": ThreeRedis,
    "sqlite": Sqlite,
}
