"""The contenders: requirements, build and start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from . import private_database, server

ROOT = Path(__file__).resolve().parents[2]
BENCHES = ROOT / "benches"
HEADER = ROOT / "include" / "memlock.h"
LIBRARIES = ROOT / "target" / "release"
BUILT = ROOT / "target" / "bench"

PYTHON = os.environ.get("PYTHON", sys.executable)
CC = os.environ.get("CC", "cc")


@dataclass(frozen=True)
class Contender:
    """A program to measure; its command takes a server's URL and a limit."""

    name: str
    command: tuple[str, ...]
    server: str = "memcached"

    @property
    def program(self) -> str:
        """The file that is run: one of the C or Rust programs, or Python."""
        return self.command[0]


@dataclass(frozen=True)
class Section:
    """Contenders that are compared with the first of them."""

    key: str
    title: str
    unit: str
    contenders: tuple[Contender, ...]
    # The unit for which round trips are counted: a pair, or a batch of so many units.
    step: str = "pair"
    units_per_step: int = 1
    # Whether there is a server, whose commands and round trips are counted.
    counted: bool = True
    # Whether system calls are counted too.
    traced: bool = False

    @property
    def floor(self) -> str:
        """The contender that the others are compared with."""
        return self.contenders[0].name


# Each program is made of pairs.c and one file, with these flags.
C_PROGRAMS = {
    "memcached": ("-lmemcached",),
    "quorum": (),
    "semaphores": (),
    "redis": (),
    "postgresql": ("-I/usr/include/postgresql", "-lpq"),
    "mariadb": ("-I/usr/include/mariadb", "-lmariadb"),
}


def _c(program: str, name: str) -> tuple[str, ...]:
    return (str(BUILT / f"pairs-{program}"), name)


def _rust(name: str) -> tuple[str, ...]:
    return (str(LIBRARIES / "memlock-bench"), name)


def _python(name: str) -> tuple[str, ...]:
    return (PYTHON, str(BENCHES / "pairs.py"), name)


def _asyncio(name: str) -> tuple[str, ...]:
    return (PYTHON, str(BENCHES / "pairs_asyncio.py"), name)


def _mutex(key: str, title: str, names: str, command: Callable[[str], tuple[str, ...]]) -> Section:
    racers = (Contender(name, command(name)) for name in names.split())
    return Section(key, f"{title}: lock+unlock pairs", "pair", tuple(racers), traced=key == "c")


def _guard() -> Section:
    racers = (
        Contender("memlock", _c("memcached", "memlock")),
        Contender("with a guard", _c("memcached", "memlock-guarded"), "guarded"),
    )
    return Section("guard", "C: lock+unlock pairs without and with guard=", "pair", racers)


def _quorum() -> Section:
    racers = (
        Contender("raw", _c("quorum", "raw"), "quorum"),
        Contender("memlock", _c("quorum", "quorum"), "quorum"),
        Contender("one of three hangs", _c("quorum", "hung"), "hung"),
        Contender("memlock Python", _python("memlock-quorum"), "quorum"),
        Contender("pottery", _python("pottery"), "three redis"),
    )
    title = "quorum of three: lock+unlock pairs, from C; pottery: Redlock on three Redis, in Python"
    return Section("quorum", title, "pair", racers)


def _semaphore() -> Section:
    racers = (
        Contender("raw", _c("semaphores", "raw")),
        Contender("memlock", _c("semaphores", "semaphore")),
        Contender("memlock 10,000", _c("semaphores", "semaphore-many")),
        Contender("memlock Rust", _rust("semaphore")),
        Contender("memlock Python", _python("semaphore")),
        Contender("Redis list", _python("redis-list"), "redis"),
        Contender("py-redis-semaphore", _python("py-redis-semaphore"), "redis"),
    )
    title = "semaphore of 5 permits: acquire+release pairs, from C where no other language is said"
    return Section("semaphore", title, "pair", racers, traced=True)


def _insert_many() -> Section:
    racers = (Contender(name, _c("memcached", f"{name}-batch")) for name in ("raw", "memlock"))
    title = "insert_many: new keys in batches of 1000, from C"
    return Section("insert_many", title, "key", tuple(racers), "batch", 1000)


