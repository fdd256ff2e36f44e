"""A private memcached on a free loopback port, for the benchmarks and the demo."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence

START_TRIES = 5
START_LIMIT_S = 60.0


def executable() -> str | None:
    """Where memcached is, also when /usr/sbin and the like are not on a user's PATH."""
    path = os.environ.get("PATH", os.defpath)
    return shutil.which("memcached", path=f"{path}:/usr/local/bin:/usr/bin:/usr/sbin")


class PrivateMemcached:
    """A memcached that answers on `port` until the `with` statement ends, or `close`."""

    def __init__(self, flags: Sequence[str], wrapper: Sequence[str] = ()) -> None:
        """`wrapper` is a program that becomes memcached, such as taskset, with its arguments."""
        command = [*wrapper, executable() or "memcached", *flags, "-l", "127.0.0.1", "-U", "0"]
        command += ["-u", "nobody"] if os.geteuid() == 0 else []
        # A port that was free a moment ago may be taken by the time the server binds it.
        for _ in range(START_TRIES):
            self.port = _free_port()
            self._process = subprocess.Popen(
                [*command, "-p", str(self.port)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            if self._wait_until_it_is_ours():
                return
            self.close()
        raise OSError(f"memcached would not start: {' '.join(command)}")

    @property
    def url(self) -> str:
        """What clients connect to."""
        return f"memcached://127.0.0.1:{self.port}"

    @property
    def patient_url(self) -> str:
        """The same for clients on a machine that may be busy: a late reply is no failure."""
        return f"{self.url}?io_timeout=20s"

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

    def __enter__(self) -> PrivateMemcached:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_until_it_is_ours(self) -> bool:
        limit = time.monotonic() + START_LIMIT_S
        while time.monotonic() < limit and self._process.poll() is None:
            try:
                # Somebody else's server may have got the port.
                return int(self.stats()["pid"]) == self._process.pid
            except OSError:
                time.sleep(0.005)
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
