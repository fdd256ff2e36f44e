"""Checks the workers' reports against each other and against what happened to the servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .journal import Hold, Journal

# A machine that stops for longer than this may cost a lease of 3 s, of which a restart has left
# half a second.
SLOW_S = 0.3


@dataclass(frozen=True)
class Fault:
    """What was done to a server, from when to when; in nanoseconds of the boot clock."""

    # The kind of fault, in one word.
    what: str
    # Immediately before the fault, when the server certainly answered no more, and when it answered
    # again.
    begin: int
    began: int
    back: int
    planned_s: float

    @property
    def took_s(self) -> float:
        """For how long the server did not answer."""
        return (self.back - self.began) / 1e9


@dataclass(frozen=True)
class Expected:
    """What happened to the servers, and what may be expected of them."""

    faults: list[Fault]
    # The longest time for which a free lock may be granted to nobody, and what it consists of.
    latest_s: float
    latest_is: str
    # For how long after a fault a request may find too few servers.
    left_out_s: float


@dataclass(frozen=True)
class Results:
    """What one worker did, and what became of its locks."""

    worker: str
    turns: int
    # Own locks and holds of `job`, once for each fault that they outlived.
    kept: int
    lost: int
    # Holds of `job` that began during another worker's.
    overlaps: int
    fences_out_of_order: int
    # Holds that were lost, have no end, or whose release failed although there was a server.
    irregular: int
    unreached: int


@dataclass(frozen=True)
class Verdict:
    """The results."""

    workers: list[Results]
    expected: Expected
    # From the end of a hold of `job` until the next one.
    interruption_s: float
    # Faults during a hold of `job`.
    hits: int
    # The longest time for which the machine did not run the demo.
    stall_s: float

    @property
    def is_late(self) -> bool:
        """Whether nobody got the free lock for too long."""
        return self.interruption_s > self.expected.latest_s + self.stall_s

    @property
    def broken(self) -> list[str]:
        """Return a sentence for each broken promise."""

        def total(name: str) -> int:
            return sum(getattr(worker, name) for worker in self.workers)

        sentences = []
        if overlaps := total("overlaps"):
            sentences.append(f"Grants of `job` while another worker held it: {overlaps}.")
        if disorder := total("fences_out_of_order"):
            sentences.append(f"Fences not greater than those before: {disorder}.")
        if lost := total("lost"):
            sentences.append(f"Locks lost: {lost}.")
        if irregular := total("irregular"):
            sentences.append(f"Holds that did not end in a regular way: {irregular}.")
        if self.is_late:
            sentences.append(f"Nobody got the free lock for {self.interruption_s:.1f} s.")
        return sentences

    @property
    def is_excused(self) -> bool:
        """Whether the machine alone may be the reason, which stopped for as long as a lease."""
        slow = [it.took_s - it.planned_s for it in self.expected.faults]
        wrong = any(worker.overlaps or worker.fences_out_of_order for worker in self.workers)
        return not wrong and max([self.stall_s, *slow]) > SLOW_S


def verdict_of(journals: Sequence[Journal], expected: Expected, stall_s: float) -> Verdict:
    """Check all reports."""
    jobs = sorted((hold for it in journals for hold in it.jobs), key=lambda hold: hold.begin)
    faults = expected.faults
    overlapping, disordered, gaps_ns = [], [], [0]
    # The latest end and the greatest fence of all earlier holds.
    latest = fence = 0
    for number, hold in enumerate(jobs):
        if hold.begin < latest:
            overlapping.append(hold)
        elif number:
            gaps_ns.append(hold.begin - latest)
        if hold.fence <= fence:
            disordered.append(hold)
        latest, fence = max(latest, _over(hold)), max(fence, hold.fence)
    return Verdict(
        workers=[_results(it, expected, overlapping, disordered) for it in journals],
        expected=expected,
        interruption_s=max(gaps_ns) / 1e9,
        hits=sum(any(hold.ran(it.begin) for hold in jobs) for it in faults),
        stall_s=stall_s,
    )


def _results(
    journal: Journal,
    expected: Expected,
    overlapping: Sequence[Hold],
    disordered: Sequence[Hold],
) -> Results:
    own = [journal.own] if journal.own else []
    holds = [*journal.jobs, *own]
    kept = (
        hold.ran(it.begin) and hold.ran(it.back) and not hold.is_lost
        for hold in holds
        for it in expected.faults
    )
    return Results(
        worker=journal.worker,
        turns=len(journal.jobs),
        kept=sum(kept),
        lost=sum(hold.is_lost for hold in holds),
        overlaps=sum(hold.worker == journal.worker for hold in overlapping),
        fences_out_of_order=sum(hold.worker == journal.worker for hold in disordered),
        irregular=sum(not _is_regular(hold, expected) for hold in holds),
        unreached=journal.unreached,
    )


def _over(hold: Hold) -> int:
    """Return until when the worker believed to hold the lock."""
    ends = [it for it in (hold.end, hold.lost) if it is not None]
    return min(ends, default=hold.begin)


def _is_regular(hold: Hold, expected: Expected) -> bool:
    """Whether the hold ended by a release that was carried out, unless there was no server."""
    if hold.end is None or hold.is_lost:
        return False
    released = hold.released or hold.end
    left_out = expected.left_out_s * 1e9
    was_down = any(
        hold.end <= it.back + left_out and it.begin <= released for it in expected.faults
    )
    return hold.answer == "ok" or (hold.answer == "unreached" and was_down)
