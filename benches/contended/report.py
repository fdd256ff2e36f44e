"""Formats the figures: a table, and a line for each target."""

from __future__ import annotations

import math
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from harness.contenders import PYTHON
from harness.report import versions

from .cells import BROKEN, THREADS, Cell
from .figures import Figures

Rows = Mapping[Cell, Figures]

# The number of processors used by other programs beyond which a run is marked.
DISTURBED = 0.2
# Percentiles of fewer hand-overs than this are rough.
FEW = 100
# Fewer turns than this for each process are not significant for fairness.
TURNS_WANTED = 3

# The holds and numbers of processes for which memlock has targets, apart from hold 0.
PROMISED_PROCESSES = (8, 32)
PROMISED_HOLDS = (1.0, 500.0)
# From this hold on, in milliseconds, all processors sleep between two hand-overs.
PROMISED_LONG_MS = 50.0
# For shorter holds, and from PROMISED_LONG_MS on.
PROMISED_P50_MS = {
    "c": (0.3, 0.3),
    "python": (0.4, 0.4),
    "sqlite-c": (0.25, 0.25),
    "redis-c": (0.25, 0.35),
    "postgresql-c": (0.6, 0.8),
    "mariadb-c": (0.6, 0.8),
}
PROMISED_P99_MS = {"c": 1.0, "python": 1.5}
PROMISED_JAIN = 0.99
PROMISED_COMMANDS = 9.0
# For a semaphore of 4 permits and this number of processes.
PROMISED_SHARED_PROCESSES = 32
PROMISED_SHARED_COMMANDS = 10.0
# Where permits are never exhausted.
PROMISED_CROWD_WAIT_MS = 500.0
PROMISED_MAX_MS = 50.0

LEGEND = """\
per second     acquisitions, of all processes together
of 1/hold      share of the ideal rate, with hand-overs in no time and exact sleeps; for a
               semaphore with 4 permits, the ideal rate is four times as high
hand-over      ms from just before a release to just after the next process's lock call returned,
               if a process was waiting at that release; for a semaphore with 4 permits, the
               k-th release, in time, is followed by the (k+4)-th entry
to itself      share of such releases that were followed by an acquisition by the same process
Jain           fairness: 1 if all processes had the same number of turns
turns          average number per process, without the first round, which is the start-up
longest wait   of any lock call, including calls that the end of the run interrupted
refused swaps  compare-and-swaps of a semaphore's record and its queue that came too late
commands       of the server per acquisition, after a first round (memcached: on items;
               Redis: including those that scripts call; PostgreSQL and MariaDB: statements)
relay          no lock: only a hand-over's round trips and wake-ups, the floor of this machine
CPU            processors in use, by all processes and by the server
polling        for a semaphore: a lock for each permit, of which one is tried once a millisecond
violations     for a lock: two holders, or fences that did not increase; for a semaphore with 4
               permits: more than 4 holders
*              other programs used more than 0.2 processors during the run
†              fewer than 100 hand-overs"""

_VERSIONS = """
import platform, sys
from importlib import metadata
said = [platform.python_version()] + [name + " " + metadata.version(name) for name in sys.argv[1:]]
print(", ".join(said))
"""
_LIBRARIES = (
    "memlock",
    "python-redis-lock",
    "redis",
    "py-redis-semaphore",
    "sherlock",
    "pymemcache",
    "psycopg",
    "pymysql",
)


def machine() -> str:
    """Describe the machine and the versions."""
    told = subprocess.run(
        [PYTHON, "-c", _VERSIONS, *_LIBRARIES], capture_output=True, text=True, check=False
    )
    kernel = f"{platform.system()} {platform.release()}"
    lines = {
        "machine": f"{os.cpu_count()} cores, {kernel}, load {os.getloadavg()[0]:.1f}",
        "servers": versions(),
        "python": told.stdout.strip() or platform.python_version(),
    }
    return "\n".join(f"{name:<9}{said}" for name, said in lines.items())


COLUMNS = (
    "hold, ms",
    "processes",
    "contender",
    "per second",
    "of 1/hold",
    "hand-over p50",
    "p99",
    "max",
    "to itself",
    "Jain",
    "turns",
    "longest wait, s",
    "commands",
    "CPU: processes",
    "server",
    "violations",
)

# --- the table ---------------------------------------------------------------------------------


