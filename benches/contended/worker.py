"""Processes that contend for one lock or semaphore from Python, at full speed.

    worker.py CONTENDER URL FD 1

Like worker.c, with the same board; each process has one thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

import memlock
import memlock.aio
import redis
import redis_lock
import redis_semaphore
import sherlock
import waiting
from board import Board
from pymemcache.client.base import Client
from pymemcache.serde import pickle_serde
from waiting import Lock

NAME = "contended"
LEASE_S = 30
READY_POLL_S = 0.001
PR_SET_PDEATHSIG = 1

now_ns = time.monotonic_ns


# Each contender is a function that connects, and returns a function that makes a lock by its name.
# Contenders for semaphores get the number of permits.


def memlock_locks(url: str) -> Callable[[str], Lock]:
    """memlock's mutex."""
    client = memlock.connect(url)

    def make(name: str) -> Lock:
        mutex = client.mutex(name, lease=LEASE_S)
        return Lock(mutex.acquire, mutex.release, lambda: mutex.fence)

    return make


def memlock_aio_locks(url: str) -> Callable[[str], Lock]:
    """memlock.aio's mutex: the process waits in its event loop."""
    loop = asyncio.new_event_loop()
    client = memlock.aio.connect(url)

    def make(name: str) -> Lock:
        mutex = client.mutex(name, lease=LEASE_S)
        return Lock(
            lambda: loop.run_until_complete(mutex.acquire()),
            lambda: loop.run_until_complete(mutex.release()),
            lambda: mutex.fence,
        )

    return make


def redis_lock_locks(url: str) -> Callable[[str], Lock]:
    """python-redis-lock: SET NX, and BLPOP on a list to which the holder pushes on release."""
    client = _redis(url)

    def make(name: str) -> Lock:
        lock = redis_lock.Lock(client, name, expire=LEASE_S)
        return Lock(lock.acquire, lock.release)

    return make


def redis_py_locks(url: str) -> Callable[[str], Lock]:
    """redis-py's lock, which polls every 0.1 s by default."""
    client = _redis(url)

    def make(name: str) -> Lock:
        lock = client.lock(name, timeout=LEASE_S)
        return Lock(lock.acquire, lock.release)

    return make


def sherlock_locks(url: str) -> Callable[[str], Lock]:
    """sherlock's MCLock over pymemcache, which polls every 0.1 s by default."""
    place = urlsplit(url)
    # As in pairs.py: MCLock needs the answer to `add`, and its str back as a str.
    client = Client(
        (place.hostname, place.port), no_delay=True, default_noreply=False, serde=pickle_serde
    )

    def make(name: str) -> Lock:
        lock = sherlock.MCLock(name, client=client, expire=LEASE_S, timeout=float("inf"))
        return Lock(lock.acquire, lock.release)

    return make


def semaphore_semaphores(url: str, permits: int) -> Callable[[str], Lock]:
    """memlock's semaphore."""
    client = memlock.connect(url)

    def make(name: str) -> Lock:
        semaphore = client.semaphore(name, permits, lease=LEASE_S)
        return Lock(semaphore.acquire, semaphore.release)

    return make


def redis_list_semaphores(url: str, permits: int) -> Callable[[str], Lock]:
    """A list of as many tokens as there are permits: BLPOP acquires, RPUSH releases."""
    client = _redis(url)

    def make(name: str) -> Lock:
        # The first process creates the list.
        if client.set(f"{name}:made", 1, nx=True):
            client.rpush(name, *range(permits))
        return Lock(lambda: client.blpop(name), lambda: client.rpush(name, 1))

    return make


def py_redis_semaphores(url: str, permits: int) -> Callable[[str], Lock]:
    """py-redis-semaphore: a sorted set of holders, written by Lua; waiters use BLPOP."""
    client = _redis(url)

    def make(name: str) -> Lock:
        config = redis_semaphore.SemaphoreConfig(name=name, limit=permits, lock_timeout=LEASE_S)
        semaphore = redis_semaphore.Semaphore(client, config)
        return Lock(semaphore.acquire, semaphore.release)

    return make


