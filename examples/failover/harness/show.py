"""The output: progress during the run, and the table at the end."""

from __future__ import annotations

import operator
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .verdict import Results, Verdict

# The rows of the table: what a worker counts, its attribute in `Results`, and the only good value.
ROWS = (
    ("turns done", "turns", None),
    ("locks kept over a fault", "kept", None),
    ("requests that found no server", "unreached", None),
    ("locks lost", "lost", 0),
    ("double grants", "overlaps", 0),
    ("fences out of order", "fences_out_of_order", 0),
    ("holds that ended irregularly", "irregular", 0),
)
WRONG = "  <-- WRONG"
# The widths of the labels, and of the columns of a worker and of a scenario.
LABEL, WORKER, GAP = 32, 10, 2


class Progress:
    """Lines with the time since the beginning."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, sentence: str) -> None:
        """Print a line."""
        print(f"{time.monotonic() - self._began:5.1f} s  {sentence}", flush=True)


def table(verdicts: Mapping[str, Verdict]) -> str:
    """Return all results, with broken promises marked. The keys are the scenarios' titles."""
    return "\n".join([*_counts(verdicts), "", *_times(verdicts)])


def _counts(verdicts: Mapping[str, Verdict]) -> Iterator[str]:
    yield _row("", verdicts)
    yield _row("", [_cells(it, lambda worker: worker.worker) for it in verdicts.values()])
    for label, attribute, good in ROWS:
        values = [getattr(worker, attribute) for it in verdicts.values() for worker in it.workers]
        mark = WRONG if good is not None and any(it != good for it in values) else ""
        cells = [_cells(it, operator.attrgetter(attribute)) for it in verdicts.values()]
        yield _row(label, cells) + mark


def _times(verdicts: Mapping[str, Verdict]) -> Iterator[str]:
    every = verdicts.values()
    yield _row("faults", [_faults(it) for it in every])
    yield _row("  during a hold of `job`", [str(it.hits) for it in every])
    yield _row("  for", [_durations(it) for it in every])
    mark = WRONG if any(it.is_late for it in every) else ""
    yield _row("longest interruption", [f"{it.interruption_s:.1f} s" for it in every]) + mark
    yield _row("  expected: at most", [f"{it.expected.latest_s:.1f} s" for it in every])
    yield _row("", [f"({it.expected.latest_is})" for it in every])


def _cells(verdict: Verdict, shown: Callable[[Results], object]) -> str:
    return "".join(f"{shown(worker):>{WORKER}}" for worker in verdict.workers)


def _faults(verdict: Verdict) -> str:
    kinds = Counter(fault.what for fault in verdict.expected.faults)
    return ", ".join(f"{number} {kind}s" for kind, number in sorted(kinds.items()))


def _durations(verdict: Verdict) -> str:
    faults = verdict.expected.faults
    return f"{', '.join(f'{fault.took_s:.1f}' for fault in faults)} s"


def _row(label: str, cells: Iterable[str]) -> str:
    width = 3 * WORKER
    return f"  {label:<{LABEL}}" + (" " * GAP).join(f"{cell:>{width}}" for cell in cells)
