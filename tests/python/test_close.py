"""Clients that are closed, and waits that another thread cancels."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import memlock
import pytest
from support import PATIENCE, Memcached, MemcachedText, eventually

# How a thread waits for what another one holds.
WAITS: dict[str, Callable[..., Any]] = {
    "mutex": lambda client, name, **more: client.mutex(name).acquire(**more),
    "mutex with a timeout": lambda client, name, **more: client.mutex(name).acquire(
        timeout=60, **more
    ),
    "semaphore": lambda client, name, **more: client.semaphore(name, 1).acquire(**more),
    "permit": lambda client, name, **more: client.semaphore(name, 1).permit(**more),
    "retrying counter": lambda client, name, **more: client.counter(name).acquire(**more),
    "parked counter": lambda client, name, **more: client.counter(name).acquire(priority=1, **more),
}
WITHS: dict[str, Callable[..., Any]] = {
    "with mutex": lambda client, name: client.mutex(name).__enter__(),
    "with semaphore": lambda client, name: client.semaphore(name, 1).__enter__(),
}


def hold_all(client: memlock.Client, name: str) -> list[Any]:
    """Nothing of this name can be had until this is gone."""
    mutex, semaphore = client.mutex(name), client.semaphore(name, 1)
    assert mutex.acquire()
    assert semaphore.acquire()
    assert client.counter(name).set_up(0)
    return [mutex, semaphore]


def waits_until(
    end: Callable[[], object], wait: Callable[[], object], raised: type[memlock.Error]
) -> memlock.Error:
    """Begins the wait in another thread, ends it, and gives what it raised."""
    begun = threading.Event()

    def begin() -> object:
        begun.set()
        return wait()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(begin)
        assert begun.wait(PATIENCE)
        time.sleep(0.05)
        assert not waiting.done()

        # Only waits that go on are ended, and on a busy machine this one may not have begun.
        def ends() -> bool:
            end()
            return bool(futures.wait([waiting], 0.05).done)

        eventually(ends)
        with pytest.raises(raised) as caught:
            waiting.result()
    return caught.value


@pytest.mark.parametrize("way", [*WAITS, *WITHS])
@pytest.mark.parametrize("end", ["cancel_waits", "close"])
def test_a_client_ends_its_waits(
    server: Memcached, plain: MemcachedText, name: str, way: str, end: str
) -> None:
    held = hold_all(memlock.connect(server.url), name)
    client = memlock.connect(server.url)
    wait = {**WAITS, **WITHS}[way]
    raised = memlock.Interrupted if end == "cancel_waits" else memlock.ClientClosed
    error = waits_until(getattr(client, end), lambda: wait(client, name), raised)
    assert name in str(error)
    assert str(server.port) in str(error)
    assert plain.queue(name) == plain.permit_queue(name) == plain.queue(name, "") == []
    assert all(thing.check() for thing in held)


@pytest.mark.parametrize("way", WAITS)
def test_a_handle_ends_its_wait_alone(server: Memcached, name: str, way: str) -> None:
    held = hold_all(memlock.connect(server.url), name)
    client = memlock.connect(server.url)
    ours, others = client.cancel_handle(), client.cancel_handle()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(WAITS[way], client, name, cancel=others)
        waits_until(ours.cancel, lambda: WAITS[way](client, name, cancel=ours), memlock.Interrupted)
        assert ours.cancelled
        assert not others.cancelled
        assert not other.done()
        others.cancel()
        with pytest.raises(memlock.Interrupted):
            other.result(PATIENCE)
    with pytest.raises(memlock.Interrupted):
        WAITS[way](client, name, cancel=ours)
    assert all(thing.check() for thing in held)


def test_waits_that_begin_after_cancel_waits_are_not_touched(
    client: memlock.Client, name: str
) -> None:
    client.cancel_waits()
    with client.mutex(name, timeout=10), client.semaphore(name, 1, timeout=10):
        pass


def test_a_handle_of_another_client_is_refused(client: memlock.Client, name: str) -> None:
    handle = memlock.connect("memory://elsewhere").cancel_handle()
    with pytest.raises(memlock.Invalid, match="another client"):
        client.mutex(name).acquire(cancel=handle)


CALLS: dict[str, Callable[[memlock.Client, str], object]] = {
    "mutex": lambda client, name: client.mutex(name),
    "semaphore": lambda client, name: client.semaphore(name, 1),
    "counter": lambda client, name: client.counter(name),
    "distinct_list": lambda client, name: client.distinct_list(name, 60),
}


def test_a_closed_client_refuses_every_call(any_client: memlock.Client, name: str) -> None:
    mutex, semaphore = any_client.mutex(name), any_client.semaphore(name, 1)
    counter, keys = any_client.counter(name), any_client.distinct_list(name, 60)
    keys.add("key")
    walk = iter(keys)
    assert not any_client.closed
    any_client.close()
    any_client.close()
    assert any_client.closed
    calls: list[Callable[[], object]] = [
        *(lambda call=call: call(any_client, name) for call in CALLS.values()),  # type: ignore[misc]
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
        with pytest.raises(memlock.ClientClosed, match="is closed") as caught:
            call()
        assert isinstance(caught.value, ValueError)


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


def test_weak_references_to_a_client_can_be_made(server: Memcached) -> None:
    client = memlock.connect(server.url)
    seen = weakref.ref(client)
    assert seen() is client
    del client
    gc.collect()
    assert seen() is None
