"""A worker of the demo, in Python. worker.c, worker.cpp and worker.rs do the same steps.

../README.md describes their behaviour and output.

    python worker.py URL PLAN REPORT FIRST [--stall]
"""

from __future__ import annotations

import re
import signal
import sys
import time
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import memlock

LEASE = 3  # seconds: a dead worker's unit is free after this
PATIENCE = 10  # seconds: how long to wait for a unit that another worker holds
SESSION = 600  # seconds: the lists expire after this

# A word is a longest run of ASCII letters and of bytes from 0x80 up; A to Z become a to z.
WORD = re.compile(rb"[A-Za-z\x80-\xff]+")


class Unit(NamedTuple):
    """A piece of a file."""

    offset: int
    length: int
    path: bytes

    def words(self) -> list[bytes]:
        """Read the unit's words, in order."""
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            return WORD.findall(file.read(self.length).lower())


@dataclass
class Worker:
    """Processes units, and reports each step."""

    client: memlock.Client
    words: memlock.DistinctList
    done: memlock.DistinctList
    report: BinaryIO
    stall: bool
    units_done: int = 0
    words_read: int = 0
    words_new: int = 0
    units_busy: int = 0

    def work_on(self, number: int, unit: Unit, patience: float) -> bool:
        """Return False if another worker holds the unit for all of `patience`."""
        name = f"unit:{number}"
        mutex = self.client.mutex(name, lease=LEASE)
        if not mutex.acquire(timeout=patience):
            return False

        self.say(f"hold {number} {mutex.fence} {boot_clock_ns()}")
        if name not in self.done:
            self.count_words(unit, name)
            # Still under the mutex: the next holder must find the unit done.
            if not self.done.add(name):
                sys.exit(f"worker.py: {name} was done by two")
            self.say(f"done {number}")
            print(f"done {name}", flush=True)
            self.units_done += 1
        self.say(f"free {number} {boot_clock_ns()}")
        mutex.release()
        return True

    def count_words(self, unit: Unit, name: str) -> None:
        """Get an id for each of the unit's words."""
        found = unit.words()
        if self.stall:
            self.insert(found[: len(found) // 2])
            self.die_in_the_middle(name)
        self.insert(found)

    def insert(self, keys: list[bytes]) -> None:
        """Insert in one call. The first inserter creates the id, and all inserters get it."""
        for key, (number, is_new) in zip(keys, self.words.add_many(keys)):
            self.words_new += is_new
            self.report.write(b"id %d %s %s\n" % (number, b"new" if is_new else b"dup", key))
        self.words_read += len(keys)

    def die_in_the_middle(self, name: str) -> None:
        """Wait to be killed."""
        self.report.flush()
        print(f"holding {name}", flush=True)
        while True:
            signal.pause()

    def say(self, line: str) -> None:
        """Write a line to the report."""
        self.report.write(line.encode() + b"\n")


def boot_clock_ns() -> int:
    """Read the clock on which leases are counted."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def read_plan(path: str) -> list[Unit]:
    """Read the units, one per line."""
    with open(path, "rb") as plan:
        fields = (line.rstrip(b"\n").split(b" ", 2) for line in plan)
        return [Unit(int(offset), int(length), path) for offset, length, path in fields]


def main() -> None:
    """Process all units."""
    url, plan, report, first, *stall = sys.argv[1:]
    units = read_plan(plan)
    client = memlock.connect(url)
    # The first process sets the lists up, and the others join them.
    words = client.distinct_list("words", duration=SESSION)
    done = client.distinct_list("done", duration=SESSION)
    with open(report, "wb") as file:
        worker = Worker(client, words, done, file, stall=stall == ["--stall"])

        # All workers start at the same time: the demo answers when the last one is ready.
        print("ready", flush=True)
        sys.stdin.readline()

        # All units, from a different starting point in each worker; busy units come last.
        left = []
        for number in (*range(int(first), len(units)), *range(int(first))):
            if not worker.work_on(number, units[number], 0):
                left.append(number)
        worker.units_busy = len(left)
        for number in left:
            if not worker.work_on(number, units[number], PATIENCE):
                sys.exit(f"worker.py: unit:{number} never came free")

        worker.say(
            f"total {worker.units_done} {worker.words_read} {worker.words_new} {worker.units_busy}"
        )


if __name__ == "__main__":
    try:
        main()
    except (memlock.Error, OSError, ValueError) as error:
        sys.exit(f"worker.py: {error}")
