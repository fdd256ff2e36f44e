"""One of the processes of `make faults`, in Python: client.py URL HISTORY SEED.

It does what client.rs does, and writes a history of the same format (tests/support/history.rs),
until its standard input ends.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial

import memlock

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))

from history_client import OK, SHORTLY_S, HistoryClient, deadline, now

NAMES, RELEASES, SESSION_MS, KEY_MS, SESSION_LIFE_S = 3, 2, 2000, 4, 60
# As in client.rs.
SEMAPHORES = [("p0", 2, 1), ("p1", 4, 3)]
DUPLICATE, EXISTS, NOT_FOUND = 3, 4, 7


class Client(HistoryClient):
    idle_ms = 3

    def __init__(self, url: str, history: str, seed: int) -> None:
        super().__init__(url, history, seed)
        self._session = 0
        self._list: memlock.DistinctList | None = None

    def work(self) -> None:
        """Contends or inserts."""
        what = self.chance.randrange(6)
        if what == 0:
            self._insert()
        elif what < 3:
            self._contend_for_permits()
        else:
            name = f"m{self.chance.randrange(NAMES)}"
            self.contend(name, *self._lease_and_wait(), RELEASES)

    def _lease_and_wait(self) -> tuple[int, int]:
        lease_ms = 1000 + self.chance.randrange(1000)
        return lease_ms, 0 if self.chance.randrange(10) < 4 else 50 + self.chance.randrange(1450)

    def be_inside(self, mutex: memlock.Mutex, name: str, lease_ms: int) -> None:
        what = self.chance.randrange(1000)
        if what == 0:
            time.sleep((lease_ms + self.chance.randrange(2500)) / 1000)
        elif what < 5:
            time.sleep(max(0.0, mutex.remaining - SHORTLY_S))
        elif what < 12:
            if self.extend("extend", mutex, name, lease_ms) == OK:
                time.sleep(self.chance.randrange(200) / 1000)
        elif what < 28:
            time.sleep((20 + self.chance.randrange(100)) / 1000)
        else:
            time.sleep(self.chance.randrange(3) / 1000)

    def _contend_for_permits(self) -> None:
        name, size, most = self.chance.choice(SEMAPHORES)
        lease_ms, wait_ms = self._lease_and_wait()
        permits, priority = 1 + self.chance.randrange(most), self.chance.randrange(3) - 1
        semaphore = self.client.semaphore(name, size, lease=lease_ms / 1000)
        self.say(f"call acquire {name} {lease_ms} {wait_ms} {permits} {priority}")
        acquire = partial(semaphore.acquire, permits=permits, priority=priority)
        if not self.got(acquire, wait_ms):
            return
        self.done(OK, permits, deadline(semaphore))
        if semaphore.remaining > 0:
            self._use_permits(semaphore, name, lease_ms)
        self.release("release", semaphore, name, RELEASES)
        if self.chance.randrange(16) == 0:
            # Some release what they have released.
            self.release("release", semaphore, name, 1)

    def _use_permits(self, semaphore: memlock.Semaphore, name: str, lease_ms: int) -> None:
        what = self.chance.randrange(1000)
        if what == 0:
            time.sleep((lease_ms + self.chance.randrange(2500)) / 1000)
        elif what < 5:
            time.sleep(max(0.0, semaphore.remaining - SHORTLY_S))
        elif what < 15:
            if self.extend("prolong", semaphore, name, lease_ms) == OK:
                time.sleep(self.chance.randrange(200) / 1000)
        elif what < 300:
            time.sleep((5 + self.chance.randrange(35)) / 1000)
        elif what < 600 and name == SEMAPHORES[0][0]:
            # So that some stand in its queue.
            time.sleep((40 + self.chance.randrange(80)) / 1000)
        else:
            time.sleep(self.chance.randrange(3) / 1000)

    def _insert(self) -> None:
        ms = now() // 1_000_000
        session, key = ms // SESSION_MS, ms // KEY_MS
        if self._list is None or self._session != session:
            self._list, self._session = None, session
            self.call("setup", f"s{session}")
            try:
                self._list = self.client.distinct_list(f"s{session}", SESSION_LIFE_S)
            except memlock.Error as error:
                self.done(error.code, said=error)
                return
            self.done(OK if self._list.created else EXISTS)
        self.call("insert", f"s{session}", key)
        try:
            [(number, first)] = self._list.add_many([str(key)])
        except memlock.Error as error:
            self.done(error.code, said=error)
            if error.code == NOT_FOUND:
                self._list = None
            return
        self.done(OK if first else DUPLICATE, number)


if __name__ == "__main__":
    Client(sys.argv[1], sys.argv[2], int(sys.argv[3])).live()
