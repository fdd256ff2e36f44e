"""What a process does that competes with others. A module, so that a spawned process finds it."""

from __future__ import annotations

import os
from pathlib import Path

import memlock


def contend(url: str, name: str, folder: str, rounds: int) -> None:
    """Enters so many times, and writes down each time who it was and with which fence."""
    mutex = memlock.connect(url).mutex(name)
    inside, entries = Path(folder, "inside"), Path(folder, "entries")
    for _ in range(rounds):
        with mutex:
            inside.touch(exist_ok=False)
            with entries.open("a") as file:
                file.write(f"{os.getpid()} {mutex.fence}\n")
            inside.unlink()
