"""The requirements of the demo, and the program that it compiles."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from private_memcached import executable

from . import FailoverError

ROOT = Path(__file__).resolve().parents[3]
HERE = ROOT / "examples" / "failover"

# `make failover` sets these; otherwise the defaults work after a `cargo build --release`.
LIBRARIES = Path(os.environ.get("MEMLOCK_LIB_DIR") or ROOT / "target" / "release").resolve()
INCLUDE = Path(os.environ.get("MEMLOCK_INCLUDE_DIR") or ROOT / "include").resolve()
PYTHON = os.environ.get("PYTHON") or sys.executable
CC = shlex.split(os.environ.get("CC") or "cc")

LIBRARY = LIBRARIES / "libmemlock.so"
COMMAND = LIBRARIES / "memlock"
WARNINGS = ["-O2", "-Wall", "-Wextra", "-Werror"]

# The workers in the shell read the boot clock there.
UPTIME = Path("/proc/uptime")


def missing() -> list[str]:
    """Return a sentence for each missing requirement, and how to install it."""
    wants = []
    if executable() is None:
        wants.append("memcached is not installed: install the package `memcached`.")
    if shutil.which(CC[0]) is None:
        wants.append(
            f"There is no compiler `{CC[0]}`: install the package `gcc`, or name another compiler "
            "in the variable CC."
        )
    if not (INCLUDE / "memlock.h").exists():
        wants.append(f"There is no {INCLUDE / 'memlock.h'}: is MEMLOCK_INCLUDE_DIR right?")
    for built, package in ((LIBRARY, "memlock-ffi"), (COMMAND, "memlock-cli")):
        if not built.exists():
            wants.append(
                f"There is no {built}: run `make failover`, or `cargo build --release -p {package}`"
                " and name the directory in MEMLOCK_LIB_DIR."
            )
    if not _shows_boot_clock():
        wants.append(f"{UPTIME} does not show the boot clock here, which the shell has no other.")
    return wants + _missing_module()


def build(directory: Path) -> list[str]:
    """Compile the worker in C; return its command."""
    # A program loads a shared library by its soname.
    soname = re.search(rb"libmemlock\.so\.[0-9.]+", LIBRARY.read_bytes())
    for name in {"libmemlock.so", soname[0].decode() if soname else "libmemlock.so"}:
        (directory / name).symlink_to(LIBRARY)
    program = directory / "worker-c"
    command = [*CC, "-std=gnu11", *WARNINGS, str(HERE / "worker.c"), "-o", str(program)]
    command += [f"-I{INCLUDE}", f"-L{directory}", "-lmemlock", f"-Wl,-rpath,{directory}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FailoverError(f"This failed: {shlex.join(command)}\n{done.stderr.strip()}")
    return [str(program)]


def _shows_boot_clock() -> bool:
    try:
        shown = float(UPTIME.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return False
    return -0.01 <= time.clock_gettime(time.CLOCK_BOOTTIME) - shown < 1


def _missing_module() -> list[str]:
    if shutil.which(PYTHON) is None:
        return [f"There is no Python `{PYTHON}`: is the variable PYTHON right?"]
    # Import the module: a module that cannot be loaded counts as missing, too.
    command = [PYTHON, "-c", "import memlock; memlock.connect"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return []
    reason = (done.stderr.splitlines() or ["no reason given"])[-1]
    return [
        f"The Python module memlock cannot be used in {PYTHON} ({reason}): run `make failover`, or "
        f"`{PYTHON} -m pip install {ROOT / 'memlock-py'}`, or name another Python in PYTHON."
    ]
