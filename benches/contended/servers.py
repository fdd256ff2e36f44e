"""The servers for contention, with their default threads and on any core; or files."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import NamedTuple

from harness import server
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
        self.address = str(self.port)

    def used(self) -> Used:
        """Return the number of commands on items, and processor time."""
        stats = self.stats()
        commands = sum(int(stats.get(counter, 0)) for counter in server.COMMAND_COUNTERS)
        cpu_s = float(stats["rusage_user"]) + float(stats["rusage_system"])
        refused = int(stats["cas_badval"])
        return Used(commands, cpu_s, int(stats["cas_hits"]) + refused, refused)


class Redis(PrivateRedis):
    """A private redis-server."""

    def __init__(self) -> None:
        super().__init__()
        self.address = str(self.port)

    def used(self) -> Used:
        """Return the number of commands, with scripts' and without the harness's; and CPU time."""
        commands, info = self.commands(), self.info()
        return Used(commands, float(info["used_cpu_user"]) + float(info["used_cpu_sys"]))


class File(SqliteFile):
    """A file without a server: for SQLite, or to be locked."""

    def used(self) -> Used:
        """Return no work: the processes do it all."""
        return Used(0, 0.0)


SERVERS = {"memcached": Memcached, "redis": Redis, "file": File}


def versions() -> str:
    """Return the versions of the servers."""
    commands = ([server.executable() or "memcached", "-V"], ["redis-server", "--version"])
    said = []
    for command in commands:
        if shutil.which(command[0]) or os.path.exists(command[0]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            said.append(" ".join(done.stdout.split()[:3]))
    return ", ".join(said)
