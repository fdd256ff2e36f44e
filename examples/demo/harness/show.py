"""The output: progress during the run, and the table at the end."""

from __future__ import annotations

import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .corpus import Corpus
    from .journal import Report
    from .verdict import Verdict

BAR = 20
# The interval of progress lines if standard output is not a terminal.
LINE_EVERY_S = 1.0


class Progress:
    """One line that is updated on a terminal; periodic lines otherwise."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._next = self._began + LINE_EVERY_S
        self._on_terminal = sys.stdout.isatty()

    def say(self, sentence: str) -> None:
        """Print a permanent line."""
        self.clear()
        print(f"{self._elapsed():5.1f} s  {sentence}", flush=True)

    def update(self, done: int, units: int, remark: str) -> None:
        """Show how many units are done."""
        state = f"{done} of {units} units done{remark}"
        if self._on_terminal:
            filled = BAR * done // units
            bar = "#" * filled + "." * (BAR - filled)
            line = f"{self._elapsed():5.1f} s  [{bar}] {state}"
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\033[K{line[:width]}", end="", flush=True)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_EVERY_S
            self.say(f"{state}.")

    def clear(self) -> None:
        """Erase the updated line."""
        if self._on_terminal:
            print("\r\033[K", end="", flush=True)

    def _elapsed(self) -> float:
        return time.monotonic() - self._began


def table(corpus: Corpus, reports: Sequence[Report], verdict: Verdict, wall_s: float) -> str:
    """Return all results, with broken promises marked."""
    blocks = (_counts(corpus, verdict), _checks(verdict), _times(verdict, wall_s))
    lines = ["\n".join(_row(*row) for row in rows) + "\n" for rows in blocks]
    return "\n".join([*lines, *_languages(reports)])


def _row(label: str, value: str, note: str = "", good: bool = True) -> str:
    mark = "" if good else "  <-- WRONG"
    return f"  {label:<40}{value:>10}{mark}  {note}".rstrip()


def _counts(corpus: Corpus, verdict: Verdict) -> Iterator[tuple[str, str, str]]:
    skipped = f"{corpus.skipped} more are not text and were skipped" if corpus.skipped else ""
    yield "files", f"{corpus.files:,}", skipped
    yield "units", f"{len(corpus.units):,}", "each behind its mutex"
    yield "words read", f"{verdict.words_read:,}", ""
    dead = f"{verdict.words_of_the_dead:,}", "in the half of a unit that was done again"
    yield "words read by the dead worker", *dead
    yield "distinct words", f"{verdict.distinct:,}", "each with one id"
    yield "duplicates refused", f"{verdict.duplicates:,}", "each with the id of the first"


def _checks(verdict: Verdict) -> Iterator[tuple[str, str, str, bool]]:
    def zero(label: str, value: int, note: str = "") -> tuple[str, str, str, bool]:
        return label, f"{value:,}", note, value == 0

    yield zero("words that a plain count has otherwise", verdict.miscounted_words)
    yield zero("ids that disagree between workers", verdict.disagreeing_ids)
    yield zero("ids that several words have", verdict.shared_ids)
    yield zero("words without exactly one first inserter", verdict.wrong_firsts)
    overtaken = "an inserter was held up and overtaken: allowed" if verdict.holes_allowed else ""
    dense = f"of 1 to {verdict.distinct:,}" if verdict.holes == 0 else overtaken
    good = verdict.holes == 0 or (verdict.holes > 0 and verdict.holes_allowed)
    yield "ids never used", f"{verdict.holes:,}", dense, good
    yield zero("units not done exactly once", verdict.units_not_done_once)
    yield zero("double grants", verdict.double_grants, f"of {verdict.holds:,} holds")
    yield zero("fences out of order", verdict.fences_out_of_order)
    yield zero("workers whose own counts differ", verdict.miscounting_workers)


def _times(verdict: Verdict, wall_s: float) -> Iterator[tuple[str, str, str, bool]]:
    took = verdict.take_over
    if took is None:
        yield "take-over", "none", "nobody got the dead worker's unit", False
    else:
        note = f"unit:{took.dead.unit} to {took.successor.worker.name}; 3 to 6 s expected"
        yield "take-over", f"{took.seconds:.2f} s", note, took.good
    yield "wall time", f"{wall_s:.2f} s", "", True


def _languages(reports: Sequence[Report]) -> Iterator[str]:
    columns = ("workers", "units", "words", "new", "busy", "holds")
    sums: dict[str, list[int]] = defaultdict(lambda: [0] * len(columns))
    for report in reports:
        new = sum(report.new.values())
        row = (1, report.units, report.words, new, report.busy, len(report.holds))
        language = report.worker.language
        sums[language] = [old + more for old, more in zip(sums[language], row)]
    yield f"  {'language':<12}" + "".join(f"{column:>10}" for column in columns)
    for language in sorted(sums):
        yield f"  {language:<12}" + "".join(f"{value:>10,}" for value in sums[language])
