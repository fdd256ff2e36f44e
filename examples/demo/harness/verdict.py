"""Checks the reports of all workers against each other and against the input."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from .corpus import Corpus
from .journal import HoldInterval, Report

# From the grant to the dead worker until the grant to its successor: no less than the lease. Grants
# are recorded a moment after they are made.
LEASE_S = 3.0
SOONEST_TAKE_OVER_S = LEASE_S - 0.1

# From the end of that lease, or of the successor's previous hold if that was later, until the grant
# to the successor: the delay of memcached's clock of whole seconds, and of the waiter's next poll.
LATEST_TAKE_OVER_S = 3.0

# An inserter that is stopped during an insert for longer than this may be overtaken by another one
# with the same word, and its id is then never used. That is allowed.
GRACE_S = 0.1


@dataclass(frozen=True)
class Verdict:
    """The results."""

    words_read: int
    words_of_the_dead: int
    distinct: int
    duplicates: int
    holds: int
    # What must be 0.
    miscounted_words: int
    disagreeing_ids: int
    shared_ids: int
    wrong_firsts: int
    holes: int
    holes_allowed: bool
    units_not_done_once: int
    double_grants: int
    fences_out_of_order: int
    miscounting_workers: int
    # None if no worker took over.
    take_over: TakeOver | None

    @property
    def good(self) -> bool:
        """Whether all promises were kept."""
        zeros = (
            self.miscounted_words,
            self.disagreeing_ids,
            self.shared_ids,
            self.wrong_firsts,
            0 if self.holes_allowed else self.holes,
            self.units_not_done_once,
            self.double_grants,
            self.fences_out_of_order,
            self.miscounting_workers,
        )
        return not any(zeros) and self.take_over is not None and self.take_over.good


@dataclass(frozen=True)
class TakeOver:
    """How another worker took over the dead worker's unit."""

    dead: HoldInterval
    successor: HoldInterval
    # The end of the successor's previous hold; None if there was none.
    free_since: int | None

    @property
    def seconds(self) -> float:
        """From the grant to the dead worker until the grant to its successor."""
        return (self.successor.start - self.dead.start) / 1e9

    @property
    def good(self) -> bool:
        """Whether the take-over was neither too early nor too late."""
        due = self.dead.start + int(LEASE_S * 1e9)
        late = (self.successor.start - max(due, self.free_since or due)) / 1e9
        return self.seconds >= SOONEST_TAKE_OVER_S and late <= LATEST_TAKE_OVER_S


def verdict_of(reports: Sequence[Report], corpus: Corpus, killed: int) -> Verdict:
    """Check all reports. `killed`: when the victim was certainly dead, on the boot clock."""
    words_by_id, ids_by_word = defaultdict(set), defaultdict(set)
    firsts: Counter[bytes] = Counter()
    for report in reports:
        firsts.update(report.new)
        for word, number in report.told:
            words_by_id[number].add(word)
            ids_by_word[word].add(number)
    holds = [hold for report in reports for hold in report.holds]
    done = [hold for hold in holds if hold.done]
    counted = sum((hold.words for hold in done), Counter())
    times_done = Counter(hold.unit for hold in done)
    read = sum(report.words for report in reports)
    in_order = _in_order(holds)
    return Verdict(
        words_read=sum(counted.values()),
        words_of_the_dead=read - sum(counted.values()),
        distinct=len(ids_by_word),
        duplicates=read - sum(firsts.values()),
        holds=len(holds),
        miscounted_words=sum(((counted - corpus.words) + (corpus.words - counted)).values()),
        disagreeing_ids=sum(len(ids) > 1 for ids in ids_by_word.values()),
        shared_ids=sum(len(words) > 1 for words in words_by_id.values()),
        wrong_firsts=sum(times != 1 for times in firsts.values()),
        holes=max(words_by_id, default=0) - len(words_by_id),
        holes_allowed=any(hold.seconds > GRACE_S for hold in holds),
        units_not_done_once=sum(times_done[unit] != 1 for unit in range(len(corpus.units))),
        double_grants=sum(later.start < _over(earlier, killed) for earlier, later in in_order),
        fences_out_of_order=sum(later.fence <= earlier.fence for earlier, later in in_order),
        miscounting_workers=sum(not report.counts_agree for report in reports),
        take_over=_take_over(in_order, holds),
    )


def _over(hold: HoldInterval, killed: int) -> int:
    """Return the end of a hold; a dead worker's ends with its lease or its death."""
    return hold.end or min(killed, hold.start + int(SOONEST_TAKE_OVER_S * 1e9))


def _in_order(holds: Sequence[HoldInterval]) -> list[tuple[HoldInterval, HoldInterval]]:
    """Return each hold with the next one of the same unit."""
    by_unit = defaultdict(list)
    for hold in sorted(holds, key=lambda hold: hold.start):
        by_unit[hold.unit].append(hold)
    return [pair for holds in by_unit.values() for pair in zip(holds, holds[1:])]


def _take_over(
    in_order: Sequence[tuple[HoldInterval, HoldInterval]], holds: Sequence[HoldInterval]
) -> TakeOver | None:
    for earlier, later in in_order:
        if earlier.worker.is_victim:
            own = (hold.end for hold in holds if hold.worker is later.worker and hold.end)
            before = max((end for end in own if end <= later.start), default=None)
            return TakeOver(earlier, later, before)
    return None
