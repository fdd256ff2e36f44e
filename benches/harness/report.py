"""Formats the figures: tables, and a line for each target."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import server
from .contenders import PYTHON, Section
from .measure import Costs
from .private_database import program


@dataclass
class Results:
    """All measurements of one section, by the contender's name."""

    section: Section
    rates: dict[str, list[float]] = field(default_factory=dict)
    costs: dict[str, Costs] = field(default_factory=dict)
    calls: dict[str, dict[str, float] | str] = field(default_factory=dict)

    def ratio(self, name: str, to: str) -> Ratio:
        """Return the speed of `name` relative to `to` by round: noise affects both equally."""
        pairs = zip(self.rates[name], self.rates[to])
        return Ratio([one / other for one, other in pairs])


@dataclass(frozen=True)
class Ratio:
    """Ratios of one round each, and their median as the result."""

    rounds: Sequence[float]

    @property
    def median(self) -> float:
        """The median."""
        return statistics.median(self.rounds)

    def __str__(self) -> str:
        return f"{self.median:5.2f}  {min(self.rounds):.2f}-{max(self.rounds):.2f}"


@dataclass(frozen=True)
class Target:
    """A ratio that memlock should reach; without `wanted`, for information only."""

    section: str
    to: str
    wanted: float | None
    of: str = "memlock"


TARGETS = (
    Target("c", "raw", 0.90),
    Target("c", "libmemcached", None),
    Target("rust", "raw", None),
    Target("python", "pylibmc", 1.00),
    Target("python", "sherlock", None),
    Target("insert_many", "raw", 0.20),
    Target("quorum", "raw", 0.85),
    # A server that hangs makes a lock take no more than 1.5 times as long.
    Target("quorum", "memlock", 0.67, of="one of three hangs"),
    Target("quorum", "pottery", None, of="memlock Python"),
    Target("semaphore", "raw", None),
    # The cost does not grow with the number of permits.
    Target("semaphore", "memlock", 0.95, of="memlock 10,000"),
    Target("semaphore", "Redis list", None, of="memlock Python"),
    Target("semaphore", "py-redis-semaphore", None, of="memlock Python"),
    Target("redis", "raw", 0.85),
    Target("redis", "raw, checked", None),
    Target("redis", "redis-py", None, of="memlock Python"),
    Target("redis", "python-redis-lock", None, of="memlock Python"),
    Target("postgresql", "raw", 0.33),
    Target("postgresql", "raw row", None),
    Target("postgresql", "psycopg", None, of="memlock Python"),
    Target("mariadb", "raw", 0.38),
    Target("mariadb", "raw row", None),
    Target("mariadb", "mysqlclient", None, of="memlock Python"),
    Target("sqlite", "raw", 0.80),
    Target("sqlite", "filelock", None, of="memlock Python"),
)


def machine(core: int) -> str:
    """Describe the machine and the versions."""
    libraries = (
        "pylibmc sherlock pymemcache redis python-redis-lock py-redis-semaphore psycopg "
        "mysqlclient filelock memlock"
    )
    lines = {
        "machine": f"{os.cpu_count()} cores, {_processor()}, load {os.getloadavg()[0]:.1f}",
        "pinned": f"server and client share core {core}",
        "kernel": f"{platform.system()} {platform.release()}",
        "servers": versions(),
        "python": _said_by([PYTHON, "-c", _VERSIONS, *libraries.split()]),
    }
    return "\n".join(f"{name:<9}{said}" for name, said in lines.items())


def versions() -> str:
    """Return the versions of the servers."""
    commands = (
        [server.executable() or "memcached", "-V"],
        ["redis-server", "--version"],
        [program("postgres") or "postgres", "-V"],
        [program("mariadbd") or "mariadbd", "-V"],
    )
    return ", ".join(" ".join(_said_by(command).split()[:3]) for command in commands)


_VERSIONS = """
import platform, sys
from importlib import metadata
said = [platform.python_version()]
for name in sys.argv[1:]:
    try:
        said.append(name + " " + metadata.version(name))
    except metadata.PackageNotFoundError:
        said.append(name + " (not installed)")
print(", ".join(said))
"""


def _said_by(command: list[str]) -> str:
    if shutil.which(command[0]) is None:
        return f"no {command[0]}"
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [
                line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
            ]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def table(results: Results) -> str:
    """Speeds and costs of one section."""
    section = results.section
    head = f"{section.unit + 's/s':>12}  {'of ' + section.floor:>10}  {'min-max':<9}"
    if section.counted:
        head += f"  {'commands/' + section.unit:>14}  {'round trips/' + section.step:>17}"
    wide = _name_width(section)
    lines = [section.title, f"  {'':<{wide}}{head}"]
    for contender in section.contenders:
        name, costs = contender.name, results.costs.get(contender.name)
        line = (
            f"  {name:<{wide}}{statistics.median(results.rates[name]):>12,.0f}"
            f"  {results.ratio(name, section.floor)!s:>21}"
        )
        if costs is not None:
            line += f"  {costs.commands_per_unit:>14.2f}  {costs.round_trips_per_step:>17.2f}"
        lines.append(line)
    return "\n".join(lines)


def _name_width(section: Section) -> int:
    return max(14, *(len(contender.name) for contender in section.contenders))


def call_table(results: Results) -> str:
    """System calls of a section's contenders."""
    wide = _name_width(results.section)
    per = "round trip" if results.section.counted else results.section.step
    lines = [f"{results.section.key}: system calls per {per}"]
    for name, calls in results.calls.items():
        if isinstance(calls, str):
            lines.append(f"  {name:<{wide}}{calls}")
            continue
        costs = results.costs.get(name)
        per_trip = sum(calls.values()) / (costs.round_trips_per_step if costs else 1)
        often = sorted(calls.items(), key=lambda call: -call[1])
        detail = ", ".join(f"{call} {times:.2f}" for call, times in often)
        lines.append(f"  {name:<{wide}}{per_trip:>12.2f}  per pair: {detail}")
    return "\n".join(lines)


def verdicts(all_results: Sequence[Results]) -> str:
    """Return a line for each target, for information: the machine may be noisy."""
    lines = ["memlock's targets (median of the rounds' ratios, min-max)"]
    by_key = {results.section.key: results for results in all_results}
    for target in TARGETS:
        if target.section not in by_key:
            continue
        ratio = by_key[target.section].ratio(target.of, target.to)
        what = f"{target.section} {target.of} / {target.to}"
        if target.wanted is None:
            verdict = "for comparison"
        elif ratio.median >= target.wanted:
            verdict = f"met: {target.wanted:.2f} or more"
        else:
            verdict = f"NOT MET: {target.wanted:.2f} or more was wanted"
        lines.append(f"  {what:<46}{ratio}   {verdict}")
    return "\n".join(lines)
