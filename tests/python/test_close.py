"""Clients that are closed, and waits that another thread cancels."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import memlock
import pytest
from support import Memcached, MemcachedText, eventually, run

# How a thread waits for what another one holds.
WAITS: list[Callable[..., Any]] = [
    lambda client, name, **more: client.mutex(name).acquire(**more),
    lambda client, name, **more: client.mutex(name).acquire(timeout=60, **more),
    lambda client, name, **more: client.mutex(name).acquire(timeout=None, **more),
    lambda client, name, **more: client.semaphore(name, 1).acquire(**more),
    lambda client, name, **more: client.semaphore(name, 1).permit(**more),
    lambda client, name, **more: client.counter(name).acquire(**more),
    lambda client, name, **more: client.counter(name).acquire(priority=1, **more),
]
WITHS: list[Callable[..., Any]] = [
    lambda client, name: client.mutex(name).__enter__(),
    lambda client, name: client.semaphore(name, 1).__enter__(),
]


@pytest.fixture
def held(server: Memcached, name: str) -> list[Any]:
    """Nothing of this name can be had until this is gone."""
    client = memlock.connect(server.url)
    mutex, semaphore = client.mutex(name), client.semaphore(name, 1)
    assert mutex.acquire()
    assert semaphore.acquire()
    assert client.counter(name).set_up(0)
    return [mutex, semaphore]


def end_all(
    waits: list[futures.Future[Any]], end: Callable[[], object], raised: type[memlock.Error]
) -> list[str]:
    """Ends waits of other threads, and gives what their exceptions say."""
    time.sleep(0.05)
    assert not any(wait.done() for wait in waits)

    # Only waits that go on are ended, and on a busy machine one may not have begun.
    def ends() -> bool:
        end()
        return not futures.wait(waits, 0.05).not_done

    eventually(ends)
    errors = [wait.exception() for wait in waits]
    assert {type(error) for error in errors} == {raised}
    return list(map(str, errors))


@pytest.mark.parametrize("end", ["cancel_waits", "close"])
def test_a_client_ends_its_waits(
    server: Memcached, plain: MemcachedText, name: str, end: str, held: list[Any]
) -> None:
    client = memlock.connect(server.url)
    raised = memlock.Interrupted if end == "cancel_waits" else memlock.ClientClosed
    ways = [*WAITS, *WITHS]
    with ThreadPoolExecutor(len(ways)) as pool:
        waits = [pool.submit(way, client, name) for way in ways]
        for told in end_all(waits, getattr(client, end), raised):
            assert name in told
            assert str(server.port) in told
    assert plain.queue(name) == plain.permit_queue(name) == plain.queue(name, "") == []
    for thing in held:
        assert thing.check()
        thing.release()
    if end == "cancel_waits":
        # Waits that begin later are not touched.
        with client.mutex(name), client.semaphore(name, 1):
            pass


def test_a_handle_ends_its_waits_alone(server: Memcached, name: str, held: list[Any]) -> None:
    client = memlock.connect(server.url)
    ours, others = client.cancel_handle(), client.cancel_handle()
    with ThreadPoolExecutor(2 * len(WAITS)) as pool:
        mine, theirs = (
            [pool.submit(way, client, name, cancel=handle) for way in WAITS]
            for handle in (ours, others)
        )
        end_all(mine, ours.cancel, memlock.Interrupted)
        assert (ours.cancelled, others.cancelled) == (True, False)
        end_all(theirs, others.cancel, memlock.Interrupted)
    for way in WAITS:
        with pytest.raises(memlock.Interrupted):
            way(client, name, cancel=ours)
    assert all(thing.check() for thing in held)


def test_a_handle_of_another_client_is_refused(client: memlock.Client, name: str) -> None:
    handle = memlock.connect("memory://elsewhere").cancel_handle()
    with pytest.raises(memlock.Invalid, match="another client"):
        client.mutex(name).acquire(cancel=handle)


def test_a_closed_client_refuses_every_call(any_client: memlock.Client, name: str) -> None:
    mutex, semaphore = any_client.mutex(name), any_client.semaphore(name, 1)
    counter, keys = any_client.counter(name), any_client.distinct_list(name, 60)
    keys.add("key")
    walk = iter(keys)
    assert not any_client.closed
    any_client.close()
    any_client.close()
    assert any_client.closed
    makes: list[Callable[[], object]] = [
        lambda: any_client.mutex(name),
        lambda: any_client.semaphore(name, 1),
        lambda: any_client.counter(name),
        lambda: any_client.distinct_list(name, 60),
    ]
    for make in makes:
        with pytest.raises(memlock.ClientClosed, match=r"The client .* is closed"):
            make()
    calls: list[Callable[[], object]] = [
        mutex.acquire,
        lambda: mutex.acquire(blocking=False),
        mutex.__enter__,
        mutex.owner,
        mutex.locked,
        semaphore.acquire,
        semaphore.permit,
        lambda: semaphore.available,
        lambda: counter.set_up(1),
        counter.try_acquire,
        counter.release,
        lambda: keys.add("key"),
        lambda: len(keys),
        lambda: next(walk),
    ]
    for call in calls:
        with pytest.raises(memlock.ClientClosed, match=f"{name}.* is closed"):
            call()


@pytest.mark.parametrize("renew", [False, True])
def test_what_is_held_outlives_the_close(
    any_client: memlock.Client, name: str, renew: bool
) -> None:
    mutex = any_client.mutex(name, renew=renew)
    semaphore = any_client.semaphore(name, 2, renew=renew)
    with mutex, semaphore, semaphore.permit() as permit:
        any_client.close()
        for held in [mutex, semaphore, permit]:
            assert held.is_held
            assert held.check()  # type: ignore[attr-defined]
            assert held.lost is None
        if not renew:
            mutex.extend()
            permit.extend()
    assert not mutex.is_held
    assert not permit.is_held


def test_closing_closes_the_connections(mortal_server: Memcached, name: str) -> None:
    # A server of its own: on one that others use, their connections may just be ending.
    with mortal_server.plain() as plain:

        def connections() -> int:
            return int(plain.stats()["curr_connections"])

        eventually(lambda: connections() == 1)
        client = memlock.connect(mortal_server.url)
        assert not client.mutex(name).locked()
        assert connections() == 2
        client.close()
        eventually(lambda: connections() == 1)


OPENED = """
import os, sys, threading, time
import memlock
url, name = sys.argv[1:]

