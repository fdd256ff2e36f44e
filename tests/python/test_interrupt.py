"""Ctrl-C ends a wait for a lock or a permit, and leaves nothing held."""

from __future__ import annotations

import signal
import time

import memlock
import pytest
from support import Child, Memcached, MemcachedText, Unwanted, eventually

# How the child blocks in each way that there is, of something of which nothing is free.
WAYS = [
    "mutex.acquire()",
    "mutex.acquire(timeout=60)",
    "with mutex: raise SystemExit('it got the lock')",
    "memlock.mutex_lock(name, 30)",
    "semaphore.acquire()",
    "semaphore.acquire(timeout=60, priority=7)",
    "with semaphore: raise SystemExit('it got a permit')",
    "semaphore.permit(permits=2)",
    "memlock.semaphore_acquire(name, 30)",
    "counter.acquire()",
    "counter.acquire(priority=0)",
]

CHILD = """
import sys
import memlock
url = sys.argv[1]
memlock.init(url)
client = memlock.connect(url)
for line in sys.stdin:
    name, _, way = line.strip().partition(" ")
    mutex, semaphore, counter = client.mutex(name), client.semaphore(name), client.counter(name)
    try:
        print("blocking")
        exec(way)
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_ctrl_c_ends_a_wait_with_nothing_held_and_nothing_left(
    server: Memcached, client: memlock.Client, plain: MemcachedText, name: str
) -> None:
    mutex, semaphore = client.mutex(name), client.semaphore(name, 2)
    counter = client.counter(name)
    counter.set_up(0)
    with Child(CHILD, server.url) as child:
        for way in WAYS:
            mutex.acquire()
            semaphore.acquire(permits=2)
            child.says(f"{name} {way}")
            assert child.reads() == "blocking"
            # In most cases it waits by then.
            time.sleep(0.05)
            child.signal(signal.SIGINT)
            assert child.reads() == "interrupted", way
            assert plain.queue(name) == plain.permit_queue(name) == plain.queue(name, "") == []
            assert mutex.check()
            mutex.release()
            semaphore.release()
            assert counter.release() == 1
            time.sleep(0.02)
            assert not mutex.locked(), f"{way}: the interrupted wait took the lock after all"
            assert semaphore.available == 2, f"{way}: it took a permit after all"
            assert counter.try_acquire(), f"{way}: it took the counter's after all"


SECOND_THREAD = """
import sys, threading
import memlock
url, name = sys.argv[1:]
mutex = memlock.connect(url).mutex(name)
def block():
    print("got it" if mutex.acquire() else "not")
other = threading.Thread(target=block)
other.start()
sys.stdin.readline()
try:
    print("blocking")
    mutex.acquire()
except KeyboardInterrupt:
    print("interrupted")
other.join()
"""


def test_ctrl_c_is_the_main_threads_and_other_threads_wait_on(
    server: Memcached, plain: MemcachedText, name: str
) -> None:
    key = f"lock:{name}"
    plain.add(key)
    with Child(SECOND_THREAD, server.url, name) as child:
        eventually(lambda: plain.queue(name))
        child.says("")
        assert child.reads() == "blocking"
        # Behind another thread of its process, the main thread does not ask the server: the signal
        # alone ends its wait.
        time.sleep(0.2)
        child.signal(signal.SIGINT)
        assert child.reads() == "interrupted"
        plain.delete(key)
        assert child.reads() == "got it"
        assert child.ends() == 0


@pytest.mark.parametrize("raises", [True, False])
def test_a_signal_handler_that_raises_ends_the_wait_and_one_that_returns_does_not(
    server: Memcached, client: memlock.Client, name: str, raises: bool
) -> None:
    holder, rung = memlock.connect(server.url).mutex(name), []

    def ring(*_: object) -> None:
        rung.append(True)
        if raises:
            raise Unwanted
        if len(rung) == 4:
            holder.release()

    previous = signal.signal(signal.SIGALRM, ring)
    holder.acquire()
    try:
        if raises:
            with pytest.raises(Unwanted):
                signal.setitimer(signal.ITIMER_REAL, 0.02)
                client.mutex(name).acquire()
        else:
            signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
            with client.mutex(name):
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert len(rung) >= (1 if raises else 4)
    assert holder.is_held == raises
