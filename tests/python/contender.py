"""What a process does that competes with others. A module, so that a spawned process finds it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import memlock
from support import safe


def contend(url: str, name: str, folder: str, rounds: int) -> None:
    """Enters so many times, and writes down each time who it was and with which fence."""
    mutex = memlock.connect(url).mutex(name)
    inside, entries = Path(folder, "inside"), Path(folder, "entries")
    for _ in range(rounds):
        with mutex:
            try:
                inside.touch(exist_ok=False)
            except FileExistsError:
                safe(False, f"{name} is held twice")
            with entries.open("a") as file:
                file.write(f"{os.getpid()} {mutex.fence}\n")
            inside.unlink()


def share(url: str, name: str, report: str, rounds: int) -> None:
    """Takes one of two permits so many times, and writes down from when until when it had it."""
    semaphore = memlock.connect(url).semaphore(name, permits=2)
    for _ in range(rounds):
        with semaphore:
            began = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            time.sleep(0.001)
            ended = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        with Path(report).open("a") as file:
            file.write(f"{began} {ended}\n")
