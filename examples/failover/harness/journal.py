"""The workers' reports: which locks they held and when, and which they lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from . import FailoverError


@dataclass
class Hold:
    """A hold of a lock, in nanoseconds of the boot clock."""

    worker: str
    fence: int
    begin: int
    # The time for which the worker wanted to hold it.
    planned: int = 0
    # None until the worker has reported it.
    end: int | None = None
    # What the release answered: ok, lost, or unreached.
    answer: str | None = None
    released: int | None = None
    # When the worker was told that the lock is lost.
    lost: int | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the worker was told, during the hold or by its release."""
        return self.lost is not None or self.answer == "lost"

    def left(self, moment: int) -> int:
        """How long the worker still wants to hold it."""
        return self.begin + self.planned - moment

    def ran(self, moment: int) -> bool:
        """Whether the lock was held at this moment."""
        return self.begin <= moment and (self.end is None or moment < self.end)


@dataclass
class Journal:
    """The report of one worker."""

    worker: str
    # The worker's own lock, which it holds all the time.
    own: Hold | None = None
    jobs: list[Hold] = field(default_factory=list)
    # How often a request for a lock found no server.
    unreached: int = 0

    @property
    def running(self) -> Hold | None:
        """The hold of `job` that goes on, if there is one."""
        return self.jobs[-1] if self.jobs and self.jobs[-1].end is None else None


def read(worker: str, report: Path) -> Journal:
    """Read a report, which the worker may still write."""
    journal = Journal(worker)
    text = report.read_text() if report.exists() else ""
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if not line.endswith("\n"):
            break
        try:
            _take(journal, line.split())
        except (ValueError, LookupError, AttributeError):
            raise FailoverError(
                f"The report of {worker} makes no sense at line {number}: {line!r}."
            ) from None
    return journal


def _take(journal: Journal, fields: list[str]) -> None:
    kind, *rest = fields
    if kind == "own":
        fence, begin = map(int, rest)
        journal.own = Hold(journal.worker, fence, begin)
    elif kind == "begin":
        fence, begin, planned_ms = map(int, rest)
        journal.jobs.append(Hold(journal.worker, fence, begin, planned_ms * 1_000_000))
    elif kind == "end":
        (journal.jobs[-1].end,) = map(int, rest)
    elif kind == "released":
        journal.jobs[-1].answer, journal.jobs[-1].released = rest[0], int(rest[1])
    elif kind == "own-released":
        journal.own.answer, journal.own.end = rest[0], int(rest[1])
    elif kind == "lost":
        hold = journal.jobs[-1] if rest[0] == "job" else journal.own
        hold.lost = int(rest[1])
    elif kind == "unreached":
        journal.unreached += 1
    else:
        raise ValueError(kind)