def _redis() -> Section:
    racers = (
        Contender("raw", _c("redis", "raw"), "redis"),
        Contender("raw, checked", _c("redis", "raw-checked"), "redis"),
        Contender("memlock", _c("redis", "memlock"), "redis"),
        Contender("memlock Rust", _rust("memlock"), "redis"),
        Contender("memlock Python", _python("memlock"), "redis"),
        Contender("redis-py", _python("redis-py"), "redis"),
        Contender("python-redis-lock", _python("python-redis-lock"), "redis"),
    )
    title = "Redis: lock+unlock pairs, from C where no language is said; the last two in Python"
    return Section("redis", title, "pair", racers, traced=True)


def _postgresql() -> Section:
    racers = (
        Contender("raw", _c("postgresql", "raw"), "postgresql"),
        Contender("raw row", _c("postgresql", "raw-row"), "postgresql"),
        Contender("memlock", _c("postgresql", "memlock"), "postgresql"),
        Contender("memlock Python", _python("memlock"), "postgresql"),
        Contender("psycopg", _python("psycopg"), "postgresql"),
    )
    title = "PostgreSQL: lock+unlock pairs by a Unix socket, raw by libpq; psycopg: advisory locks"
    return Section("postgresql", title, "pair", racers, traced=True)


def _mariadb() -> Section:
    racers = (
        Contender("raw", _c("mariadb", "raw"), "mariadb"),
        Contender("raw row", _c("mariadb", "raw-row"), "mariadb"),
        Contender("memlock", _c("mariadb", "memlock"), "mariadb"),
        Contender("memlock Python", _python("memlock"), "mariadb"),
        Contender("mysqlclient", _python("mysqlclient"), "mariadb"),
    )
    title = "MariaDB: lock+unlock pairs by a Unix socket, raw by libmariadb; mysqlclient: GET_LOCK"
    return Section("mariadb", title, "pair", racers, traced=True)


def _aio() -> Section:
    racers = (
        Contender("blocking", _python("memlock")),
        Contender("memlock.aio", _asyncio("memlock")),
        Contender("200 tasks, one lock", _asyncio("memlock-tasks")),
        Contender("redis.asyncio", _asyncio("redis"), "redis"),
    )
    title = "Python on asyncio: lock+unlock pairs of one task, and of 200; blocking: no event loop"
    return Section("asyncio", title, "pair", racers, traced=True)


def _sqlite() -> Section:
    racers = (
        Contender("raw", _rust("raw-sqlite"), "sqlite"),
        Contender("memlock", _c("memcached", "memlock"), "sqlite"),
        Contender("memlock Python", _python("memlock"), "sqlite"),
        Contender("filelock", _python("filelock"), "sqlite"),
    )
    title = (
        "SQLite: lock+unlock pairs, from C; raw from Rust, with the same SQLite; filelock: flock"
    )
    return Section("sqlite", title, "pair", racers, counted=False, traced=True)


SECTIONS = (
    _mutex("c", "C", "raw libmemcached memlock", partial(_c, "memcached")),
    _mutex("rust", "Rust", "raw memlock", _rust),
    _mutex("python", "Python", "pylibmc sherlock memlock", _python),
    _aio(),
    _guard(),
    _quorum(),
    _insert_many(),
    _semaphore(),
    _redis(),
    _postgresql(),
    _mariadb(),
    _sqlite(),
)

# The sections of a store, apart from stores that have one, which has their name.
STORES = {
    "memcached": ("c", "rust", "python", "asyncio", "guard", "quorum", "insert_many", "semaphore")
}

# The imports of pairs.py.
MODULES = (
    "MySQLdb",
    "filelock",
    "memlock",
    "pottery",
    "psycopg",
    "pylibmc",
    "pymemcache",
    "redis",
    "redis_lock",
    "redis_semaphore",
    "sherlock",
)


def _c_programs(sections: Sequence[Section]) -> list[str]:
    used = {contender.program for section in sections for contender in section.contenders}
    return [name for name in C_PROGRAMS if str(BUILT / f"pairs-{name}") in used]


def _uses(sections: Sequence[Section], program: str) -> bool:
    return any(it.program == program for section in sections for it in section.contenders)


