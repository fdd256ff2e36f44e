"""The workers' reports: which units they held and when, and which ids they were told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from . import DemoError
from .crew import Worker


@dataclass
class Hold:
    """A unit's mutex in one worker's hands, in nanoseconds of the boot clock."""

    worker: Worker
    unit: int
    fence: int
    start: int
    # None as long as the worker has not written that it lets go; a dead one never does.
    end: int | None = None
    done: bool = False
    words: Counter[bytes] = field(default_factory=Counter)

    @property
    def seconds(self) -> float:
        """How long it was held; 0 if the worker did not live to write it."""
        return (self.end - self.start) / 1e9 if self.end else 0.0


@dataclass
class Report:
    """What one worker wrote."""

    worker: Worker
    holds: list[Hold] = field(default_factory=list)
    # (word, id) -> how often it was told so
    told: Counter[tuple[bytes, int]] = field(default_factory=Counter)
    # word -> how often it was told that it was the first to insert it
    new: Counter[bytes] = field(default_factory=Counter)
    # Its own counts: units done, words read, words that were new, units that were busy.
    totals: tuple[int, ...] | None = None

    @property
    def units(self) -> int:
        """How many units it did."""
        return sum(hold.done for hold in self.holds)

    @property
    def words(self) -> int:
        """How many words it read."""
        return sum(self.told.values())

    @property
    def busy(self) -> int:
        """How many units it found in another's hands and came back to."""
        return self.totals[3] if self.totals else 0

    @property
    def counts_agree(self) -> bool:
        """Whether its own counts are those of its journal. The victim did not live to count."""
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
        report.holds.append(Hold(report.worker, unit, fence, start))
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
