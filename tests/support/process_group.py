"""Running commands with a time limit, for `tests/run`, `tests/prove` and `tests/repeat`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# The commands that run now, each in a process group of its own, so that all of it can be ended.
RUNNING: set[subprocess.Popen[bytes]] = set()

# How a command gets its process group. It stays in this session: Linux divides the processors
# among sessions (autogroup), and with several busy ones it left threads that were ready to run
# without a processor for up to 5 s, longer than leases in the tests. Python before 3.11 can only
# begin a new session.
OWN_GROUP: dict[str, Any] = (
    {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
)


def run(
    words: Sequence[str],
    log: Path,
    cwd: Path,
    limit_s: float,
    watch: Callable[[str], bool] | None = None,
) -> tuple[int | None, str]:
    """Run a command; return its status and what it said. The status is None if it took too long.

    `watch` is given what the command has said so far, from time to time, and ends it by True.
    """

    def said() -> str:
        return log.read_text(encoding="utf-8", errors="replace")

    status = None
    with open(log, "wb") as output:
        process = subprocess.Popen(
            words,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            **OWN_GROUP,
        )
        RUNNING.add(process)
        end = time.monotonic() + limit_s
        try:
            while time.monotonic() < end:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(1)
                    break
                if watch and watch(said()):
                    break
        finally:
            end_group(process)
            process.wait()
            RUNNING.discard(process)
    return status, said()


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End all processes of its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def end_with_signals() -> None:
    """Let the signals that end this program end all that runs, too."""

    def end_all(number: int, _: object) -> None:
        for process in list(RUNNING):
            end_group(process)
        os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end_all)
