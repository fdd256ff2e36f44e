"""Threads exclude each other, and other threads run while one waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import memlock
import pytest
from support import PATIENCE, Memcached, MemcachedText, eventually, safe, together

THREADS = 6
ROUNDS = 40
PERMITS = 3

# How a thread acquires one of so many.
WAYS: dict[str, Callable[[memlock.Client, str, int], Any]] = {
    "mutex": lambda client, name, _: client.mutex(name, lease=300),
    "semaphore": lambda client, name, permits: client.semaphore(name, permits, lease=300),
}


@pytest.mark.parametrize("way", WAYS)
def test_threads_with_one_object_exclude_each_other(
    any_client: memlock.Client, name: str, way: str, hasty_switching: None
) -> None:
    permits = 1 if way == "mutex" else PERMITS
    common = WAYS[way](any_client, name, permits)
    inside = threading.BoundedSemaphore(permits)
    fences: list[int] = []
    counter = 0

    def work() -> None:
        nonlocal counter
        for _ in range(ROUNDS):
            with common:
                safe(inside.acquire(blocking=False), "one too many is inside")
                if way == "mutex":
                    fences.append(common.fence)
                    seen = counter
                    for _ in range(50):
                        pass
                    counter = seen + 1
                time.sleep(0)
                inside.release()

    together(work, THREADS)
    if way == "mutex":
        safe(counter == THREADS * ROUNDS, f"{counter} of {THREADS * ROUNDS} updates")
        safe(fences == sorted(set(fences)), f"the fences {fences}")
        assert not common.locked()
    else:
        assert common.available == permits


def test_other_threads_run_while_one_waits_for_the_server(
    mortal_server: Memcached, name: str
) -> None:
    mutex = memlock.connect(mortal_server.url).mutex(name)
    mutex.acquire()
    with ThreadPoolExecutor(1) as pool:
        with mortal_server.paused():
            releasing = pool.submit(mutex.release)
            # If it kept the interpreter, the server would not go on before its call has failed.
            for _ in range(20):
                threading.Event().wait(0.01)
        releasing.result(PATIENCE)


def test_each_thread_releases_its_own_and_one_without_any_the_oldest(
    any_client: memlock.Client, name: str
) -> None:
    mutex, semaphore = any_client.mutex(name), any_client.semaphore(name, 10)
    with ThreadPoolExecutor(1) as pool:
        mutex.acquire()
        pool.submit(mutex.release).result()
        assert not mutex.locked()
        pool.submit(semaphore.permit).result().release()
        semaphore.acquire(permits=1)
        pool.submit(semaphore.acquire, permits=2).result()
        semaphore.acquire(permits=3)
        pool.submit(semaphore.release).result()
        assert semaphore.available == 6
        pool.submit(semaphore.release).result()
        assert semaphore.available == 7, "the oldest of all"
        semaphore.release()
        assert semaphore.available == 10


@pytest.mark.parametrize("way", WAYS)
def test_of_many_who_release_as_many_succeed_as_acquired(
    any_client: memlock.Client, name: str, way: str
) -> None:
    number = 1 if way == "mutex" else PERMITS
    common = WAYS[way](any_client, name, number)
    for _ in range(10):
        for _ in range(number):
            common.acquire()
        start = threading.Barrier(THREADS)

        def release(start: threading.Barrier = start) -> bool:
            start.wait()
            with suppress(memlock.NotHeld):
                common.release()
                return True
            return False

        assert sum(together(release, THREADS)) == number
    assert all(common.acquire(blocking=False) for _ in range(number)), "all came back"


@pytest.mark.parametrize("way", WAYS)
def test_threads_may_extend_and_look_while_another_works_and_releases(
    any_client: memlock.Client, name: str, way: str, hasty_switching: None
) -> None:
    """The interpreter and the objects' locks never wait for each other."""
    common = WAYS[way](any_client, name, 1)
    stop = threading.Event()
    extended = looked = 0

    def extend() -> None:
        nonlocal extended
        while not stop.is_set():
            with suppress(memlock.NotHeld):
                common.extend()
                extended += 1

    def look() -> None:
        nonlocal looked
        while not stop.is_set():
            assert name in repr(common)
            assert common.remaining >= 0
            with suppress(memlock.NotHeld):
                assert way != "mutex" or common.fence > 0
            looked += 1

    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(work) for work in (extend, look, look)]
        for turn in range(100):
            with common:
                assert common.is_held
                if turn % 10 == 0:
                    seen = extended, looked
                    eventually(lambda seen=seen: extended > seen[0] and looked > seen[1])
        stop.set()
        for other in others:
            other.result(PATIENCE)
    assert common.acquire(blocking=False)


def test_a_thread_that_overran_its_lease_does_not_release_its_successor(
    client: memlock.Client, plain: MemcachedText, name: str
) -> None:
    mutex = client.mutex(name)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(mutex.acquire).result()
        first = mutex.fence
        plain.take_away(name)
        # The same object, but another thread: the first one's lock is lost.
        assert mutex.acquire()
        safe(mutex.fence > first, "the fence did not rise")
        for late in [lambda: mutex.fence, mutex.extend, mutex.release]:
            with pytest.raises(memlock.LockLost):
                pool.submit(late).result()
        safe(mutex.locked(), "the successor's lock was released")
        assert mutex.remaining > 0
        mutex.release()
        assert not mutex.locked()


def test_during_an_extension_to_a_shorter_lease_nothing_is_counted_on_that_may_be_over(
    mortal_server: Memcached, name: str
) -> None:
    """The server may have stood still since the lock was acquired."""
    mutex = memlock.connect(mortal_server.url).mutex(name, lease=300)
    mutex.acquire()
    # For longer than the shorter lease.
    eventually(lambda: mutex.remaining < 298.5)
    with ThreadPoolExecutor(1) as pool:
        with mortal_server.paused():
            extending = pool.submit(mutex.extend, 1)
            # As soon as it has begun.
            eventually(lambda: mutex.remaining < 200)
            assert mutex.remaining == 0.0
        with suppress(memlock.LockLost):
            extending.result(PATIENCE)


def switches(thread: int) -> int:
    """How often this thread of ours has gone to sleep."""
    status = Path(f"/proc/self/task/{thread}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("voluntary_ctxt_switches")]
    return int(line.split()[1])


def test_a_waiting_thread_that_no_signal_can_reach_sleeps(
    server: Memcached, client: memlock.Client, plain: MemcachedText, name: str
) -> None:
    mutex = client.mutex(name)
    found: list[int] = []

    def wait() -> None:
        found.append(threading.get_native_id())
        mutex.acquire()

    waiter = threading.Thread(target=wait)
    with memlock.connect(server.url).mutex(name):
        waiter.start()
        eventually(lambda: len(plain.queue(name)) == 1)
        before, began = switches(found[0]), time.monotonic()
        time.sleep(1)
        # A thread that asks for signals does so twenty times a second. On a busy machine it does
        # so less often, never more.
        assert switches(found[0]) - before < 10 * (time.monotonic() - began)
    waiter.join()
    mutex.release()
