"""One of the processes of `make chaos`, in Python: client.py URL HISTORY SEED.

It does what client.rs does, and writes a history of the same format (tests/support/history.rs),
until its standard input ends.
"""

from __future__ import annotations

import logging
import os
import sys
import time

import memlock

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))

from history_client import SHORTLY_S, HistoryClient

NAMES, RELEASES = 2, 3


class Client(HistoryClient):
    def work(self) -> None:
        name = f"m{self.chance.randrange(NAMES)}"
        lease_ms = 1000 + self.chance.randrange(3000)
        wait_ms = 0 if self.chance.randrange(10) < 3 else 50 + self.chance.randrange(3000)
        self.contend(name, lease_ms, wait_ms, RELEASES)

    def be_inside(self, mutex: memlock.Mutex, name: str, lease_ms: int) -> None:
        what = self.chance.randrange(1000)
        if what < 4:
            time.sleep((lease_ms + self.chance.randrange(2500)) / 1000)
        elif what < 14:
            time.sleep(max(0.0, mutex.remaining - SHORTLY_S))
        elif what < 54:
            self._hold_on(mutex, name, lease_ms)
        else:
            time.sleep(self.chance.randrange(20) / 1000)

    def _hold_on(self, mutex: memlock.Mutex, name: str, lease_ms: int) -> None:
        """Holds on for up to 8 s."""
        for _ in range(1 + self.chance.randrange(16)):
            time.sleep(self.chance.randrange(lease_ms // 6) / 1000)
            if mutex.remaining == 0 or self.extend("extend", mutex, name, lease_ms) > 0:
                return


if __name__ == "__main__":
    # That servers come and go is no news here.
    logging.getLogger("memlock").setLevel(logging.ERROR)
    Client(sys.argv[1], sys.argv[2], int(sys.argv[3])).live()
