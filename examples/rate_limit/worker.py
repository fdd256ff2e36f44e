"""A worker of the rate limit, in Python: at most three of all workers are in the section.

    python worker.py URL REPORT TURNS

The report gets a line `in <time>` after each grant and `out <time>` before each release, in
nanoseconds of the boot clock. With RATE_LIMIT_DIES=1 in its environment, the worker stays in the
section until it is killed; its permit becomes available when its lease ends.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TextIO

import memlock

PERMITS = 3
LEASE = 60  # seconds: a dead worker's permit is free after this
BRIEF_LEASE = 2  # seconds: the same for the worker that is to be killed
STAY = 0.02  # seconds


def say(report: TextIO, what: str) -> None:
    """Write a line to the report without buffering: a killed worker cannot flush."""
    report.write(f"{what} {time.clock_gettime_ns(time.CLOCK_BOOTTIME)}\n")
    report.flush()


def main() -> None:
    """Enter the section TURNS times."""
    url, path, turns = sys.argv[1:]
    dies = os.environ.get("RATE_LIMIT_DIES") == "1"
    lease = BRIEF_LEASE if dies else LEASE
    section = memlock.connect(url).semaphore("section", permits=PERMITS, lease=lease)
    with open(path, "w", encoding="ascii") as report:
        for _ in range(int(turns)):
            with section:
                say(report, "in")
                while dies:
                    signal.pause()
                time.sleep(STAY)
                say(report, "out")


if __name__ == "__main__":
    try:
        main()
    except (memlock.Error, OSError, ValueError) as error:
        sys.exit(f"worker.py: {error}")
