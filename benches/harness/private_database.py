"""Private servers of SQL databases, each with an empty database.

A server runs on a copy of a data directory, which is created once; and not as root, which both
PostgreSQL and MariaDB refuse.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

START_TRIES = 5
START_LIMIT_S = 60.0

SERVER_USER = "nobody" if os.geteuid() == 0 else None
USER = "memlock"
DATABASE = "bench"

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class PrivateDatabase:
    """A server that answers until `close`, at `port` of loopback and at a socket in `folder`."""

    END = signal.SIGKILL

    def __init__(self, wrapper: Sequence[str] = ()) -> None:
        """`wrapper` is a program that becomes the server, such as taskset, with its arguments."""
        self._holder = _folder()
        self.folder = Path(self._holder.name)
        subprocess.run(["cp", "-a", self._template() / "data", self.folder / "data"], check=True)
        with open(self.folder / "log", "wb") as log:
            for _ in range(START_TRIES):
                self.port = _free_port()
                self._process = subprocess.Popen(
                    [*wrapper, *self._command()],
                    stdout=log,
                    stderr=log,
                    **_of_server_user(),
                )
                if self._wait_until_it_answers():
                    self._create_database()
                    return
                self._end()
        said = (self.folder / "log").read_text(errors="replace").strip().splitlines()[-5:]
        self._holder.cleanup()
        raise OSError("\n".join([f"{self._command()[0]} would not start", *said]))

    def ask(self, statement: str) -> str:
        """Run a statement as the server's administrator, and return what it says as text."""
        done = subprocess.run(
            [*self._client(), statement], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise OSError(f"{statement}: {done.stderr.strip()}")
        return done.stdout.strip()

    def cpu_s(self) -> float:
        """Return the processor time of the server and its processes, also of those that ended."""
        pid, ticks = self._process.pid, 0
        for path in glob.glob("/proc/[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has ended
                words = Path(path).read_text(encoding="utf-8").rpartition(")")[2].split()
                its_pid, parent = int(path.split("/")[2]), int(words[1])
                if its_pid == pid:
                    ticks += sum(map(int, words[11:15]))
                elif parent == pid:
                    ticks += sum(map(int, words[11:13]))
        return ticks / TICKS_PER_S

    def close(self) -> None:
        """End the server."""
        self._end()
        self._holder.cleanup()

    def _end(self) -> None:
        self._process.send_signal(self.END)
        self._process.wait()

    def _wait_until_it_answers(self) -> bool:
        limit = time.monotonic() + START_LIMIT_S
        while time.monotonic() < limit and self._process.poll() is None:
            # By its socket, which is in its own directory. If the port is taken, the server ends.
            with contextlib.suppress(OSError):
                self.ask("SELECT 1")
                return True
            time.sleep(0.02)
        return False

    @classmethod
    @functools.cache
    def _template(cls) -> Path:
        folder = _folder()
        command = cls._install(Path(folder.name) / "data")
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, **_of_server_user()
        )
        if done.returncode != 0:
            raise OSError(f"{command[0]}: {done.stderr.strip() or done.stdout.strip()}")
        _TEMPLATES.append(folder)  # removed at exit
        return Path(folder.name)

    @classmethod
    def _install(cls, data: Path) -> list[str]:
        """Return the command that creates the data directory."""
        raise NotImplementedError

    def _command(self) -> list[str]:
        """Return the command that starts the server."""
        raise NotImplementedError

    def _client(self) -> list[str]:
        """Return the command that runs a statement, without the statement."""
        raise NotImplementedError

    def _create_database(self) -> None:
        """Create an empty database, which USER can use."""
        raise NotImplementedError


class PrivatePostgresql(PrivateDatabase):
    """PostgreSQL, with its default settings."""

    END = signal.SIGQUIT  # at once, with all its processes
    OPTIONS: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """The URL by its socket."""
        return f"postgresql://{USER}@/{DATABASE}?host={self.folder}&port={self.port}"

    def url_at(self, port: int) -> str:
        """Return the URL by a port of loopback."""
        return f"postgresql://{USER}@127.0.0.1:{port}/{DATABASE}"

    def commands(self) -> int:
        """Return the number of statements of sessions that have ended, each a transaction."""
        # A session reports its transactions when it ends, and once a second if it is idle.
        self._wait_for_sessions()
        return int(
            self.ask(f"SELECT xact_commit FROM pg_stat_database WHERE datname = '{DATABASE}'")
        )

    def _wait_for_sessions(self) -> None:
        limit = time.monotonic() + START_LIMIT_S
        busy = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{DATABASE}'"
        while time.monotonic() < limit and self.ask(busy) != "0":
            time.sleep(0.01)

    @classmethod
    def _install(cls, data: Path) -> list[str]:
        text = ["--no-locale", "--encoding=UTF8"]
        return [program("initdb"), "-D", str(data), "-U", USER, "-A", "trust", "--no-sync", *text]

    def _command(self) -> list[str]:
        sockets = ["-k", str(self.folder), "-p", str(self.port), "-c", "listen_addresses=127.0.0.1"]
        return [program("postgres"), "-D", str(self.folder / "data"), *sockets, *self.OPTIONS]

    def _client(self) -> list[str]:
        place = ["-h", str(self.folder), "-p", str(self.port), "-U", USER, "-d", "postgres"]
        return [program("psql"), *place, "-X", "-A", "-t", "-c"]

    def _create_database(self) -> None:
        self.ask(f"CREATE DATABASE {DATABASE}")


class PrivateMariadb(PrivateDatabase):
    """MariaDB, with its default settings, but without waiting for the disk at each commit."""

    OPTIONS = ("--innodb-flush-log-at-trx-commit=0",)

    @property
    def url(self) -> str:
        """The URL by its socket."""
        return f"mariadb://{USER}@localhost/{DATABASE}?socket={self.folder}/socket"

    def url_at(self, port: int) -> str:
        """Return the URL by a port of loopback."""
        return f"mariadb://{USER}@127.0.0.1:{port}/{DATABASE}"

    def commands(self) -> int:
        """Return the number of statements, with the harness's."""
        return int(self.ask("SHOW GLOBAL STATUS LIKE 'Questions'").split()[1])

    @classmethod
    def _install(cls, data: Path) -> list[str]:
        options = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        return [program("mariadb-install-db"), "--no-defaults", f"--datadir={data}", *options]

    def _command(self) -> list[str]:
        places = [f"--datadir={self.folder}/data", f"--socket={self.folder}/socket"]
        network = [f"--port={self.port}", "--bind-address=127.0.0.1"]
        return [program("mariadbd"), "--no-defaults", *places, *network, *self.OPTIONS]

    def _client(self) -> list[str]:
        place = [f"--socket={self.folder}/socket", "--user=root"]
        return [program("mariadb"), "--no-defaults", *place, "--batch", "-N", "-e"]

    def _create_database(self) -> None:
        self.ask(
            f"CREATE DATABASE {DATABASE}; CREATE USER {USER}; GRANT ALL ON {DATABASE}.* TO {USER}"
        )


_TEMPLATES: list[tempfile.TemporaryDirectory[str]] = []

# Where Debian has what is not for users.
FOLDERS = (*sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True), "/usr/sbin")


def program(name: str) -> str | None:
    """Return the path of a database's program, or None."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), *FOLDERS)))


def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return a directory of SERVER_USER, with a short path, as a socket's has to be."""
    folder = tempfile.TemporaryDirectory(prefix="database-")
    if SERVER_USER is not None:
        shutil.chown(folder.name, SERVER_USER)
    return folder


def _of_server_user() -> dict[str, object]:
    return {"user": SERVER_USER, "extra_groups": []} if SERVER_USER else {}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
