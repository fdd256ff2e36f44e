"""The workers' reports: which units they held and when, and which ids they got."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from . import DemoError
from .crew import Worker


@dataclass
class HoldInterval:
    """A hold of a unit's mutex by one worker, in nanoseconds of the boot clock."""

    worker: Worker
    unit: int
    fence: int
    start: int
    # None until the worker has reported the release; a dead worker never does.
    end: int | None = None
    done: bool = False
    words: Counter[bytes] = field(default_factory=Counter)

    @property
    def seconds(self) -> float:
        """The duration of the hold; 0 if the worker died before it reported the end."""
        return (self.end - self.start) / 1e9 if self.end else 0.0


@dataclass
class Report:
    """The report of one worker."""

    worker: Worker
    holds: list[HoldInterval] = field(default_factory=list)
    # (word, id) -> how often the worker got this answer
    told: Counter[tuple[bytes, int]] = field(default_factory=Counter)
    # word -> how often the worker's insert was the first
    new: Counter[bytes] = field(default_factory=Counter)
    # The worker's counts: units done, words read, words that were new, units that were busy.
    totals: tuple[int, ...] | None = None

    @property
    def units(self) -> int:
        """The number of units that the worker did."""
        return sum(hold.done for hold in self.holds)

    @property
    def words(self) -> int:
        """The number of words that the worker read."""
        return sum(self.told.values())

    @property
    def busy(self) -> int:
        """The number of units that were busy at first."""
        return self.totals[3] if self.totals else 0

    @property
    def counts_agree(self) -> bool:
        """Whether the worker's counts match its report. The victim dies before it counts."""
        counted = (self.units, self.words, sum(self.new.values()))
        return self.worker.is_victim if self.totals is None else self.totals[:3] == counted


def read(worker: Worker) -> Report:
    """Read a worker's report."""
    report = Report(worker)
    for number, fields in enumerate(_lines(worker), 1):
        try:
            _take(report, fields)
        except (ValueError, LookupError):
            line = b" ".join(fields).decode(errors="replace")
            raise DemoError(
                f"The report of {worker.name} makes no sense at line {number}: {line!r}."
            ) from None
    return report


def _lines(worker: Worker) -> Iterator[list[bytes]]:
    with open(worker.report, "rb") as lines:
        yield from (line.rstrip(b"\n").split(b" ") for line in lines)


def _take(report: Report, fields: list[bytes]) -> None:
    kind, *rest = fields
    if kind == b"id":
        number, how, word = rest
        report.told[word, int(number)] += 1
        report.new[word] += {b"new": 1, b"dup": 0}[how]
        report.holds[-1].words[word] += 1
    elif kind == b"hold":
        unit, fence, start = map(int, rest)
        report.holds.append(HoldInterval(report.worker, unit, fence, start))
    elif kind in (b"done", b"free"):
        hold = report.holds[-1]
        if hold.unit != int(rest[0]) or hold.end is not None:
            raise ValueError(rest)
        if kind == b"done":
            hold.done = True
        else:
            hold.end = int(rest[1])
    elif kind == b"total":
        report.totals = tuple(map(int, rest))
    else:
        raise ValueError(kind)
