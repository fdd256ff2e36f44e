"""One of the processes of `make faults`, in Python: client.py URL HISTORY SEED.

It does what client.rs does, and writes a history of the same format (tests/support/history.rs),
until its standard input ends.
"""

from __future__ import annotations

import os
import random
import select
import sys
import time

import memlock

NAMES, SESSION_MS, KEY_MS, SESSION_LIFE_S = 3, 2000, 4, 60
# As in client.rs.
SEMAPHORES = [("p0", 2, 1), ("p1", 4, 3)]
AFTER_FAILURE_S, SHORTLY_S = 0.01, 0.03
OK, BUSY, TIMED_OUT, DUPLICATE, EXISTS, NOT_FOUND = 0, 1, 2, 3, 4, 7


def now() -> int:
    """Nanoseconds on the boot clock."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Client:
    """One client with its history."""

    def __init__(self, url: str, history: str, seed: int) -> None:
        self._client = memlock.connect(url)
        self._history = os.open(history, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._chance = random.Random(seed)
        self._session = 0
        self._list: memlock.DistinctList | None = None

    def live(self) -> None:
        """Contends and inserts until nobody wants it any more."""
        while not select.select([0], [], [], self._chance.randrange(3) / 1000)[0]:
            what = self._chance.randrange(6)
            if what == 0:
                self._insert()
            elif what < 3:
                self._contend_for_permits()
            else:
                self._contend()

    def _say(self, text: str) -> None:
        os.write(self._history, f"{now()} 0 {text}\n".encode())

    def _call(self, op: str, name: str, first: int = 0, second: int = 0) -> None:
        self._say(f"call {op} {name} {first} {second}")

    def _done(self, answer: int, first: int = 0, second: int = 0, said: object = "") -> None:
        words = " ".join(str(said).split("\n"))
        self._say(f"done {answer} {first} {second} {words}")
        if answer < 0:
            time.sleep(AFTER_FAILURE_S)

    def _lease_and_wait(self) -> tuple[int, int]:
        lease_ms = 1000 + self._chance.randrange(1000)
        return lease_ms, 0 if self._chance.randrange(10) < 4 else 50 + self._chance.randrange(1450)

    def _contend(self) -> None:
        name = f"m{self._chance.randrange(NAMES)}"
        lease_ms, wait_ms = self._lease_and_wait()
        mutex = self._client.mutex(name, lease=lease_ms / 1000)
        self._call("lock", name, lease_ms, wait_ms)
        try:
            if wait_ms:
                got = mutex.acquire(timeout=wait_ms / 1000)
            else:
                got = mutex.acquire(blocking=False)
        except memlock.Error as error:
            self._done(error.code, said=error)
            return
        if not got:
            self._done(TIMED_OUT if wait_ms else BUSY)
            return
        self._done(OK, mutex.fence, _deadline(mutex))
        if mutex.remaining > 0:
            self._say("enter")
            self._be_inside(mutex, name, lease_ms)
            self._say("leave")
        for _ in range(2):
            self._call("unlock", name)
            try:
                mutex.release()
            except (memlock.Unreachable, memlock.OutcomeUnknown) as error:
                self._done(error.code, said=error)
                continue
            except memlock.Error as error:
                self._done(error.code, said=error)
            else:
                self._done(OK)
            break

    def _be_inside(self, mutex: memlock.Mutex, name: str, lease_ms: int) -> None:
        what = self._chance.randrange(1000)
        if what == 0:
            time.sleep((lease_ms + self._chance.randrange(2500)) / 1000)
        elif what < 5:
            time.sleep(max(0.0, mutex.remaining - SHORTLY_S))
        elif what < 12:
            self._call("extend", name, lease_ms)
            try:
                mutex.extend()
            except memlock.Error as error:
                self._done(error.code, 0, _deadline(mutex), error)
            else:
                self._done(OK, 0, _deadline(mutex))
                time.sleep(self._chance.randrange(200) / 1000)
        elif what < 28:
            time.sleep((20 + self._chance.randrange(100)) / 1000)
        else:
            time.sleep(self._chance.randrange(3) / 1000)

    def _contend_for_permits(self) -> None:
        name, size, most = self._chance.choice(SEMAPHORES)
        lease_ms, wait_ms = self._lease_and_wait()
        permits, priority = 1 + self._chance.randrange(most), self._chance.randrange(3) - 1
        semaphore = self._client.semaphore(name, size, lease=lease_ms / 1000)
        self._say(f"call acquire {name} {lease_ms} {wait_ms} {permits} {priority}")
        limit = {"timeout": wait_ms / 1000} if wait_ms else {"blocking": False}
        try:
            got = semaphore.acquire(permits=permits, priority=priority, **limit)
        except memlock.Error as error:
            self._done(error.code, said=error)
            return
        if not got:
            self._done(TIMED_OUT if wait_ms else BUSY)
            return
        self._done(OK, permits, _deadline(semaphore))
        if semaphore.remaining > 0:
            self._use_permits(semaphore, name, lease_ms)
        # Some release what they have released.
        again = self._chance.randrange(16) == 0
        for _ in range(2):
            self._call("release", name)
            try:
                semaphore.release()
            except (memlock.Unreachable, memlock.OutcomeUnknown) as error:
                self._done(error.code, said=error)
                continue
            except memlock.Error as error:
                self._done(error.code, said=error)
            else:
                self._done(OK)
            if not again:
                break

    def _use_permits(self, semaphore: memlock.Semaphore, name: str, lease_ms: int) -> None:
        what = self._chance.randrange(1000)
        if what == 0:
            time.sleep((lease_ms + self._chance.randrange(2500)) / 1000)
        elif what < 5:
            time.sleep(max(0.0, semaphore.remaining - SHORTLY_S))
        elif what < 15:
            self._call("prolong", name, lease_ms)
            try:
                semaphore.extend()
            except memlock.Error as error:
                self._done(error.code, 0, _deadline(semaphore), error)
            else:
                self._done(OK, 0, _deadline(semaphore))
                time.sleep(self._chance.randrange(200) / 1000)
        elif what < 300:
            time.sleep((5 + self._chance.randrange(35)) / 1000)
        elif what < 600 and name == SEMAPHORES[0][0]:
            # So that some stand in its queue.
            time.sleep((40 + self._chance.randrange(80)) / 1000)
        else:
            time.sleep(self._chance.randrange(3) / 1000)

    def _insert(self) -> None:
        ms = now() // 1_000_000
        session, key = ms // SESSION_MS, ms // KEY_MS
        if self._list is None or self._session != session:
            self._list, self._session = None, session
            self._call("setup", f"s{session}")
            try:
                self._list = self._client.distinct_list(f"s{session}", SESSION_LIFE_S)
            except memlock.Error as error:
                self._done(error.code, said=error)
                return
            self._done(OK if self._list.created else EXISTS)
        self._call("insert", f"s{session}", key)
        try:
            [(number, first)] = self._list.add_many([str(key)])
        except memlock.Error as error:
            self._done(error.code, said=error)
            if error.code == NOT_FOUND:
                self._list = None
            return
        self._done(OK if first else DUPLICATE, number)


def _deadline(held: memlock.Mutex | memlock.Semaphore) -> int:
    """Until when it is certainly ours: rather too early than too late."""
    before = now()
    try:
        left = held.remaining
    except memlock.Error:
        return 0
    return before + int(left * 1e9) if left > 0 else 0


if __name__ == "__main__":
    Client(sys.argv[1], sys.argv[2], int(sys.argv[3])).live()
