"""A private redis-server on a free loopback port."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence

START_TRIES = 5
START_LIMIT_S = 60.0


class PrivateRedis:
    """A redis-server that answers on `port` until `close`, and keeps nothing on disk."""

    def __init__(self, wrapper: Sequence[str] = ()) -> None:
        """`wrapper` is a program that becomes redis-server, such as taskset, with its arguments."""
        self._folder = tempfile.TemporaryDirectory(prefix="redis-")
        self._own_commands = 0
        for _ in range(START_TRIES):
            self.port = _free_port()
            command = [*wrapper, "redis-server", "--port", str(self.port), "--bind", "127.0.0.1"]
            command += ["--save", "", "--appendonly", "no", "--dir", self._folder.name]
            self._process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            if self._wait_until_it_is_ours():
                return
            self._end()
        self._folder.cleanup()
        raise OSError(f"redis-server would not start: {' '.join(command)}")

    @property
    def url(self) -> str:
        """What clients connect to."""
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        """Return the URL by another port of loopback."""
        return f"redis://127.0.0.1:{port}"

    def info(self) -> dict[str, str]:
        """Return the server's reply to `INFO`."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(b"INFO\r\n")
            with connection.makefile("rb") as answer:
                length = answer.readline()
                if not length.startswith(b"$"):
                    raise ConnectionError(f"redis-server answered INFO with {length!r}")
                text = answer.read(int(length[1:])).decode()
        self._own_commands += 1  # counted by the server when it has answered
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def commands(self) -> int:
        """Return the number of commands without the harness's, with those of scripts."""
        own = self._own_commands
        return int(self.info()["total_commands_processed"]) - own

    def close(self) -> None:
        """End the server."""
        self._end()
        self._folder.cleanup()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _wait_until_it_is_ours(self) -> bool:
        limit = time.monotonic() + START_LIMIT_S
        while time.monotonic() < limit and self._process.poll() is None:
            try:
                # Another server may have taken the port.
                return int(self.info()["process_id"]) == self._process.pid
            except OSError:
                time.sleep(0.005)
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
