"""A worker of the failover demo, in Python. worker.c and worker.sh do the same.

../README.md describes their behaviour and output.

    python worker.py URL REPORT STOP
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import memlock

LEASE = 3  # seconds: longer than a restart takes, and not longer than the guard
PATIENCE = 60  # seconds: how long to wait for a lock
RETRY = 0.05  # seconds between attempts to reach a server that is down


class Worker:
    """Takes the lock `job` again and again, and holds its own all the time."""

    def __init__(self, url: str, report: str) -> None:
        """Open the client and the report."""
        self.client = memlock.connect(url)
        self.report = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def work(self, stop: Path) -> None:
        """Take turns until there is the file `stop`."""
        own = self.mutex("own-py")
        own.acquire()
        self.say("own", own.fence, boot_clock_ns())
        turn = 1
        while not stop.exists():
            turn += self.take_turn(hold_ms(turn))
        self.say("own-released", release(own), boot_clock_ns())

    def take_turn(self, ms: int) -> bool:
        """Wait for `job` and hold it; return False if the server was down."""
        job = self.mutex("job")
        try:
            job.acquire()
        except (memlock.Unreachable, memlock.OutcomeUnknown):
            self.say("unreached")
            time.sleep(RETRY)
            return False
        begin = boot_clock_ns()
        self.say("begin", job.fence, begin, ms)
        time.sleep(ms / 1000)  # the work
        self.say("end", boot_clock_ns())
        self.say("released", release(job), boot_clock_ns())
        return True

    def mutex(self, name: str) -> memlock.Mutex:
        """Return a mutex that is renewed while it is held, and whose loss is reported."""

        def on_lost(_why: str) -> None:
            self.say("lost", name, boot_clock_ns())

        return self.client.mutex(name, LEASE, timeout=PATIENCE, renew=True, on_lost=on_lost)

    def say(self, *words: object) -> None:
        """Append a line by one call, since losses are reported in another thread."""
        os.write(self.report, (" ".join(map(str, words)) + "\n").encode())


def release(mutex: memlock.Mutex) -> str:
    """Release the lock.

    `unreached`: the server was down, or is not known to have got the request. It has forgotten the
    lock if it was down; otherwise the client releases it later, or it ends with its lease.
    """
    try:
        mutex.release()
    except memlock.LockLost:
        return "lost"
    except (memlock.Unreachable, memlock.OutcomeUnknown):
        return "unreached"
    return "ok"


def hold_ms(turn: int) -> int:
    """Return long and short times by turns: 1.2 to 1.5 s, and 0.3 to 0.6 s."""
    return 300 + turn % 2 * 900 + turn * 100 % 400


def boot_clock_ns() -> int:
    """Read the clock on which leases are counted."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


if __name__ == "__main__":
    try:
        Worker(*sys.argv[1:3]).work(Path(sys.argv[3]))
    except (memlock.Error, OSError) as error:
        sys.exit(f"worker.py: {error}")