def table(rows: Rows) -> str:
    """Return all rows in Markdown: a table for locks, and one for each number of permits."""
    tables = []
    crowds = {cell: its for cell, its in rows.items() if cell.contender.threads > 1}
    others = {cell: its for cell, its in rows.items() if cell.contender.threads == 1}
    for permits in sorted({cell.contender.permits for cell in others}):
        of = {cell: its for cell, its in others.items() if cell.contender.permits == permits}
        title = "one lock" if permits == 1 else f"one semaphore of {permits} permits"
        tables.append(f"{title}\n\n{_table(of)}")
    if crowds:
        title = "one semaphore of 1000 permits, which are never all taken: C"
        tables.append(f"{title}\n\n{_table_of_crowds(crowds)}")
    return "\n\n".join(tables)


def _table(rows: Rows) -> str:
    """Return a table, sorted by hold, then processes, then contender."""
    lines = [[*COLUMNS], ["---:", "---:", "---", *["---:"] * (len(COLUMNS) - 3)]]
    lines += [_row(cell, rows[cell]) for cell in sorted(rows, key=lambda cell: cell.order)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


CROWD_COLUMNS = (
    "hold, ms",
    "processes",
    "threads each",
    "per second",
    "refused swaps",
    "commands",
    "longest wait, s",
    "Jain",
    "CPU: processes",
    "server",
    "violations",
)


def _table_of_crowds(rows: Rows) -> str:
    """Return the table of runs without waits for permits: the cost of writing the record."""
    lines = [[*CROWD_COLUMNS], ["---:"] * len(CROWD_COLUMNS)]
    for cell in sorted(rows, key=lambda cell: cell.order):
        its = rows[cell]
        lines.append(
            [
                f"{cell.hold_ms:g}",
                str(cell.processes),
                str(cell.contender.threads) + (" *" if its.others_cpu_s > DISTURBED else ""),
                f"{its.per_second:,.0f}",
                f"{100 * its.refused_swaps / its.swaps:.1f} %" if its.swaps else "-",
                f"{its.per_acquisition:.2f}",
                f"{its.longest_wait_s:.2f}",
                f"{its.jain:.3f}",
                f"{its.worker_cpu_s:.2f}",
                f"{its.server_cpu_s:.2f}",
                str(sum(its.violations.values())),
            ]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _row(cell: Cell, its: Figures) -> list[str]:
    releases = its.to_itself + len(its.handovers)
    has_no_server = cell.contender.server == "file"
    most = cell.contender.permits / cell.hold_ms * 1000 if cell.hold_ms else math.inf
    ideal = f"{its.per_second / most:.0%}".replace("%", " %") if cell.hold_ms else "-"
    return [
        f"{cell.hold_ms:g}",
        str(cell.processes),
        cell.contender.title + _marks(its),
        f"{its.per_second:,.0f}" if its.per_second >= 10 else f"{its.per_second:.2f}",
        ideal,
        *(_ms(its.percentile(percent)) for percent in (50, 99, 100)),
        f"{100 * its.to_itself / releases:.0f} %" if releases else "-",
        f"{its.jain:.3f}",
        f"{its.turns_each:,.0f}" if its.turns_each >= 10 else f"{its.turns_each:.1f}",
        f"{its.longest_wait_s:.2f}",
        "-" if has_no_server else f"{its.per_acquisition:.1f}",
        f"{its.worker_cpu_s:.2f}",
        "-" if has_no_server else f"{its.server_cpu_s:.2f}",
        str(sum(its.violations.values())),
    ]


def _marks(its: Figures) -> str:
    marks = ["*"] if its.others_cpu_s > DISTURBED else []
    marks += ["†"] if len(its.handovers) < FEW else []
    return "".join(f" {mark}" for mark in marks)


def _ms(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}" if value < 10 else f"{value:,.0f}"


# --- the verdicts ------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """A target, and the measured figure."""

    wanted: str
    figure: str
    met: bool

    def __str__(self) -> str:
        if self.met:
            return f"{self.figure} met"
        return f"{self.figure} MISSED ({self.wanted})"


def verdicts(rows: Rows) -> str:
    """Return a line for each row with targets, for information: the machine may be noisy."""
    lines, all_told = [], []
    for cell in sorted(rows, key=lambda cell: (cell.contender.key, *cell.order)):
        found = list(_verdicts(cell, rows))
        if found:
            marks = _remarks(cell, rows[cell])
            lines.append(f"  {cell!s:<38} {', '.join(map(str, found))}{marks}")
            all_told += found
    if not all_told:
        return "memlock's bar: for none of these"
    missed = sum(not verdict.met for verdict in all_told)
    return "\n".join([f"memlock's bar: {len(all_told) - missed} met, {missed} MISSED", *lines])


def violations(rows: Rows) -> list[str]:
    """Return a sentence for each row with too many holders, or fences that did not increase."""
    return [
        f"{cell}: {', '.join(f'{times} {what}' for what, times in its.violations.items())}"
        for cell, its in rows.items()
        if its.violations and cell.contender.key != BROKEN.key
    ]


def _verdicts(cell: Cell, rows: Rows) -> Iterator[Verdict]:
    its, key = rows[cell], cell.contender.key
    if cell.contender.threads > 1:
        yield from _verdicts_of_crowd(cell, rows)
        return
    if key == "semaphore-c" and cell.processes == PROMISED_SHARED_PROCESSES:
        yield _at_most("commands", its.per_acquisition, PROMISED_SHARED_COMMANDS, "")
        return
    if key not in PROMISED_P50_MS:
        return
    if cell.hold_ms == 0:
        yield _at_most("longest", its.percentile(100), PROMISED_MAX_MS, "ms")
        polling = [
            figures
            for other, figures in rows.items()
            if other.contender.key == "polling"
            and (other.hold_ms, other.processes) == (cell.hold_ms, cell.processes)
        ]
        if key == "c" and polling:
            wanted = polling[0].per_second
            met = its.per_second >= wanted
            figure = f"{its.per_second:,.0f} per second"
            yield Verdict(f"polling: {wanted:,.0f}", figure, met)
    elif cell.processes in PROMISED_PROCESSES and (
        PROMISED_HOLDS[0] <= cell.hold_ms <= PROMISED_HOLDS[1]
    ):
        most = PROMISED_P50_MS[key][cell.hold_ms >= PROMISED_LONG_MS]
        p50 = _at_most("p50", its.percentile(50), most, "ms")
        relay = [
            figures.percentile(50)
            for other, figures in rows.items()
            if (other.contender.key, other.hold_ms) == ("relay", cell.hold_ms)
        ]
        if relay:
            p50 = p50._replace(
                figure=f"{p50.figure} ({its.percentile(50) / relay[0]:.2f} of relay)"
            )
        yield p50
        if key in PROMISED_P99_MS:
            yield _at_most("p99", its.percentile(99), PROMISED_P99_MS[key], "ms")
        met = its.jain >= PROMISED_JAIN
        yield Verdict(f"{PROMISED_JAIN:g} or more", f"Jain {its.jain:.3f}", met)
        if cell.contender.server == "memcached":
            yield _at_most("commands", its.per_acquisition, PROMISED_COMMANDS, "")


def _verdicts_of_crowd(cell: Cell, rows: Rows) -> Iterator[Verdict]:
    """Check that the most threads are no slower than the fewest, and do not wait for long."""
    its = rows[cell]
    yield _at_most("longest", its.longest_wait_s * 1000, PROMISED_CROWD_WAIT_MS, "ms")
    few = [
        figures.per_second
        for other, figures in rows.items()
        if (other.contender.threads, other.processes) == (THREADS[0], cell.processes)
    ]
    if cell.contender.threads == THREADS[-1] and few:
        figure = f"{its.per_second / few[0]:.2f} of {THREADS[0]} threads"
        yield Verdict("1 or more", figure, its.per_second >= few[0])


def _at_most(what: str, value: float, limit: float, unit: str) -> Verdict:
    tail = f" {unit}" if unit else ""
    if math.isnan(value):
        return Verdict(f"{limit:g}{tail} or less", f"no {what}", met=False)
    return Verdict(f"{limit:g}{tail} or less", f"{what} {_ms(value)}{tail}", value <= limit)


def _remarks(cell: Cell, its: Figures) -> str:
    remarks = []
    if its.turns_each < TURNS_WANTED:
        remarks.append(f"only {its.turns_each:.1f} turns each")
    if cell.contender.threads == 1 and len(its.handovers) < FEW:
        remarks.append(f"only {len(its.handovers)} hand-overs")
    if its.others_cpu_s > DISTURBED:
        remarks.append(f"others used {its.others_cpu_s:.1f} processors")
    return f"; {', '.join(remarks)}" if remarks else ""
