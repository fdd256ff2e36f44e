"""Computes the figures from the turns of a race."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .board import Acquisition


@dataclass(frozen=True)
class Run:
    """The raw data of a race: `turns` in the order of their entries."""

    turns: Sequence[Acquisition]
    open_waits: Sequence[int]
    processes: int
    permits: int
    start_ns: int
    stop_ns: int
    clashes: int
    commands: int
    counted_from_ns: int
    swaps: int
    refused_swaps: int
    worker_cpu_s: float
    server_cpu_s: float
    machine_cpu_s: float


@dataclass(frozen=True)
class Figures:
    """A row of the table. Hand-overs are in milliseconds, in rising order."""

    seconds: float
    acquisitions: int
    handovers: Sequence[float]
    to_itself: int
    jain: float
    turns_each: float
    longest_wait_s: float
    commands: int
    commanded: int
    swaps: int
    refused_swaps: int
    worker_cpu_s: float
    server_cpu_s: float
    others_cpu_s: float
    violations: dict[str, int]

    @property
    def per_second(self) -> float:
        """Acquisitions a second."""
        return self.acquisitions / self.seconds

    @property
    def per_acquisition(self) -> float:
        """Server commands per acquisition, after the first round."""
        return self.commands / self.commanded if self.commanded else math.inf

    def percentile(self, percent: float) -> float:
        """Return a percentile of the hand-overs; NaN if there was none."""
        rank = max(1, math.ceil(len(self.handovers) * percent / 100))
        return self.handovers[rank - 1] if self.handovers else math.nan


def figures(run: Run) -> Figures:
    """Compute the figures."""
    counted = [turn for turn in run.turns if turn.entered_ns < run.stop_ns]
    handovers, to_itself = _handovers(counted, run.open_waits, run.permits)
    jain, turns_each = _fairness([turn.process for turn in counted], run.processes)
    seconds = (run.stop_ns - run.start_ns) / 1e9
    used = run.worker_cpu_s + run.server_cpu_s
    return Figures(
        seconds=seconds,
        acquisitions=len(counted),
        handovers=sorted(handovers),
        to_itself=to_itself,
        jain=jain,
        turns_each=turns_each,
        longest_wait_s=_longest_wait_s(counted, run),
        commands=run.commands,
        commanded=sum(turn.entered_ns >= run.counted_from_ns for turn in counted),
        swaps=run.swaps,
        refused_swaps=run.refused_swaps,
        worker_cpu_s=run.worker_cpu_s / seconds,
        server_cpu_s=run.server_cpu_s / seconds,
        others_cpu_s=max(0.0, run.machine_cpu_s - used) / seconds,
        violations=_violations(run),
    )


def _handovers(
    turns: Sequence[Acquisition], open_waits: Sequence[int], permits: int
) -> tuple[list[float], int]:
    """Return the times from the end of a hold to the next entry, if a process was waiting then.

    With several permits, releases and entries are matched by counting: as many entries need no
    release as there are permits, and each further entry needs one more release.

    Returns the times for which another process was next, and how often the same process was next,
    ahead of the waiters. A process was waiting if a later turn was asked for before the release.
    """
    handovers, to_itself = [], 0
    # The earliest of all requests that are granted later or never.
    earliest = min(open_waits, default=math.inf)
    releases = sorted(turns, key=lambda turn: turn.left_ns)[: max(0, len(turns) - permits)]
    for turn, following in zip(reversed(releases), reversed(turns)):
        earliest = min(earliest, following.asked_ns)
        if earliest > turn.left_ns:
            continue
        if turn.process == following.process:
            to_itself += 1
        else:
            handovers.append((following.entered_ns - turn.left_ns) / 1e6)
    return handovers, to_itself


def _fairness(sequence: Sequence[int], processes: int) -> tuple[float, float]:
    """Return Jain's index over the turns of the processes, and the average number of turns.

    The first round, which is the start-up, is ignored. The rest is cut to whole rounds, counted
    from the end: otherwise an incomplete round would lower the index of a fair lock.
    """
    whole = (len(sequence) - processes) // processes * processes
    window = sequence[-whole:] if whole > 0 else sequence
    each = list(Counter(window).values())
    if not each:
        return math.nan, 0.0
    return sum(each) ** 2 / (processes * sum(n * n for n in each)), len(window) / processes


def _longest_wait_s(turns: Sequence[Acquisition], run: Run) -> float:
    waits = [turn.entered_ns - turn.asked_ns for turn in turns]
    waits += [run.stop_ns - since for since in run.open_waits]
    return max(waits, default=0) / 1e9


def _violations(run: Run) -> dict[str, int]:
    """Return the violations. All turns count here, including those after the stop."""
    overlaps, inside = 0, []
    for turn in run.turns:
        while inside and inside[0] <= turn.entered_ns:
            heapq.heappop(inside)
        overlaps += len(inside) >= run.permits
        heapq.heappush(inside, turn.left_ns)
    # With several permits, a later grant may have an earlier entry.
    fences = [turn.fence for turn in run.turns if turn.fence] if run.permits == 1 else []
    stale = sum(later <= earlier for earlier, later in zip(fences, fences[1:]))
    found = {
        "overlaps": overlaps,
        "too many inside": run.clashes,
        "fences that did not rise": stale,
    }
    return {what: times for what, times in found.items() if times}
