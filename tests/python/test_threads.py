"""Threads exclude each other, run on while one waits, and keep their locks apart."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import memlock
import pytest
from support import Memcached, MemcachedText, eventually

THREADS = 6
ROUNDS = 40


@pytest.fixture
def hasty_switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("shared", [True, False], ids=["one object", "an object each"])
def test_threads_exclude_each_other(
    any_client: memlock.Client, name: str, shared: bool, hasty_switching: None
) -> None:
    common = any_client.mutex(name)
    counter = inside = 0

    def work() -> None:
        nonlocal counter, inside
        mutex = common if shared else any_client.mutex(name)
        for _ in range(ROUNDS):
            with mutex:
                inside += 1
                assert inside == 1
                seen = counter
                for _ in range(50):
                    pass
                counter = seen + 1
                inside -= 1

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(work) for _ in range(THREADS)]:
            done.result()
    assert counter == THREADS * ROUNDS


def test_other_threads_run_while_one_waits(any_client: memlock.Client, name: str) -> None:
    holder = any_client.mutex(name)
    holder.acquire()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(any_client.mutex(name).acquire)
        # If the waiter kept the interpreter, this loop would never get on.
        for _ in range(200):
            assert not waiting.done()
            threading.Event().wait(0.001)
        holder.release()
        assert waiting.result(20) is True


def test_other_threads_run_while_one_waits_for_the_server(
    mortal_server: Memcached, name: str
) -> None:
    mutex = memlock.connect(f"{mortal_server.url}?outage=100ms").mutex(name)
    mutex.acquire()
    mutex.release()
    with mortal_server.paused(), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(mutex.acquire)
        turns = 0
        while not waiting.done():
            threading.Event().wait(0.01)
            turns += 1
        assert turns > 10
        assert isinstance(waiting.exception(), (memlock.OutcomeUnknown, memlock.Unreachable))


def test_another_thread_may_release(any_client: memlock.Client, name: str) -> None:
    mutex = any_client.mutex(name)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(mutex.acquire).result() is True
    mutex.release()
    assert not mutex.locked()


def test_of_many_who_release_one_succeeds(any_client: memlock.Client, name: str) -> None:
    mutex = any_client.mutex(name)
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in range(20):
            mutex.acquire()
            start = threading.Barrier(THREADS)

            def release(start: threading.Barrier = start) -> bool:
                start.wait()
                try:
                    mutex.release()
                except memlock.NotHeld:
                    return False
                return True

            done = [pool.submit(release) for _ in range(THREADS)]
            assert sum(each.result() for each in done) == 1


def test_a_thread_may_extend_while_another_works_and_releases(
    any_client: memlock.Client, name: str, hasty_switching: None
) -> None:
    mutex = any_client.mutex(name, lease=5)
    stop = threading.Event()
    extended = 0

    def extend() -> None:
        nonlocal extended
        while not stop.is_set():
            with suppress(memlock.NotHeld):
                mutex.extend()
                extended += 1

    with ThreadPoolExecutor(1) as pool:
        extending = pool.submit(extend)
        for turn in range(300):
            with mutex:
                assert mutex.remaining > 3
                if turn % 10 == 0:
                    seen = extended
                    eventually(lambda seen=seen: extended > seen)
        stop.set()
        extending.result()
    assert not mutex.locked()


def test_a_thread_that_overran_its_lease_does_not_release_its_successor(
    client: memlock.Client, plain: MemcachedText, name: str
) -> None:
    mutex = client.mutex(name)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(mutex.acquire).result()
        first = mutex.fence
        plain.delete(f"lock:{name}")
        # The same object, but another thread: the first one's lock is lost.
        assert mutex.acquire()
        assert mutex.fence > first
        for late in [lambda: mutex.fence, mutex.extend, mutex.release]:
            with pytest.raises(memlock.LockLost):
                pool.submit(late).result()
        assert mutex.locked()
        assert mutex.remaining > 0
        mutex.release()
        assert not mutex.locked()


def test_the_interpreter_and_the_objects_locks_never_wait_for_each_other(
    any_client: memlock.Client, name: str, hasty_switching: None
) -> None:
    mutex = any_client.mutex(name)
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            repr(mutex)
            assert mutex.remaining >= 0
            with suppress(memlock.NotHeld):
                assert mutex.fence > 0

    with ThreadPoolExecutor(3) as pool:
        looking = [pool.submit(look) for _ in range(3)]
        for _ in range(300):
            with mutex:
                pass
        stop.set()
        for each in looking:
            each.result(20)


def test_during_an_extension_to_a_shorter_lease_nothing_is_counted_on_that_may_be_over(
    mortal_server: Memcached, name: str
) -> None:
    """The server may have stood still since the lock was acquired."""
    # The server's clock stands still, too: for so long that the shorter lease is not over after.
    client = memlock.connect(f"{mortal_server.url}?io_timeout=500ms")
    mutex = client.mutex(name, lease=10)
    mutex.acquire()
    eventually(lambda: mutex.remaining < 8.5)
    with mortal_server.paused(), ThreadPoolExecutor(1) as pool:
        extending = pool.submit(mutex.extend, 1)
        # As soon as it has begun.
        eventually(lambda: mutex.remaining < 5)
        assert mutex.remaining == 0.0
        with pytest.raises(memlock.Error):
            extending.result()
    mutex.extend(10)
    mutex.release()
