"""Database servers of our own: PostgreSQL and MariaDB on loopback ports."""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pymysql
from support import USER, Server

PROGRAMS = ":".join(
    [os.environ.get("PATH", os.defpath), "/usr/sbin", *glob.glob("/usr/lib/postgresql/*/bin")]
)


class Database(Server):
    """A server in a directory of its own. `store_url` is for memlock, `url` for SQLAlchemy."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="memlock-database-"))
        if USER:
            owner = pwd.getpwnam(USER)
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
        self.log = (self.folder / "log").open("ab")
        environment = {**os.environ, "PATH": PROGRAMS, "TMPDIR": str(self.folder)}
        self.settings: dict[str, Any] = {
            "cwd": self.folder, "env": environment, "stdout": self.log, "stderr": self.log,
        }  # fmt: skip

    def install(self, *command: str) -> None:
        words = self.program(*command)
        done = subprocess.run(
            words, user=USER, stdin=subprocess.DEVNULL, check=False, **self.settings
        )
        assert done.returncode == 0, (self.folder / "log").read_text()

    def start(self, *command: str, answers: Callable[[], object]) -> None:
        def is_up() -> bool:
            with contextlib.suppress(psycopg.Error):
                answers()
                return True
            return False

        try:
            self.launch(*self.program(*command), answers=is_up, **self.settings)
        except AssertionError as error:
            raise AssertionError((self.folder / "log").read_text()) from error

    def program(self, name: str, *arguments: str) -> list[str]:
        program = shutil.which(name, path=PROGRAMS)
        assert program, f"{name} is not installed"
        return [program, *arguments]

    def close(self) -> None:
        if self.process is not None:
            # An immediate shutdown of PostgreSQL, which ends its children too; MariaDB has none.
            self.process.send_signal(signal.SIGQUIT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        super().close()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Sqlite:
    """A file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "work.db"
        self.store_url = f"sqlite://{self.path}?io_timeout=20s"
        self.url = f"sqlite:///{self.path}"

    def connect(self, autocommit: bool = False) -> sqlite3.Connection:
        options: dict[str, Any] = {"isolation_level": None} if autocommit else {}
        return sqlite3.connect(self.path, 20, check_same_thread=False, **options)


class Postgres(Database):
    """A PostgreSQL that does not wait for the disk."""

    def __init__(self) -> None:
        super().__init__()
        place = f"test@127.0.0.1:{self.port}/postgres"
        self.store_url = f"postgresql://{place}?io_timeout=20s"
        self.url = f"postgresql+psycopg://{place}"
        self.dsn = f"host=127.0.0.1 port={self.port} user=test dbname=postgres connect_timeout=20"
        self.for_django = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "postgres",
            "USER": "test",
            "HOST": "127.0.0.1",
            "PORT": str(self.port),
        }
        data = str(self.folder / "data")
        # Without passwords, and with no locale of this machine.
        self.install(
            "initdb", "-D", data, "-A", "trust", "-U", "test", "--no-sync", "--locale=C",
            "-E", "UTF8",
        )  # fmt: skip
        settings = ["listen_addresses=127.0.0.1", "fsync=off", "synchronous_commit=off"]
        settings += ["unix_socket_directories=", "max_prepared_transactions=5"]
        # In its files, so that nothing is left of a server that was killed.
        settings += ["dynamic_shared_memory_type=mmap"]
        options = [word for setting in settings for word in ("-c", setting)]
        self.start(
            "postgres", "-D", data, "-p", str(self.port), *options,
            answers=lambda: self.connect().close(),
        )  # fmt: skip

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn, **options)


class MariaDb(Database):
    """A MariaDB that does not wait for the disk."""

    def __init__(self) -> None:
        super().__init__()
        self.socket = str(self.folder / "socket")
        self.store_url = f"mysql://root@localhost/work?socket={self.socket}&io_timeout=20s"
        self.url = f"mysql+pymysql://root@localhost/work?unix_socket={self.socket}"
        data = f"--datadir={self.folder / 'data'}"
        shared = ["--no-defaults", data, "--innodb-log-file-size=8M"]
        self.install(
            "mariadb-install-db", *shared, "--auth-root-authentication-method=normal",
            "--skip-test-db", "--skip-name-resolve",
        )  # fmt: skip
        self.start(
            "mariadbd", *shared, f"--port={self.port}", "--bind-address=127.0.0.1",
            f"--socket={self.socket}", "--skip-name-resolve",
            "--innodb-flush-log-at-trx-commit=0",
            answers=self.greets,
        )  # fmt: skip
        with self.connect(database=None) as connection:
            connection.cursor().execute("CREATE DATABASE work")

    def greets(self) -> None:
        with socket.socket(socket.AF_UNIX) as plain:
            plain.connect(self.socket)
            plain.recv(1)

    def connect(self, database: str | None = "work", **options: Any) -> Any:
        # From this address, root needs no password only by the socket.
        return pymysql.connect(unix_socket=self.socket, user="root", database=database, **options)
