"""Ctrl-C ends a wait for a lock or a permit within 100 ms, and leaves nothing held."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import memlock
import pytest
from support import Child, Memcached, MemcachedText, eventually

# A busy machine may spoil some measurements, but not all.
TRIES = 4

# How the child blocks in each way that there is.
WAYS = {
    "acquire": "mutex.acquire()",
    "acquire with a timeout": "mutex.acquire(timeout=60)",
    "with": "with mutex: raise SystemExit('it got the lock')",
    "bare mutex_lock": "memlock.mutex_lock(name, 30)",
}

CHILD = """
import sys, time
import memlock
url, name, way = sys.argv[1:]
memlock.init(url)
mutex = memlock.connect(url).mutex(name)
for _ in sys.stdin:
    try:
        print("blocking")
        exec(way)
    except KeyboardInterrupt:
        print(time.monotonic())
"""


def most_are_ended_in_time(takes: Callable[[float], float]) -> None:
    """Interrupts waits after pauses, and looks how long it takes until they are ended."""
    for _ in range(TRIES):
        # The longer it has waited, the longer are its pauses: that is the subject.
        took = [takes(pause) for pause in [0.05, 0.1, 0.2, 0.4, 0.6]]
        if median(took) < 0.1:
            return
    raise AssertionError(took)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_ctrl_c_ends_a_wait_within_a_tenth_of_a_second(
    server: Memcached, plain: MemcachedText, name: str, way: str
) -> None:
    key = f"lock:{name}"
    with Child(CHILD, server.url, name, way) as child:

        def takes(pause: float) -> float:
            assert plain.add(key, b"another's")
            child.says("block")
            assert child.reads() == "blocking"
            time.sleep(pause)
            sent = time.monotonic()
            child.signal(signal.SIGINT)
            took = float(child.reads()) - sent
            assert plain.get(key) == b"another's"
            assert plain.delete(key)
            time.sleep(0.02)
            assert plain.get(key) is None, "the interrupted wait took the lock after all"
            return took

        most_are_ended_in_time(takes)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_an_interrupted_wait_leaves_the_queue_and_the_next_one_gets_the_lock(
    server: Memcached, client: memlock.Client, plain: MemcachedText, name: str, way: str
) -> None:
    holder, waiter = memlock.connect(server.url).mutex(name), client.mutex(name)
    with Child(CHILD, server.url, name, way) as child, ThreadPoolExecutor(1) as pool:

        def is_told() -> bool:
            holder.acquire()
            child.says("block")
            assert child.reads() == "blocking"
            eventually(lambda: len(plain.queue(name)) == 1)
            waiting = pool.submit(waiter.acquire)
            eventually(lambda: len(plain.queue(name)) == 2)
            _, ours = plain.queue(name)
            child.signal(signal.SIGINT)
            assert float(child.reads()) > 0
            assert plain.queue(name) == [ours]
            began = time.monotonic()
            holder.release()
            assert waiting.result(20) is True
            took = time.monotonic() - began
            waiter.release()
            return took < 0.6

        assert any(is_told() for _ in range(TRIES)), "it was not told, but found out for itself"
    assert plain.queue(name) == []
    assert plain.get(f"lock:{name}") is None


# The same for permits, of which none is free.
PERMIT_WAYS = {
    "acquire": "semaphore.acquire()",
    "acquire with a timeout and a priority": "semaphore.acquire(timeout=60, priority=7)",
    "with": "with semaphore: raise SystemExit('it got a permit')",
    "permit": "semaphore.permit(permits=2)",
    "bare semaphore_acquire": "memlock.semaphore_acquire(name, 30)",
    "retrying at a counter": "counter.acquire()",
    "parked at a counter": "counter.acquire(priority=0)",
}

PERMIT_CHILD = """
import sys, time
import memlock
url, name, way = sys.argv[1:]
memlock.init(url)
client = memlock.connect(url)
semaphore, counter = client.semaphore(name), client.counter(name)
for _ in sys.stdin:
    try:
        print("blocking")
        exec(way)
    except KeyboardInterrupt:
        print(time.monotonic())
