"""Who gets which permits: threads and processes, priorities, the dead."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import memlock
import pytest
from support import Child, Memcached, MemcachedText, eventually, safe

THREADS = 8
ROUNDS = 30
PERMITS = 3


@pytest.fixture
def hasty_switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("way", ["one object", "an object each", "permits"])
def test_no_more_threads_are_inside_than_there_are_permits(
    any_client: memlock.Client, name: str, way: str, hasty_switching: None
) -> None:
    common = any_client.semaphore(name, PERMITS)
    inside = threading.BoundedSemaphore(PERMITS)

    def work() -> None:
        semaphore = any_client.semaphore(name, PERMITS) if way == "an object each" else common
        for _ in range(ROUNDS):
            with semaphore.permit() if way == "permits" else semaphore:
                safe(inside.acquire(blocking=False), "one too many is inside")
                time.sleep(0)
                inside.release()

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(work) for _ in range(THREADS)]:
            done.result()
    assert common.available == PERMITS


def test_each_thread_releases_its_own_and_one_without_any_the_oldest(
    any_client: memlock.Client, name: str
) -> None:
    semaphore = any_client.semaphore(name, 10)
    with ThreadPoolExecutor(1) as pool:
        semaphore.acquire(permits=1)
        pool.submit(semaphore.acquire, permits=2).result()
        semaphore.acquire(permits=3)
        pool.submit(semaphore.release).result()
        assert semaphore.available == 6
        pool.submit(semaphore.release).result()
        assert semaphore.available == 7, "the oldest of all"
        semaphore.release()
        assert semaphore.available == 10


def test_of_many_who_release_as_many_succeed_as_were_acquired(
    any_client: memlock.Client, name: str
) -> None:
    semaphore = any_client.semaphore(name, PERMITS)
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in range(20):
            for _ in range(PERMITS):
                semaphore.acquire()
            start = threading.Barrier(THREADS)

            def release(start: threading.Barrier = start) -> bool:
                start.wait()
                with suppress(memlock.NotHeld):
                    semaphore.release()
                    return True
                return False

            done = [pool.submit(release) for _ in range(THREADS)]
            assert sum(each.result() for each in done) == PERMITS
            assert semaphore.available == PERMITS


def test_other_threads_run_while_one_waits(any_client: memlock.Client, name: str) -> None:
    semaphore = any_client.semaphore(name, 1)
    semaphore.acquire()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(semaphore.acquire)
        # If the waiter kept the interpreter, this loop would never get on.
        for _ in range(200):
            assert not waiting.done()
            threading.Event().wait(0.001)
        semaphore.release()
        assert waiting.result(20) is True


def test_a_thread_may_extend_while_others_come_and_go(
    any_client: memlock.Client, name: str, hasty_switching: None
) -> None:
    semaphore = any_client.semaphore(name, 3, lease=5)
    permit = semaphore.permit()
    stop = threading.Event()

    def extend() -> None:
        while not stop.is_set():
            permit.extend()
            with suppress(memlock.NotHeld):
                semaphore.extend()

    with ThreadPoolExecutor(2) as pool:
        extending = [pool.submit(extend) for _ in range(2)]
        for _ in range(200):
            with semaphore:
                assert semaphore.remaining > 3
                assert permit.remaining > 3
                repr(semaphore), repr(permit)
        stop.set()
        for each in extending:
            each.result(20)
    permit.release()
    assert semaphore.available == 3


SHARING = """
import multiprocessing, sys
folder, method, url, name, report = sys.argv[1:]
sys.path.insert(0, folder)
from contender import share
context = multiprocessing.get_context(method)
workers = [context.Process(target=share, args=(url, name, report, 25)) for _ in range(4)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
print([worker.exitcode for worker in workers])
"""


@pytest.mark.parametrize("query", ["", "?notify=off"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_no_more_processes_are_inside_than_there_are_permits(
    server: Memcached, plain: MemcachedText, name: str, tmp_path: Path, *, method: str, query: str
) -> None:
    folder, report = str(Path(__file__).parent), tmp_path / "report"
    semaphore = memlock.connect(server.url).semaphore(name, 2)
    with semaphore.permit(permits=2):
        child = Child(SHARING, folder, method, server.url + query, name, str(report))
        # So that all of them compete from the beginning.
        eventually(lambda: len(plain.permit_queue(name)) == 4)
    with child:
        assert child.reads(60) == "[0, 0, 0, 0]"
        assert child.ends() == 0
    stays = [[int(time) for time in line.split()] for line in report.read_text().splitlines()]
    assert len(stays) == 100
    inside = most = 0
    for _, step in sorted([(came, 1) for came, _ in stays] + [(left, -1) for _, left in stays]):
        inside += step
        most = max(most, inside)
    safe(most <= 2, f"{most} inside")
    assert most == 2
    assert plain.permit_queue(name) == []
    assert semaphore.available == 2


WAITING = """
import sys
import memlock
url, name, priority, permits = sys.argv[1:]
semaphore = memlock.connect(url).semaphore(name)
semaphore.acquire(priority=int(priority), permits=int(permits))
print(priority)
sys.stdin.readline()
semaphore.release()
"""


def test_higher_priority_comes_first_whatever_the_process(
    server: Memcached, client: memlock.Client, plain: MemcachedText, name: str
) -> None:
    semaphore = client.semaphore(name, 1)
    semaphore.acquire()
    children: dict[int, Child] = {}
    try:
        for priority in (0, -3, 7, 5):
            children[priority] = Child(WAITING, server.url, name, str(priority), "1")
            eventually(lambda: len(plain.permit_queue(name)) == len(children))
        semaphore.release()
        for priority in (7, 5, 0, -3):
            assert children[priority].reads() == str(priority)
            (holder,) = semaphore.holders()
            assert holder.pid == children[priority].process.pid
            children[priority].says("on")
        for child in children.values():
            assert child.ends() == 0
    finally:
        for child in children.values():
            child.__exit__()
    assert semaphore.available == 1


def test_a_waiter_for_several_is_not_overtaken_by_one_for_fewer(
    server: Memcached, client: memlock.Client, plain: MemcachedText, name: str
) -> None:
    semaphore = client.semaphore(name, 2)
    first, second = semaphore.permit(), semaphore.permit()
    with Child(WAITING, server.url, name, "0", "2") as child:
        # It stands in the queue before it reserves permits in the record.
        eventually(lambda: b"gathering=" in (plain.get(f"semaphore:{name}") or b""))
        first.release()
        eventually(lambda: semaphore.available == 1)
        assert semaphore.acquire(blocking=False) is False, "one was free, and is reserved"
        second.release()
        assert child.reads() == "0"
        (holder,) = semaphore.holders()
        assert holder.permits == 2
        child.says("on")
        assert child.ends() == 0
    assert semaphore.available == 2


HOLDING = """
import sys
import memlock
url, name = sys.argv[1:]
with memlock.connect(url).semaphore(name, 2, lease=2):
    print("holding")
    sys.stdin.read()
"""


def test_a_dead_holders_permit_comes_back_after_its_lease(
    server: Memcached, client: memlock.Client, name: str
) -> None:
    semaphore = client.semaphore(name, 2)
    with semaphore, Child(HOLDING, server.url, name) as child:
        assert child.reads() == "holding"
        child.signal(signal.SIGKILL)
        assert child.ends() == -signal.SIGKILL
        began = time.monotonic()
        assert semaphore.acquire(blocking=False) is False
        assert child.process.pid in {holder.pid for holder in semaphore.holders()}
        # Nobody wakes. Up to four seconds after the lease, then up to one until the waiter looks;
        # and a machine may be busy.
        assert semaphore.acquire(timeout=20) is True
        assert 0.5 < time.monotonic() - began < 9
        semaphore.release()


def test_many_dead_holders_leave_all_permits(
    server: Memcached, client: memlock.Client, name: str
) -> None:
    semaphore = client.semaphore(name, 2)
    children = [Child(HOLDING, server.url, name) for _ in range(2)]
    for child in children:
        assert child.reads() == "holding"
        child.signal(signal.SIGKILL)
        assert child.ends() == -signal.SIGKILL
    assert semaphore.acquire(timeout=10, permits=2) is True
    semaphore.release()


TRUE_TO_THE_END = """
import sys
import memlock
url, name = sys.argv[1:]
semaphore = memlock.connect(url).semaphore(name, 3)
semaphore.acquire()
permit = semaphore.permit(permits=2)
print(semaphore.available)
"""


def test_a_program_that_ends_gives_its_permits_back(
    server: Memcached, client: memlock.Client, name: str
) -> None:
    with Child(TRUE_TO_THE_END, server.url, name) as child:
        assert child.reads() == "0"
        assert child.ends() == 0
    assert client.semaphore(name, 3).available == 3