def opened():
    # One of them is that of the listing, and closed by now.
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return sorted(os.readlink(link) for link in links if os.path.islink(link))

"""

DESCRIPTORS = """
before = opened()
holder, client = memlock.connect(url), memlock.connect(url)
mutexes, held_by_client = [holder.mutex(name + str(i)) for i in range(55)], client.mutex(name)
assert all(mutex.acquire() for mutex in mutexes) and held_by_client.acquire()
ended, all_closed = threading.Semaphore(0), threading.Event()

def wait(number):
    timeout = 0.2 if number < 50 else 600
    try:
        assert not client.mutex(name + str(number)).acquire(timeout=timeout)
        assert timeout < 1
    except memlock.ClientClosed:
        assert timeout > 1
    ended.release()
    all_closed.wait()

threads = [threading.Thread(target=wait, args=[number]) for number in range(55)]
for thread in threads:
    thread.start()
for _ in range(50):
    ended.acquire()
assert len(opened()) > len(before) + 50
client.close()
for _ in range(5):
    ended.acquire()
assert held_by_client.check()
held_by_client.release()
for mutex in mutexes:
    mutex.release()
holder.close()
after = opened()
all_closed.set()
assert after == before, (before, after)
print("all are closed")
"""


@pytest.mark.parametrize("store", ["memcached", "sqlite"])
def test_closing_closes_all_descriptors_while_the_threads_live(
    server: Memcached, tmp_path: Path, name: str, store: str
) -> None:
    url = server.url if store == "memcached" else f"sqlite:{tmp_path}/locks.db"
    assert run(OPENED + DESCRIPTORS, url, name) == ["all are closed"]


BEHIND = """
holder, client = memlock.connect(url), memlock.connect(url)
mutex, semaphore = holder.mutex(name), holder.semaphore(name, 1)
assert mutex.acquire() and semaphore.acquire()
ended = []

def wait(acquire):
    try:
        acquire()
    except memlock.Interrupted:
        ended.append(threading.current_thread())

def start(count):
    ways = [client.mutex(name).acquire, client.semaphore(name, 1).acquire] * count
    threads = [threading.Thread(target=wait, args=[way]) for way in ways]
    for thread in threads:
        thread.start()
    return threads

def pipes():
    return sum(link.startswith("pipe:") for link in opened())

without = pipes()
threads = start(1)
# Both are in their queues: each has a pipe of two ends.
while pipes() < without + 4:
    time.sleep(0.01)
before = opened()
threads += start(40)
time.sleep(0.5)
after = opened()
while len(ended) < len(threads):
    client.cancel_waits()
    time.sleep(0.01)
for thread in threads:
    thread.join()
assert len(after) == len(before), (before, after)
print("none more are open")
"""


def test_threads_behind_the_first_need_no_descriptors(server: Memcached, name: str) -> None:
    assert run(OPENED + BEHIND, server.url, name) == ["none more are open"]


def test_weak_references_to_a_client_can_be_made(server: Memcached) -> None:
    client = memlock.connect(server.url)
    seen = weakref.ref(client)
    assert seen() is client
    del client
    gc.collect()
    assert seen() is None
