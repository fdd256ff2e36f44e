"""Runs one cell: a server, the processes, a common start, a stop, and the figures."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import BinaryIO

from harness.contenders import BUILT, CC, HEADER, LIBRARIES, PYTHON, ROOT, missing_servers

from .board import Board
from .cells import Cell, Contender
from .figures import Figures, Run, figures
from .servers import SERVERS

FOLDER = ROOT / "benches" / "contended"
WORKER = BUILT / "contended"
ARCHIVE = LIBRARIES / "libmemlock.a"
# The imports of worker.py.
MODULES = (
    "memlock",
    "psycopg",
    "pymemcache",
    "pymysql",
    "redis",
    "redis_lock",
    "redis_semaphore",
    "sherlock",
)

# The maximum number of acquisitions of a process in one second.
TURNS_A_SECOND = 50_000
SPARE_TURNS = 1000

READY_LIMIT_S = 60.0
STOP_LIMIT_S = 20.0
# The delay of the start after all are ready: they poll for it every millisecond.
START_IN_NS = 30_000_000
# The signal to stop may arrive just before a process begins a wait, so it is repeated.
TELL_AGAIN_S = 0.05

# The interval of checks whether all processes had a turn.
LOOK_S = 0.05

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def missing(contenders: Sequence[Contender]) -> list[str]:
    """Return a sentence for each missing requirement of these contenders."""
    wants = []
    if shutil.which(CC) is None:
        wants.append(f"the C compiler {CC} is not installed: package `gcc`")
    for needed in (HEADER, ARCHIVE):
        if not needed.exists():
            where = needed.relative_to(ROOT)
            wants.append(f"memlock's C library is not built: no {where}; run `make build`")
    # The detector of violations is tried on memcached.
    wants += missing_servers({"memcached", *(it.server for it in contenders)})
    if any(it.language == "python" for it in contenders):
        for module in MODULES:
            tried = _run([PYTHON, "-c", f"import {module}"])
            if tried.returncode != 0:
                said = (tried.stderr.splitlines() or ["no reason given"])[-1]
                wants.append(f"Python module `{module}` is not installed ({said})")
    return wants


def build() -> None:
    """Compile the worker, linked statically: a concurrent build does not affect it."""
    BUILT.mkdir(parents=True, exist_ok=True)
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{HEADER.parent}"]
    sources = [str(FOLDER / name) for name in ("worker.c", "raw.c", "memlock.c")]
    libraries = [str(ARCHIVE), "-lpthread", "-ldl", "-lm"]
    done = _run([CC, *flags, "-o", str(WORKER), *sources, *libraries])
    if done.returncode != 0:
        raise RuntimeError(f"{CC} worker.c\n{done.stderr.strip()}")


def race(cell: Cell) -> Figures:
    """Run a cell, and return its figures."""
    hold_s = cell.hold_ms / 1000
    a_second = min(TURNS_A_SECOND, 1 / hold_s if hold_s else TURNS_A_SECOND)
    room = int(a_second * cell.seconds) + SPARE_TURNS
    permits, threads = cell.contender.permits, cell.processes * cell.contender.threads
    board = Board.new(threads, room, int(hold_s * 1e9), permits)
    with closing(board), closing(SERVERS[cell.contender.server]()) as server:
        with _processes(cell, server.url, board) as processes:
            _until_ready(processes, board)
            cpu, before = _machine_cpu_s(), server.used()
            start_ns = board.words[Board.START] = time.monotonic_ns() + START_IN_NS
            end_ns = start_ns + int(cell.seconds * 1e9)
            # The additional cost of a first turn, and waits that are not over at the end, are not
            # part of an acquisition: count commands from when all wait for another turn.
            while not board.all_had_a_turn() and time.monotonic_ns() < (start_ns + end_ns) // 2:
                processes.expect_to_last(LOOK_S)
            counted_from_ns, counted = time.monotonic_ns(), server.used()
            processes.expect_to_last((end_ns - time.monotonic_ns()) / 1e9)
            # Before the stop, because its effects are not part of the race.
            after = server.used()
            stop_ns = board.words[Board.STOP] = time.monotonic_ns()
            cpu = _machine_cpu_s() - cpu
            processes.stop(hold_s)
        return figures(
            Run(
                turns=board.turns(),
                open_waits=board.open_waits(),
                processes=threads,
                permits=permits,
                start_ns=start_ns,
                stop_ns=stop_ns,
                clashes=board.clashes(),
                commands=after.commands - counted.commands,
                swaps=after.swaps - counted.swaps,
                refused_swaps=after.refused - counted.refused,
                counted_from_ns=counted_from_ns,
                worker_cpu_s=board.cpu_ns() / 1e9,
                server_cpu_s=after.cpu_s - before.cpu_s,
                machine_cpu_s=cpu,
            )
        )


class _Processes:
    """The contending processes: the worker and its children, in a separate group."""

    def __init__(self, cell: Cell, url: str, board: Board, said: BinaryIO):
        program = {"c": [str(WORKER)], "python": [PYTHON, str(FOLDER / "worker.py")]}
        command = [*program[cell.contender.language], cell.contender.name, url]
        self._said = said
        self._worker = subprocess.Popen(
            [*command, str(board.fd), str(cell.contender.threads)],
            pass_fds=[board.fd],
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )

    def expect_to_last(self, seconds: float) -> None:
        """Wait for this time, during which no process may end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._worker.wait(seconds)
            raise self.failure("ended too early")

    def stop(self, hold_s: float) -> None:
        """End all waits, and wait until all processes have ended."""
        limit = time.monotonic() + hold_s + STOP_LIMIT_S
        while self._worker.poll() is None:
            if time.monotonic() > limit:
                raise self.failure("did not stop")
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._worker.wait(TELL_AGAIN_S)
        if self._worker.returncode != 0:
            raise self.failure("failed")

    def failure(self, what: str) -> RuntimeError:
        """Return an error with the error output of the processes, if any."""
        self._said.seek(0)
        words = self._said.read().decode(errors="replace").strip()
        return RuntimeError(f"the processes {what}" + (f": {words}" if words else ""))

    def kill(self) -> None:
        """Kill all processes."""
        if self._worker.poll() is None:
            self._signal(signal.SIGKILL)
            self._worker.wait()

    def _signal(self, number: int) -> None:
        # The group's id is the worker's pid, which is not reused before the worker is waited for.
        os.killpg(self._worker.pid, number)


@contextlib.contextmanager
def _processes(cell: Cell, url: str, board: Board) -> Iterator[_Processes]:
    with tempfile.TemporaryFile() as said:
        processes = _Processes(cell, url, board, said)
        try:
            yield processes
        finally:
            processes.kill()


def _until_ready(processes: _Processes, board: Board) -> None:
    limit = time.monotonic() + READY_LIMIT_S
    while not board.all_ready():
        if time.monotonic() > limit:
            raise processes.failure("were not ready in time")
        processes.expect_to_last(0.01)


def _machine_cpu_s() -> float:
    """Return the processor time of all programs on this machine."""
    with open("/proc/stat", encoding="utf-8") as lines:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(
            int, lines.readline().split()[1:9]
        )
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
