"""What the clients of `make faults` and `make chaos` in Python share.

The lines of a history are those of tests/support/history.rs.
"""

from __future__ import annotations

import os
import random
import select
import time

import memlock

AFTER_FAILURE_S, SHORTLY_S = 0.01, 0.03
OK, BUSY, TIMED_OUT = 0, 1, 2


def now() -> int:
    """Nanoseconds on the boot clock."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def deadline(held: memlock.Mutex | memlock.Semaphore) -> int:
    """Until when it is certainly held: rather too early than too late."""
    before = now()
    try:
        left = held.remaining
    except memlock.Error:
        return 0
    return before + int(left * 1e9) if left > 0 else 0


class HistoryClient:
    """One client with its history."""

    # How long it pauses at most between two calls.
    idle_ms = 20

    def __init__(self, url: str, history: str, seed: int) -> None:
        self.client = memlock.connect(url)
        self._history = os.open(history, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.chance = random.Random(seed)

    def live(self) -> None:
        """Works until its standard input ends."""
        while not select.select([0], [], [], self.chance.randrange(self.idle_ms) / 1000)[0]:
            self.work()

    def work(self) -> None:
        raise NotImplementedError

    def say(self, text: str) -> None:
        os.write(self._history, f"{now()} 0 {text}\n".encode())

    def call(self, op: str, name: str, first: int = 0, second: int = 0) -> None:
        self.say(f"call {op} {name} {first} {second}")

    def done(self, answer: int, first: int = 0, second: int = 0, said: object = "") -> None:
        words = " ".join(str(said).split("\n"))
        self.say(f"done {answer} {first} {second} {words}")
        if answer < 0:
            time.sleep(AFTER_FAILURE_S)

    def got(self, acquire, wait_ms: int) -> bool:
        """Whether `acquire` is granted, within this time. If not, that is said."""
        try:
            got = acquire(timeout=wait_ms / 1000) if wait_ms else acquire(blocking=False)
        except memlock.Error as error:
            self.done(error.code, said=error)
            return False
        if not got:
            self.done(TIMED_OUT if wait_ms else BUSY)
        return got

    def extend(
        self, op: str, held: memlock.Mutex | memlock.Semaphore, name: str, lease_ms: int
    ) -> int:
        """Extends what is held. The answer's code."""
        self.call(op, name, lease_ms)
        try:
            held.extend()
        except memlock.Error as error:
            self.done(error.code, 0, deadline(held), error)
            return error.code
        self.done(OK, 0, deadline(held))
        return OK

    def release(
        self, op: str, held: memlock.Mutex | memlock.Semaphore, name: str, times: int
    ) -> None:
        """Releases what is held, after a failure once more."""
        for _ in range(times):
            self.call(op, name)
            try:
                held.release()
            except memlock.Error as error:
                self.done(error.code, said=error)
                if error.code > 0:
                    return
            else:
                self.done(OK)
                return

    def contend(self, name: str, lease_ms: int, wait_ms: int, releases: int) -> None:
        """Locks a mutex, does what `be_inside` does, and releases it."""
        mutex = self.client.mutex(name, lease=lease_ms / 1000)
        self.call("lock", name, lease_ms, wait_ms)
        if not self.got(mutex.acquire, wait_ms):
            return
        self.done(OK, mutex.fence or 0, deadline(mutex))
        if mutex.remaining > 0:
            self.say("enter")
            self.be_inside(mutex, name, lease_ms)
            self.say("leave")
        self.release("unlock", mutex, name, releases)

    def be_inside(self, mutex: memlock.Mutex, name: str, lease_ms: int) -> None:
        raise NotImplementedError
