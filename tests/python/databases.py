"""Database servers of our own: PostgreSQL and MariaDB on loopback ports."""

from __future__ import annotations

import ctypes
import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pymysql
from support import PR_SET_PDEATHSIG, eventually

PROGRAMS = ":".join(
    [os.environ.get("PATH", os.defpath), "/usr/sbin", *glob.glob("/usr/lib/postgresql/*/bin")]
)
USER = "nobody" if os.geteuid() == 0 else None


class Database:
    """A server in a directory of its own, run by a user that is not root."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="memlock-database-"))
        if USER:
            owner = pwd.getpwnam(USER)
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
        self.log = (self.folder / "log").open("ab")
        # Bound but not listening: the server may bind beside it, and nobody else gets the port.
        self.reserved = socket.socket()
        self.reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.reserved.bind(("127.0.0.1", 0))
        self.port: int = self.reserved.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    def install(self, *command: str) -> None:
        done = subprocess.run(self._options(command), **self._settings(), check=False)
        assert done.returncode == 0, (self.folder / "log").read_text()

    def start(self, *command: str, answers: Callable[[], object]) -> None:
        libc = ctypes.CDLL(None)
        self.process = subprocess.Popen(
            self._options(command),
            **self._settings(),
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509
        )
        eventually(lambda: self.answers(answers), limit=60)

    def answers(self, call: Callable[[], object]) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "log").read_text()
        try:
            call()
        except (psycopg.Error, OSError):
            return False
        return True

    def _options(self, command: tuple[str, ...]) -> list[str]:
        program = shutil.which(command[0], path=PROGRAMS)
        assert program, f"{command[0]} is not installed"
        return [program, *command[1:]]

    def _settings(self) -> dict[str, Any]:
        environment = {**os.environ, "PATH": PROGRAMS, "TMPDIR": str(self.folder)}
        return {
            "user": USER,
            "cwd": self.folder,
            "env": environment,
            "stdin": subprocess.DEVNULL,
            "stdout": self.log,
            "stderr": self.log,
        }

    def close(self) -> None:
        if self.process is not None:
            # An immediate shutdown of PostgreSQL, which ends its children too; MariaDB has none.
            self.process.send_signal(signal.SIGQUIT)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.reserved.close()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Postgres(Database):
    """A PostgreSQL that does not wait for the disk."""

    def __init__(self) -> None:
        super().__init__()
        data = str(self.folder / "data")
        # An empty password file and no locale of this machine.
        self.install(
            "initdb",
            "-D",
            data,
            "-A",
            "trust",
            "-U",
            "test",
            "--no-sync",
            "--locale=C",
            "-E",
            "UTF8",
        )
        settings = ["listen_addresses=127.0.0.1", "fsync=off", "synchronous_commit=off"]
        settings += ["unix_socket_directories=", "max_prepared_transactions=5"]
        # In its files, so that nothing is left of a server that was killed.
        settings += ["dynamic_shared_memory_type=mmap"]
        options = [word for setting in settings for word in ("-c", setting)]
        self.start(
            "postgres", "-D", data, "-p", str(self.port), *options,
            answers=lambda: self.connect().close(),
        )  # fmt: skip

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=test dbname=postgres connect_timeout=5"

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn, **options)

    @property
    def store_url(self) -> str:
        """For memlock."""
        return f"postgresql://test@127.0.0.1:{self.port}/postgres"

    @property
    def url(self) -> str:
        """For SQLAlchemy."""
        return f"postgresql+psycopg://test@127.0.0.1:{self.port}/postgres"

    @property
    def for_django(self) -> dict[str, Any]:
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "postgres",
            "USER": "test",
            "HOST": "127.0.0.1",
            "PORT": str(self.port),
        }


class MariaDb(Database):
    """A MariaDB that does not wait for the disk."""

    def __init__(self) -> None:
        super().__init__()
        data = f"--datadir={self.folder / 'data'}"
        shared = ["--no-defaults", data, "--innodb-log-file-size=8M"]
        self.install(
            "mariadb-install-db", *shared, "--auth-root-authentication-method=normal",
            "--skip-test-db", "--skip-name-resolve",
        )  # fmt: skip
        self.start(
            "mariadbd", *shared, f"--port={self.port}", "--bind-address=127.0.0.1",
            f"--socket={self.folder / 'socket'}", "--skip-name-resolve",
            "--innodb-flush-log-at-trx-commit=0",
            answers=self.greets,
        )  # fmt: skip
        with self.connect(database=None) as connection:
            connection.cursor().execute("CREATE DATABASE work")

    def greets(self) -> None:
        with socket.socket(socket.AF_UNIX) as plain:
            plain.connect(str(self.folder / "socket"))
            plain.recv(1)

    def connect(self, database: str | None = "work", **options: Any) -> Any:
        # From this address, root needs no password only by the socket.
        return pymysql.connect(
            unix_socket=str(self.folder / "socket"), user="root", database=database, **options
        )

    @property
    def url(self) -> str:
        """For SQLAlchemy."""
        return f"mysql+pymysql://root@localhost/work?unix_socket={self.folder / 'socket'}"
