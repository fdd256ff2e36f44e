"""The contenders: requirements, build and start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import server

ROOT = Path(__file__).resolve().parents[2]
BENCHES = ROOT / "benches"
HEADER = ROOT / "include" / "memlock.h"
LIBRARIES = ROOT / "target" / "release"
BUILT = ROOT / "target" / "bench"

PYTHON = os.environ.get("PYTHON", sys.executable)
CC = os.environ.get("CC", "cc")


@dataclass(frozen=True)
class Contender:
    """A program to measure; its command takes a server's port, or a file's path, and a limit."""

    name: str
    command: tuple[str, ...]
    server: str = "memcached"


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


def _section(key: str, title: str, command: Sequence[object], names: str) -> Section:
    start = tuple(map(str, command))
    racers = (Contender(name, (*start, name)) for name in names.split())
    return Section(key, title, "pair", tuple(racers), traced=key == "c")


def _semaphore() -> Section:
    pairs, python = (str(BUILT / "pairs"),), (PYTHON, str(BENCHES / "pairs.py"))
    racers = (
        Contender("raw", (*pairs, "raw-semaphore")),
        Contender("memlock", (*pairs, "memlock-semaphore")),
        Contender("memlock 10,000", (*pairs, "memlock-semaphore-many")),
        Contender("memlock Rust", (str(LIBRARIES / "memlock-bench"), "semaphore")),
        Contender("memlock Python", (*python, "semaphore")),
        Contender("Redis list", (*python, "redis-list"), "redis"),
        Contender("py-redis-semaphore", (*python, "py-redis-semaphore"), "redis"),
    )
    title = "semaphore of 5 permits: acquire+release pairs, from C where no other language is said"
    return Section("semaphore", title, "pair", racers, traced=True)


def _sqlite() -> Section:
    racers = (
        Contender("raw", (str(LIBRARIES / "memlock-bench"), "raw-sqlite"), "sqlite"),
        Contender("memlock", (str(BUILT / "pairs"), "memlock"), "sqlite"),
    )
    title = "SQLite: lock+unlock pairs, from C; raw from Rust, with the same SQLite"
    return Section("sqlite", title, "pair", racers, counted=False, traced=True)


def _insert_many() -> Section:
    racers = (
        Contender(name, (str(BUILT / "pairs"), f"{name}-batch")) for name in ("raw", "memlock")
    )
    title = "insert_many: new keys in batches of 1000, from C"
    return Section("insert_many", title, "key", tuple(racers), "batch", 1000)


SECTIONS = (
    _section("c", "C: lock+unlock pairs", [BUILT / "pairs"], "raw libmemcached memlock"),
    _section("rust", "Rust: lock+unlock pairs", [LIBRARIES / "memlock-bench"], "raw memlock"),
    _section(
        "python",
        "Python: lock+unlock pairs",
        [PYTHON, BENCHES / "pairs.py"],
        "pylibmc sherlock memlock",
    ),
    _insert_many(),
    _semaphore(),
    _sqlite(),
)

# Sections by their requirements.
USE_C = {"c", "insert_many", "semaphore", "sqlite"}
USE_RUST = {"rust", "semaphore", "sqlite"}
USE_PYTHON = {"python", "semaphore"}
# The imports of pairs.py.
MODULES = ("pylibmc", "sherlock", "pymemcache", "redis", "redis_semaphore", "memlock")


def missing(sections: Sequence[Section]) -> list[str]:
    """Return a sentence for each missing requirement of these sections."""
    keys = {section.key for section in sections}
    wants = []
    if server.executable() is None:
        wants.append("memcached is not installed: package `memcached`")
    if shutil.which("taskset") is None:
        wants.append("taskset is not installed: package `util-linux`")
    if keys & USE_C:
        wants += _missing_for_c()
    if "semaphore" in keys and shutil.which("redis-server") is None:
        wants.append("redis-server is not installed: package `redis-server`")
    if keys & USE_RUST and shutil.which("cargo") is None:
        wants.append("cargo is not installed: see https://rustup.rs")
    if keys & USE_PYTHON:
        for module in MODULES:
            # Import the module: a package whose shared library is missing is not installed.
            tried = _run([PYTHON, "-c", f"import {module}"])
            if tried.returncode != 0:
                # memlock comes from this tree, never from a package index.
                source = ROOT / "memlock-py" if module == "memlock" else module
                said = (tried.stderr.splitlines() or ["no reason given"])[-1]
                remedy = f"`{PYTHON} -m pip install {source}`"
                wants.append(f"Python package `{module}` is not installed ({said}): {remedy}")
    return wants


def _missing_for_c() -> list[str]:
    if shutil.which(CC) is None:
        return [f"the C compiler {CC} is not installed: package `gcc`"]
    wants = []
    if shutil.which("readelf") is None:
        wants.append("readelf is not installed: package `binutils`")
    probe = _run([CC, "-E", "-x", "c", "-"], "#include <libmemcached/memcached.h>\n")
    if probe.returncode != 0:
        wants.append("libmemcached's header is not installed: package `libmemcached-dev`")
    for needed in (HEADER, LIBRARIES / "libmemlock.so"):
        if not needed.exists():
            where = needed.relative_to(ROOT)
            wants.append(f"memlock's C library is not built: no {where}; run `make bench`")
    return wants


def build(sections: Sequence[Section]) -> None:
    """Compile the contenders that need compilation."""
    keys = {section.key for section in sections}
    if keys & USE_C:
        BUILT.mkdir(parents=True, exist_ok=True)
        _link_soname()
        flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"]
        paths = [f"-I{HEADER.parent}", f"-L{LIBRARIES}", f"-Wl,-rpath,{BUILT}"]
        sources, program = (BENCHES / "pairs.c", BENCHES / "semaphores.c"), BUILT / "pairs"
        _must_run([CC, *flags, *paths, "-o", program, *sources, "-lmemlock", "-lmemcached"])
    if keys & USE_RUST:
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