def _redis(url: str) -> redis.Redis:
    # A timeout would interrupt BLPOP.
    return redis.Redis.from_url(url, socket_timeout=None)


CONTENDERS = {
    "advisory": waiting.advisory_locks,
    "get-lock": waiting.get_lock_locks,
    "listen": waiting.listen_locks,
    "memlock": memlock_locks,
    "memlock-aio": memlock_aio_locks,
    "python-redis-lock": redis_lock_locks,
    "redis-py": redis_py_locks,
    "redis-pubsub": waiting.pubsub_locks,
    "sherlock": sherlock_locks,
}

SEMAPHORES = {
    "semaphore": semaphore_semaphores,
    "redis-list": redis_list_semaphores,
    "py-redis": py_redis_semaphores,
}


class Stop(BaseException):
    """Ends a wait. No library catches it as an error."""


class Racer:
    """One process of the race."""

    def __init__(self, board: Board, index: int) -> None:
        self.board = board
        self.index = index
        self.waiting = False

    def run(self, make: Callable[[str], Lock]) -> None:
        """Get ready, wait for the start, race."""
        board, index = self.board, self.index
        # Another lock: connections and scripts must exist before the race, and the lock is unused.
        warm_up = make(f"warm-up-{index}")
        warm_up.acquire()
        warm_up.release()
        lock = make(NAME)
        signal.signal(signal.SIGTERM, self._on_term)
        cpu_before = cpu_ns()
        board.set_ready(index)
        while board.start_ns == 0:
            time.sleep(READY_POLL_S)
        time.sleep(max(0, board.start_ns - now_ns()) / 1e9)
        self._race(lock)
        board.set_cpu_ns(index, cpu_ns() - cpu_before)

    def _race(self, lock: Lock) -> None:
        acquire, release, fence = lock
        board, index, stop = self.board, self.index, Board.STOP
        words, hold_s, asked_at = board.words, board.hold_ns / 1e9, board.asked_at(index)
        turns = 0
        while True:
            try:
                self.waiting = True
                if words[stop]:
                    self.waiting = False
                    return
                words[asked_at] = asked = now_ns()
                acquire()
                entered = now_ns()
                self.waiting = False
            except Stop:
                self.waiting = False
                return  # asked stays on the board: this wait did not end
            if words[stop]:
                release()
                return
            board.enter(index, turns)
            words[asked_at] = 0
            number = fence()
            if hold_s:
                time.sleep(hold_s)
            board.leave(index)
            left = now_ns()
            release()
            board.log(index, turns, (asked, entered, left, number))
            turns += 1

    def _on_term(self, *_: object) -> None:
        # Interrupt neither a hold nor a release.
        if self.waiting:
            self.waiting = False
            raise Stop


def cpu_ns() -> int:
    """Return the processor time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return int((used.ru_utime + used.ru_stime) * 1e9)


def end_with_parent() -> None:
    """Ensure that no process outlives the harness, however it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def child(board: Board, index: int, connect: Callable[[], Callable]) -> int:
    """Run one process; return its exit status."""
    try:
        end_with_parent()
        Racer(board, index).run(connect())
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main(arguments: list[str]) -> int:
    """Start the processes and wait for them."""
    try:
        name, url, fd, _threads = arguments
        contender = (CONTENDERS | SEMAPHORES)[name]
    except (KeyError, ValueError):
        sys.exit(f"usage: worker.py {'|'.join(CONTENDERS | SEMAPHORES)} URL FD 1")
    board = Board.of_fd(int(fd))
    connect = partial(contender, url, *([board.permits] if name in SEMAPHORES else []))
    end_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # meant for the children, sent to the group
    for index in range(board.processes):
        if os.fork() == 0:
            # Without the cleanup of an orderly exit, which would use the connections.
            os._exit(child(board, index, connect))
    for _ in range(board.processes):
        if os.wait()[1] != 0:
            return 1  # the other children die with this process
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