def missing(sections: Sequence[Section]) -> list[str]:
    """Return a sentence for each missing requirement of these sections."""
    servers = {contender.server for section in sections for contender in section.contenders}
    wants = missing_servers(servers)
    if shutil.which("taskset") is None:
        wants.append("taskset is not installed: package `util-linux`")
    if programs := _c_programs(sections):
        wants += _missing_for_c(programs)
    if _uses(sections, _rust("")[0]) and shutil.which("cargo") is None:
        wants.append("cargo is not installed: see https://rustup.rs")
    if _uses(sections, PYTHON):
        for module in MODULES:
            # Import the module: a package whose shared library is missing is not installed.
            tried = _run([PYTHON, "-c", f"import {module}"])
            if tried.returncode != 0:
                # memlock comes from this tree, never from a package index.
                source = ROOT / "memlock-py" if module == "memlock" else module
                said = (tried.stderr.splitlines() or ["no reason given"])[-1]
                remedy = f"`{PYTHON} -m pip install {source}`"
                wants.append(f"Python module `{module}` is not installed ({said}): {remedy}")
    return wants


def missing_servers(servers: Collection[str]) -> list[str]:
    """Return a sentence for each of these servers that is not installed."""
    executables = {
        "mariadb": (private_database.program("mariadbd"), "mariadb-server"),
        "memcached": (server.executable(), "memcached"),
        "postgresql": (private_database.program("postgres"), "postgresql"),
        "redis": (shutil.which("redis-server"), "redis-server"),
    }
    # Which are made of others.
    made_of = {"guarded": "memcached", "quorum": "memcached", "hung": "memcached"}
    made_of |= {"three redis": "redis"}
    servers = {made_of.get(name, name) for name in servers}
    return [
        f"{name} is not installed: package `{package}`"
        for name, (found, package) in executables.items()
        if name in servers and found is None
    ]


def _missing_for_c(programs: Sequence[str]) -> list[str]:
    if shutil.which(CC) is None:
        return [f"the C compiler {CC} is not installed: package `gcc`"]
    wants = []
    if shutil.which("readelf") is None:
        wants.append("readelf is not installed: package `binutils`")
    headers = {
        "memcached": ("libmemcached/memcached.h", "libmemcached-dev"),
        "postgresql": ("libpq-fe.h", "libpq-dev"),
        "mariadb": ("mysql.h", "libmariadb-dev"),
    }
    for program in headers.keys() & programs:
        header, package = headers[program]
        probe = [CC, *C_PROGRAMS[program][:-1], "-E", "-x", "c", "-"]
        if _run(probe, f"#include <{header}>\n").returncode != 0:
            wants.append(f"the header {header} is not installed: package `{package}`")
    for needed in (HEADER, LIBRARIES / "libmemlock.so"):
        if not needed.exists():
            where = needed.relative_to(ROOT)
            wants.append(f"memlock's C library is not built: no {where}; run `make bench`")
    return wants


def build(sections: Sequence[Section]) -> None:
    """Compile the contenders that need compilation."""
    BUILT.mkdir(parents=True, exist_ok=True)
    programs = _c_programs(sections)
    if programs:
        _link_soname()
    for name in programs:
        flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"]
        paths = [f"-I{HEADER.parent}", f"-L{LIBRARIES}", f"-Wl,-rpath,{BUILT}"]
        sources, program = (BENCHES / "pairs.c", BENCHES / f"{name}.c"), BUILT / f"pairs-{name}"
        _must_run([CC, *flags, *paths, "-o", program, *sources, "-lmemlock", *C_PROGRAMS[name]])
    if _uses(sections, _rust("")[0]):
        # Set explicitly: the environment may differ, and LIBRARIES is the path that is used.
        target = f"--target-dir={ROOT / 'target'}"
        _must_run(["cargo", "build", "--quiet", "--release", "-p", "memlock-bench", target])


def _link_soname() -> None:
    """Give the library its soname, as `make install` does."""
    library = LIBRARIES / "libmemlock.so"
    dynamic = _must_run(["readelf", "-d", library]).stdout
    soname = re.search(r"soname: \[(.+)\]", dynamic)
    name = BUILT / (soname.group(1) if soname else library.name)
    name.unlink(missing_ok=True)
    name.symlink_to(library)


def _must_run(command: Sequence[object]) -> subprocess.CompletedProcess[str]:
    done = _run([str(part) for part in command])
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stderr.strip()}")
    return done


def _run(command: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, input=text, capture_output=True, text=True, cwd=ROOT, check=False
    )
