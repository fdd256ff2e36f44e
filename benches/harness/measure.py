"""Measures a contender: its speed by the clock, and its costs by counting."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from .contenders import Contender, Section
from .relay import Relay
from .server import SERVERS

# In addition to the requested duration of a run. Only a contender that hangs takes this long.
PATIENCE_S = 120


@dataclass(frozen=True)
class Effort:
    """How long and how often to measure."""

    rounds: int
    seconds: float
    pairs_counted: int
    pairs_traced: int
    batches_counted: int


# Twelve rounds cover each order of three contenders twice, and each order of two six times.
FULL = Effort(rounds=12, seconds=0.5, pairs_counted=200, pairs_traced=1000, batches_counted=10)
QUICK = Effort(rounds=1, seconds=0.1, pairs_counted=20, pairs_traced=100, batches_counted=2)


@dataclass(frozen=True)
class Costs:
    """The cost of one unit on the server, and of one step on the network."""

    commands_per_unit: float
    round_trips_per_step: float


def rate(contender: Contender, core: int, seconds: float) -> float:
    """Units a second, with the server and the contender on one core.

    On one core, neither waits for the other to be woken on a sleeping core, which would drown what
    the libraries cost. The server is new for each run, so that no run meets another's keys.
    """
    with closing(SERVERS[contender.server](core)) as server:
        return float(_run(_pinned(core), contender, server.url, f"seconds={seconds}")["per_second"])


def costs(section: Section, contender: Contender, core: int, effort: Effort) -> Costs:
    """Count commands and round trips, by two runs of which one is longer by `steps` steps.

    The costs of connecting, setting up and tearing down are the same in both, and cancel out.
    """
    steps = effort.pairs_counted if section.units_per_step == 1 else effort.batches_counted

    def count(limit: int) -> tuple[int, int]:
        its = SERVERS[contender.server](core)
        with closing(its) as server, closing(Relay(server.port)) as relay:
            _run((), contender, server.url_at(relay.port), f"count={limit}")
            return server.commands(), relay.round_trips

    few, many = count(1), count(1 + steps)
    commands, round_trips = many[0] - few[0], many[1] - few[1]
    return Costs(commands / (steps * section.units_per_step), round_trips / steps)


def system_calls(contender: Contender, core: int, effort: Effort) -> dict[str, float] | str:
    """Return system calls per pair by name, or why they could not be counted."""
    strace = shutil.which("strace")
    if strace is None:
        return "strace is not installed: package `strace`"

    def count(limit: int) -> dict[str, int]:
        its = SERVERS[contender.server](core)
        with closing(its) as server, tempfile.TemporaryDirectory() as scratch:
            table = Path(scratch) / "calls"
            tracer = (*_pinned(core), strace, "-f", "-c", "-o", str(table), "--")
            _run(tracer, contender, server.url, f"count={limit}")
            return _parse_strace(table.read_text())

    try:
        few, many = count(1), count(1 + effort.pairs_traced)
    except RuntimeError as error:
        # The contender ran without strace before this. Many containers forbid tracing.
        return f"not counted: {str(error).splitlines()[-1]}"
    more = {name: (calls - few.get(name, 0)) / effort.pairs_traced for name, calls in many.items()}
    return {name: calls for name, calls in more.items() if calls > 0}


def _pinned(core: int) -> tuple[str, ...]:
    return ("taskset", "-c", str(core))


def _parse_strace(table: str) -> dict[str, int]:
    """Read `% time, seconds, usecs/call, calls, [errors,] syscall` rows; their last is the sum."""
    rows = (line.split() for line in table.splitlines())
    calls = {row[-1]: int(row[3]) for row in rows if len(row) >= 5 and row[3].isdigit()}
    calls.pop("total", None)
    return calls


def _run(before: tuple[str, ...], contender: Contender, url: str, limit: str) -> dict[str, str]:
    command = [*before, *contender.command, url, limit]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{' '.join(command)}: no end after {PATIENCE_S} s") from None
    if done.returncode != 0:
        said = done.stderr.strip() or f"exit status {done.returncode}"
        raise RuntimeError(f"{' '.join(command)}\n{said}")
    return dict(item.split("=", 1) for item in done.stdout.split())
