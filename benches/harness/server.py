"""A private memcached on a free loopback port."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time

# Every memcached counts these; one command bumps exactly one of them. Checked on 1.6.18: the meta
# commands go into the classic counters (`ms` cmd_set, `mg` cmd_get or with T cmd_touch, `md`
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

START_TRIES = 5
START_LIMIT_S = 5.0


def executable() -> str | None:
    """Where memcached is, also when /usr/sbin and the like are not on a user's PATH."""
    path = os.environ.get("PATH", os.defpath)
    return shutil.which("memcached", path=f"{path}:/usr/local/bin:/usr/bin:/usr/sbin")


class Server:
    """One memcached with one worker thread, which answers on `port` until `close`."""

    def __init__(self, core: int) -> None:
        self._core = core
        # A port that was free a moment ago may be taken by the time the server binds it.
        for _ in range(START_TRIES):
            self.port = _free_port()
            self._process = subprocess.Popen(
                self._command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            if self._wait_until_it_is_ours():
                return
            self.close()
        raise RuntimeError(f"memcached would not start: {' '.join(self._command())}")

    def commands(self) -> int:
        """How many commands on items the server has run so far."""
        stats = self.stats()
        return sum(int(stats.get(counter, 0)) for counter in COMMAND_COUNTERS)

    def stats(self) -> dict[str, str]:
        """What the server says to `stats`."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(b"stats\r\n")
            answer = b""
            while not answer.endswith(b"END\r\n"):
                more = connection.recv(65536)
                if not more:
                    raise ConnectionError("the server hung up on `stats`")
                answer += more
        lines = (line.split(" ", 2) for line in answer.decode().splitlines())
        return {line[1]: line[2] for line in lines if line[0] == "STAT"}

    def close(self) -> None:
        """End the server: by a kill, since an orderly end takes a second and saves nothing."""
        self._process.kill()
        self._process.wait()

    def _command(self) -> list[str]:
        command = ["taskset", "-c", str(self._core), executable() or "memcached"]
        command += ["-t", "1", "-l", "127.0.0.1", "-p", str(self.port), "-U", "0"]
        # Room for all keys of a batch run: evictions would slow the faster contender more.
        command += ["-m", "1024"]
        return command + (["-u", "nobody"] if os.geteuid() == 0 else [])

    def _wait_until_it_is_ours(self) -> bool:
        limit = time.monotonic() + START_LIMIT_S
        while time.monotonic() < limit and self._process.poll() is None:
            try:
                # taskset becomes memcached, so the process ids must agree; else somebody else's
                # server got the port.
                return int(self.stats()["pid"]) == self._process.pid
            except OSError:
                time.sleep(0.005)
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
