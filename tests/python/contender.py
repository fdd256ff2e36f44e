"""What a process does that competes with others. A module, so that a spawned process finds it."""

from __future__ import annotations

import os
from pathlib import Path

import memlock
from support import safe

PERMITS = 2


def contend(url: str, name: str, folder: str, rounds: int) -> None:
    """Enters the mutex and the semaphore so many times, and writes down who it was, with which
    fence, and how many had a permit."""
    client = memlock.connect(url)
    mutex, semaphore = client.mutex(name), client.semaphore(name, PERMITS)
    alone, entries = Path(folder, "alone"), Path(folder, "entries")
    mine = Path(folder, f"permit-{os.getpid()}")
    for _ in range(rounds):
        with mutex:
            try:
                alone.touch(exist_ok=False)
            except FileExistsError:
                safe(False, f"{name} is held twice")
            with entries.open("a") as file:
                file.write(f"{os.getpid()} {mutex.fence}\n")
            alone.unlink()
        with semaphore:
            mine.touch()
            inside = len(list(Path(folder).glob("permit-*")))
            safe(inside <= PERMITS, f"{inside} have a permit")
            mine.unlink()
