"""Many who wait for one lock: threads and processes, with and without a listener."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import memlock
import pytest
from support import Child, Memcached, MemcachedText, eventually, safe

THREADS = 12
ROUNDS = 15


@pytest.mark.parametrize("shared", [True, False], ids=["one object", "an object each"])
def test_every_thread_has_a_fence_of_its_own_and_fences_rise(
    any_client: memlock.Client, name: str, shared: bool
) -> None:
    common = any_client.mutex(name)
    fences: list[int] = []
    inside = threading.Lock()

    def work() -> None:
        mutex = common if shared else any_client.mutex(name)
        for _ in range(ROUNDS):
            with mutex:
                assert inside.acquire(blocking=False), "another thread is inside"
                fences.append(mutex.fence)
                inside.release()

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(work) for _ in range(THREADS)]:
            done.result()
    assert len(fences) == THREADS * ROUNDS
    safe(fences == sorted(set(fences)), f"the fences {fences}")
    assert not common.locked()


PROCESSES = """
import multiprocessing, sys
folder, method, url, name, entries = sys.argv[1:]
sys.path.insert(0, folder)
from contender import contend
context = multiprocessing.get_context(method)
workers = [context.Process(target=contend, args=(url, name, entries, 25)) for _ in range(4)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
print([worker.exitcode for worker in workers])
"""


@pytest.mark.parametrize("query", ["", "?notify=127.0.0.1", "?notify=off"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_exclude_each_other_and_fences_rise(
    server: Memcached, plain: MemcachedText, name: str, tmp_path: Path, *, method: str, query: str
) -> None:
    folder, url = str(Path(__file__).parent), server.url + query
    holder = memlock.connect(server.url).mutex(name)
    with holder:
        child = Child(PROCESSES, folder, method, url, name, str(tmp_path))
        # So that all of them compete from the beginning.
        eventually(lambda: len(plain.queue(name)) == 4)
        assert all(entry.startswith("-") == (query == "?notify=off") for entry in plain.queue(name))
    with child:
        assert child.reads(60) == "[0, 0, 0, 0]"
        assert child.ends() == 0
    entries = [line.split() for line in (tmp_path / "entries").read_text().splitlines()]
    assert sorted(Counter(process for process, _ in entries).values()) == [25] * 4
    fences = [int(fence) for _, fence in entries]
    safe(fences == sorted(set(fences)), f"the fences {fences}")
    assert plain.queue(name) == []
    assert not holder.locked()


def test_a_waiter_without_a_listener_gets_the_lock(
    server: Memcached, plain: MemcachedText, name: str
) -> None:
    holder = memlock.connect(server.url).mutex(name)
    waiter = memlock.connect(f"{server.url}?notify=off").mutex(name)
    for first, second in [(holder, waiter), (waiter, holder)]:
        first.acquire()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(second.acquire)
            eventually(lambda: len(plain.queue(name)) == 1)
            began = time.monotonic()
            first.release()
            assert waiting.result(20) is True
            assert time.monotonic() - began < 2
        second.release()
        assert plain.queue(name) == []


def test_a_wait_that_timed_out_leaves_the_queue(
    client: memlock.Client, plain: MemcachedText, name: str
) -> None:
    with client.mutex(name):
        for timeout in [0.05, 0.4]:
            began = time.monotonic()
            assert client.mutex(name).acquire(timeout=timeout) is False
            assert timeout <= time.monotonic() - began < timeout + 1
            assert plain.queue(name) == []


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
        before = switches(found[0])
        # Time is the subject: who asks for signals does so twenty times a second.
        time.sleep(2)
        assert switches(found[0]) - before < 20
    waiter.join()
    mutex.release()
