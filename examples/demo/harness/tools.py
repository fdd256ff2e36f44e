"""The requirements of the demo, and the programs that it compiles."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from private_memcached import executable

from . import DemoError
from .corpus import ROOT

DEMO = ROOT / "examples" / "demo"
LANGUAGES = ("C", "C++", "Python", "Rust")

# `make demo` sets these; otherwise the defaults work after a `cargo build --release`.
LIBRARIES = Path(os.environ.get("MEMLOCK_LIB_DIR") or ROOT / "target" / "release").resolve()
INCLUDE = Path(os.environ.get("MEMLOCK_INCLUDE_DIR") or ROOT / "include").resolve()
PYTHON = os.environ.get("PYTHON") or sys.executable
CC = shlex.split(os.environ.get("CC") or "cc")
CXX = shlex.split(os.environ.get("CXX") or "c++")

LIBRARY = LIBRARIES / "libmemlock.so"
RUST_WORKER = LIBRARIES / "demo-worker"
WARNINGS = ["-O2", "-Wall", "-Wextra", "-Werror"]


def missing() -> list[str]:
    """Return a sentence for each missing requirement, and how to install it."""
    wants = []
    if executable() is None:
        wants.append("memcached is not installed: install the package `memcached`.")
    for (compiler, *_), variable, package in ((CC, "CC", "gcc"), (CXX, "CXX", "g++")):
        if shutil.which(compiler) is None:
            wants.append(
                f"There is no compiler `{compiler}`: install the package `{package}`, "
                f"or name another compiler in the variable {variable}."
            )
    for header in ("memlock.h", "memlock.hpp"):
        if not (INCLUDE / header).exists():
            wants.append(f"There is no {INCLUDE / header}: is MEMLOCK_INCLUDE_DIR right?")
    for built, package in ((LIBRARY, "memlock-ffi"), (RUST_WORKER, "memlock-examples")):
        if not built.exists():
            wants.append(
                f"There is no {built}: run `make demo`, or `cargo build --release -p {package}` "
                "and name the directory in MEMLOCK_LIB_DIR."
            )
    return wants + _missing_module()


def build(directory: Path) -> dict[str, list[str]]:
    """Compile the C and the C++ worker; return the command of each language's worker."""
    # A program loads a shared library by its soname.
    soname = re.search(rb"libmemlock\.so\.[0-9.]+", LIBRARY.read_bytes())
    names = {"libmemlock.so", soname[0].decode() if soname else "libmemlock.so"}
    for name in names:
        (directory / name).symlink_to(LIBRARY)
    link = [f"-I{INCLUDE}", f"-L{directory}", "-lmemlock", f"-Wl,-rpath,{directory}"]

    def compiled(compiler: list[str], standard: str, source: str) -> list[str]:
        program = directory / source.replace(".", "-")
        _must_run([*compiler, standard, *WARNINGS, str(DEMO / source), "-o", str(program), *link])
        return [str(program)]

    with ThreadPoolExecutor() as pool:
        in_c = pool.submit(compiled, CC, "-std=gnu11", "worker.c")
        in_cpp = pool.submit(compiled, CXX, "-std=c++17", "worker.cpp")
        return {
            "C": in_c.result(),
            "C++": in_cpp.result(),
            "Python": [PYTHON, str(DEMO / "worker.py")],
            "Rust": [str(RUST_WORKER)],
        }


def _missing_module() -> list[str]:
    if shutil.which(PYTHON) is None:
        return [f"There is no Python `{PYTHON}`: is the variable PYTHON right?"]
    # Import the module: a module that cannot be loaded counts as missing, too.
    done = _run([PYTHON, "-c", "import memlock; memlock.connect"])
    if done.returncode == 0:
        return []
    reason = (done.stderr.splitlines() or ["no reason given"])[-1]
    return [
        f"The Python module memlock cannot be used in {PYTHON} ({reason}): run `make demo`, or "
        f"`{PYTHON} -m pip install {ROOT / 'memlock-py'}`, or name another Python in PYTHON."
    ]


def _must_run(command: list[str]) -> None:
    done = _run(command)
    if done.returncode != 0:
        raise DemoError(f"This failed: {shlex.join(command)}\n{done.stderr.strip()}")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)
