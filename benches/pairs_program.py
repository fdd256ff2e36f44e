"""What pairs.py and pairs_asyncio.py have in common: their arguments and their output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

Contender = TypeVar("Contender")
# How many pairs were made, and in how many seconds.
Measured = tuple[int, float]


@dataclass(frozen=True)
class Limit:
    """Exactly `count` pairs or, if that is 0, as many as fit in `seconds`."""

    count: int
    seconds: float


def main(
    program: str,
    contenders: Mapping[str, Contender],
    measure: Callable[[Contender, str, Limit], Measured],
) -> None:
    """Run the contender given on the command line."""
    try:
        name, url, limit = sys.argv[1:]
        contender = contenders[name]
        kind, number = limit.split("=")
        count = int({"count": number, "seconds": 0}[kind])
        seconds = float({"count": 0, "seconds": number}[kind])
    except (KeyError, ValueError):
        sys.exit(f"usage: {program} {'|'.join(contenders)} URL seconds=T|count=N")
    pairs, took = measure(contender, url, Limit(count, seconds))
    print(
        f"contender={name} unit=pair units={pairs} seconds={took:.6f} per_second={pairs / took:.1f}"
    )
