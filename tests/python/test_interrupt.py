"""Ctrl-C ends a wait for a lock or a permit within 100 ms, and leaves nothing held."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import memlock
import pytest
from support import PATIENCE, Child, Memcached, MemcachedText, eventually, quick_once

# How the child blocks in each way that there is, of something of which nothing is free.
WAYS = {
    "acquire": "mutex.acquire()",
    "acquire with a timeout": "mutex.acquire(timeout=60)",
    "with": "with mutex: raise SystemExit('it got the lock')",
    "bare mutex_lock": "memlock.mutex_lock(name, 30)",
    "semaphore": "semaphore.acquire()",
    "with a timeout and a priority": "semaphore.acquire(timeout=60, priority=7)",
    "with semaphore": "with semaphore: raise SystemExit('it got a permit')",
    "permit": "semaphore.permit(permits=2)",
    "bare semaphore_acquire": "memlock.semaphore_acquire(name, 30)",
    "retrying at a counter": "counter.acquire()",
    "parked at a counter": "counter.acquire(priority=0)",
}

CHILD = """
import sys, time
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
        print(time.monotonic())
"""


@pytest.fixture(scope="module")
def child(shared_server: Memcached) -> Iterator[Child]:
    with Child(CHILD, shared_server.url) as child:
        yield child


def blocks(child: Child, name: str, way: str) -> None:
    child.says(f"{name} {way}")
    assert child.reads() == "blocking"


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_ctrl_c_ends_a_wait_with_nothing_held_and_nothing_left(
    child: Child, client: memlock.Client, plain: MemcachedText, name: str, way: str
) -> None:
    mutex, semaphore = client.mutex(name), client.semaphore(name, 2)
    counter = client.counter(name)
    counter.set_up(0)

    def takes(pause: float) -> float:
        mutex.acquire()
        semaphore.acquire(permits=2)
        blocks(child, name, way)
        time.sleep(pause)
        sent = time.monotonic()
        child.signal(signal.SIGINT)
        took = float(child.reads()) - sent
        assert plain.queue(name) == plain.permit_queue(name) == plain.queue(name, "") == []
        assert mutex.check()
        mutex.release()
        semaphore.release()
        assert counter.release() == 1
        time.sleep(0.02)
        assert not mutex.locked(), "the interrupted wait took the lock after all"
        assert semaphore.available == 2, "the interrupted wait took a permit after all"
        assert counter.try_acquire(), "the interrupted wait took the counter's after all"
        return took

    # The longer it has waited, the longer are its pauses: that is the subject.
    quick_once(lambda: median(takes(pause) for pause in [0.05, 0.1, 0.4]), 0.1)


@pytest.mark.parametrize("way", ["acquire", "bare mutex_lock"])
def test_an_interrupted_wait_leaves_the_queue_and_the_next_one_is_woken(
    child: Child, server: Memcached, plain: MemcachedText, name: str, way: str
) -> None:
    holder, waiter = (memlock.connect(server.url).mutex(name) for _ in range(2))

    def takes() -> float:
        holder.acquire()
        blocks(child, name, WAYS[way])
        eventually(lambda: len(plain.queue(name)) == 1)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(waiter.acquire)
            eventually(lambda: len(plain.queue(name)) == 2)
            _, ours = plain.queue(name)
            child.signal(signal.SIGINT)
            assert float(child.reads()) > 0
            assert plain.queue(name) == [ours]
            began = time.monotonic()
            holder.release()
            assert waiting.result(PATIENCE) is True
            took = time.monotonic() - began
        waiter.release()
        return took

    # One that is not woken looks by itself, after 0.85 s at the earliest.
    quick_once(takes, 0.6)
    assert plain.queue(name) == []


SECOND_THREAD = """
import sys, threading
import memlock
url, name = sys.argv[1:]
mutex = memlock.connect(url).mutex(name)
done = threading.Event()
def block():
    print("got it" if mutex.acquire() else "not")
    done.set()
threading.Thread(target=block).start()
try:
    print("blocking")
    done.wait()
except KeyboardInterrupt:
    print("interrupted")
done.wait()
"""


def test_ctrl_c_is_the_main_threads_and_other_threads_wait_on(
    server: Memcached, plain: MemcachedText, name: str
) -> None:
    key = f"lock:{name}"
    plain.add(key)
    with Child(SECOND_THREAD, server.url, name) as child:
        assert child.reads() == "blocking"
        child.signal(signal.SIGINT)
        assert child.reads() == "interrupted"
        plain.delete(key)
        assert child.reads() == "got it"
        assert child.ends() == 0


class AlarmError(Exception):
    pass


@pytest.mark.parametrize("raises", [True, False])
def test_a_signal_handler_that_raises_ends_the_wait_and_one_that_returns_does_not(
    server: Memcached, client: memlock.Client, name: str, raises: bool
) -> None:
    holder, rung = memlock.connect(server.url).mutex(name), []

    def ring(*_: object) -> None:
        rung.append(True)
        if raises:
            raise AlarmError
        if len(rung) == 4:
            holder.release()

    previous = signal.signal(signal.SIGALRM, ring)
    holder.acquire()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0 if raises else 0.02)
        if raises:
            with pytest.raises(AlarmError):
                client.mutex(name).acquire()
        else:
            with client.mutex(name):
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert len(rung) >= (1 if raises else 4)
    assert holder.is_held == raises