"""


@pytest.mark.parametrize("way", PERMIT_WAYS.values(), ids=PERMIT_WAYS.keys())
def test_ctrl_c_ends_a_wait_for_a_permit_with_nothing_held_and_nothing_left(
    server: Memcached, client: memlock.Client, plain: MemcachedText, name: str, way: str
) -> None:
    semaphore, counter = client.semaphore(name, 2), client.counter(name)
    counter.set_up(0)
    with Child(PERMIT_CHILD, server.url, name, way) as child:

        def takes(pause: float) -> float:
            semaphore.acquire(permits=2)
            child.says("block")
            assert child.reads() == "blocking"
            time.sleep(pause)
            sent = time.monotonic()
            child.signal(signal.SIGINT)
            took = float(child.reads()) - sent
            assert plain.permit_queue(name) == plain.queue(name, "") == []
            semaphore.release()
            assert counter.release() == 1
            time.sleep(0.02)
            assert semaphore.available == 2, "the interrupted wait took a permit after all"
            assert counter.try_acquire(), "the interrupted wait took the counter's after all"
            return took

        most_are_ended_in_time(takes)


SECOND_THREAD = """
import sys, threading, time
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


def test_a_signal_handler_that_raises_ends_the_wait_with_its_exception(
    client: memlock.Client, name: str
) -> None:
    class AlarmError(Exception):
        pass

    def ring(*_: object) -> None:
        raise AlarmError

    previous = signal.signal(signal.SIGALRM, ring)
    try:
        with client.mutex(name):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(AlarmError):
                client.mutex(name).acquire()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert not client.mutex(name).locked()


def test_a_signal_handler_that_returns_lets_the_wait_go_on(
    client: memlock.Client, name: str
) -> None:
    rung = []
    previous = signal.signal(signal.SIGALRM, lambda *_: rung.append(True))
    try:
        with client.mutex(name):
            signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
            assert client.mutex(name).acquire(timeout=0.3) is False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert len(rung) > 3


DAEMON = """
import sys, threading
import memlock
url, name = sys.argv[1:]
mutex = memlock.connect(url).mutex(name)
threading.Thread(target=mutex.acquire, daemon=True).start()
held = memlock.connect(url).mutex(name + "-held")
held.acquire()
print("leaving")
"""


def test_a_daemon_thread_in_a_wait_does_not_keep_the_program(
    server: Memcached, plain: MemcachedText, name: str
) -> None:
    plain.add(f"lock:{name}")
    with Child(DAEMON, server.url, name) as child:
        assert child.reads() == "leaving"
        assert child.ends() == 0
    assert plain.get(f"lock:{name}-held") is None, "what the program held is released at its end"


# This one takes its time to end: past all atexit calls it waits to be told to go on.
SLOW_END = """
import os, sys, threading
import memlock
url, name = sys.argv[1:]
mutex = memlock.connect(url).mutex(name)
threading.Thread(target=mutex.acquire, daemon=True).start()
class Last:
    def __del__(self, read=os.read):
        read(0, 1)
last = Last()
os.read(0, 1)
print("leaving")
"""


def test_a_daemon_threads_wait_ends_with_the_interpreter(
    server: Memcached, client: memlock.Client, plain: MemcachedText, name: str
) -> None:
    with client.mutex(name), Child(SLOW_END, server.url, name) as child:
        eventually(lambda: len(plain.queue(name)) == 1)
        child.says("")
        assert child.reads() == "leaving"
        eventually(lambda: plain.queue(name) == [])
        child.says("")
        assert child.ends() == 0


KILLED = """
import sys, time
import memlock
url, name = sys.argv[1:]
with memlock.connect(url).mutex(name, lease=2):
    print("holding")
    sys.stdin.read()
"""


def test_a_dead_holder_frees_the_lock_after_its_lease(
    server: Memcached, client: memlock.Client, name: str
) -> None:
    mutex = client.mutex(name)
    with Child(KILLED, server.url, name) as child:
        assert child.reads() == "holding"
        child.signal(signal.SIGKILL)
        assert child.ends() == -signal.SIGKILL
        began = time.monotonic()
        assert mutex.acquire(blocking=False) is False
        eventually(lambda: mutex.acquire(blocking=False))
        # Up to three seconds after the lease; and a machine may be busy.
        assert 0.5 < time.monotonic() - began < 8
    mutex.release()
