"""The servers that are contended on, as they come: with their default threads, on any core."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from typing import NamedTuple

from harness import server
from private_memcached import PrivateMemcached

START_TRIES = 5
START_LIMIT_S = 5.0


class Used(NamedTuple):
    """What a server has done since it started."""

    commands: int
    cpu_s: float


class Memcached(PrivateMemcached):
    """A private memcached."""

    def __init__(self) -> None:
        super().__init__(())

    def used(self) -> Used:
        """Commands on items, and processor time."""
        stats = self.stats()
        commands = sum(int(stats.get(counter, 0)) for counter in server.COMMAND_COUNTERS)
        return Used(commands, float(stats["rusage_user"]) + float(stats["rusage_system"]))


class Redis:
    """A private redis-server that keeps nothing on disk."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="redis-")
        self._own_commands = 0
        for _ in range(START_TRIES):
            self.port = _free_port()
            command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1"]
            command += ["--save", "", "--appendonly", "no", "--dir", self._folder.name]
            self._process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            if self._wait_until_it_is_ours():
                return
            self._end()
        self._folder.cleanup()
        raise OSError(f"redis-server would not start: {' '.join(command)}")

    def used(self) -> Used:
        """Commands but ours, those that scripts call included; and processor time."""
        own, info = self._own_commands, self._info()
        commands = int(info["total_commands_processed"]) - own
        return Used(commands, float(info["used_cpu_user"]) + float(info["used_cpu_sys"]))

    def close(self) -> None:
        """End the server."""
        self._end()
        self._folder.cleanup()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _info(self) -> dict[str, str]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(b"INFO\r\n")
            with connection.makefile("rb") as answer:
                length = answer.readline()
                if not length.startswith(b"$"):
                    raise ConnectionError(f"redis-server answered INFO with {length!r}")
                text = answer.read(int(length[1:])).decode()
        self._own_commands += 1  # counted by the server when it has answered
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def _wait_until_it_is_ours(self) -> bool:
        limit = time.monotonic() + START_LIMIT_S
        while time.monotonic() < limit and self._process.poll() is None:
            try:
                # Somebody else's server may have got the port.
                return int(self._info()["process_id"]) == self._process.pid
            except OSError:
                time.sleep(0.005)
        return False


SERVERS = {"memcached": Memcached, "redis": Redis}


def versions() -> str:
    """Which servers these are."""
    commands = ([server.executable() or "memcached", "-V"], ["redis-server", "--version"])
    said = []
    for command in commands:
        if shutil.which(command[0]) or os.path.exists(command[0]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            said.append(" ".join(done.stdout.split()[:3]))
    return ", ".join(said)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
