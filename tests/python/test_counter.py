"""The plain counter: a number that other programs may change as well, without leases."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import memlock
import pytest
from support import Child, Memcached, MemcachedText, eventually

THREADS = 6
ROUNDS = 30


def test_it_counts_free_permits(any_client: memlock.Client, name: str) -> None:
    counter = any_client.counter(name)
    assert counter.set_up(2) is True
    assert counter.set_up(5) is False
    assert counter.available == 2
    assert [counter.try_acquire() for _ in range(3)] == [True, True, False]
    assert counter.release() == 1
    assert counter.acquire() is True
    assert counter.release() == 1
    assert counter.acquire(priority=3) is True
    assert (counter.release(), counter.release(), counter.available) == (1, 2, 2)
    assert name in repr(counter)


def test_a_plain_client_and_a_counter_share_the_item(
    client: memlock.Client, plain: MemcachedText, name: str
) -> None:
    plain.add(name, b"1")
    counter = client.counter(name)
    assert counter.try_acquire() is True
    assert plain.get(name) == b"0"
    assert counter.try_acquire() is False
    assert plain.command(f"incr {name} 1") == "1"
    assert counter.acquire(timeout=0) is True
    for priority in [None, 0]:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(counter.acquire, 20, priority)
            assert plain.command(f"incr {name} 1") == "1"
            assert waiting.result(20) is True


@pytest.mark.parametrize("priority", [None, 0])
def test_a_wait_ends_at_its_limit(
    any_client: memlock.Client, name: str, priority: int | None
) -> None:
    counter = any_client.counter(name)
    counter.set_up(0)
    for timeout in [0, 0.05, 0.3]:
        began = time.monotonic()
        assert counter.acquire(timeout, priority) is False
        assert timeout <= time.monotonic() - began < timeout + 1
    counter.release()
    for unlimited in [None, -1]:
        assert counter.acquire(unlimited, priority) is True
        assert counter.release() == 1


@pytest.mark.parametrize("priority", [None, 0])
def test_no_more_threads_are_inside_than_there_are_permits(
    any_client: memlock.Client, name: str, priority: int | None
) -> None:
    counter = any_client.counter(name)
    counter.set_up(2)
    inside: list[int] = []

    def work(number: int) -> None:
        for _ in range(ROUNDS):
            assert counter.acquire(priority=priority)
            inside.append(number)
            assert len(inside) <= 2
            inside.remove(number)
            counter.release()

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(work, number) for number in range(THREADS)]:
            done.result()
    assert counter.available == 2


PARKED = """
import sys, time
import memlock
url, name, priority = sys.argv[1:]
counter = memlock.connect(url).counter(name)
counter.acquire(priority=int(priority))
print(time.monotonic(), counter.available)
counter.release()
"""


def order_of_service(
    server: Memcached, client: memlock.Client, plain: MemcachedText, name: str
) -> list[int]:
    counter = client.counter(name)
    counter.set_up(0)
    served: dict[int, float] = {}
    with ExitStack() as stack:
        children: dict[int, Child] = {}
        for priority in (0, -3, 7):
            child = stack.enter_context(Child(PARKED, server.url, name, str(priority)))
            children[priority] = child
            eventually(lambda: len(plain.queue(name, "")) == len(children))
        counter.release()
        for priority, child in children.items():
            moment, available = child.reads().split()
            served[priority] = float(moment)
            assert available == "0"
            assert child.ends() == 0
    assert counter.available == 1
    assert plain.queue(name, "") == []
    return sorted(served, key=lambda priority: served[priority])


def test_those_who_are_parked_come_by_priority(
    server: Memcached, client: memlock.Client, plain: MemcachedText, name: str
) -> None:
    # On a busy machine a waiter that polls may find the permit for which another is being woken.
    orders = (order_of_service(server, client, plain, f"{name}-{turn}") for turn in range(5))
    assert any(order == [7, 0, -3] for order in orders)


def test_what_is_not_there_or_not_a_number_is_said(
    client: memlock.Client, plain: MemcachedText, name: str
) -> None:
    counter = client.counter(name)
    calls = [
        counter.try_acquire,
        counter.acquire,
        lambda: counter.acquire(priority=0),
        counter.release,
        lambda: counter.available,
    ]
    for call in calls:
        with pytest.raises(memlock.CounterNotFound, match=name):
            call()
    plain.add(name, b"three")
    for call in calls:
        with pytest.raises(memlock.ProtocolError):
            call()
    assert plain.get(name) == b"three"


def test_unusable_arguments_are_refused(any_client: memlock.Client, name: str) -> None:
    for key in ["", "a b", "ü", "x" * 246, "a\0b"]:
        with pytest.raises(memlock.Invalid):
            any_client.counter(key)
    counter = any_client.counter(name)
    for number in [-1, 2**64]:
        with pytest.raises(memlock.Invalid):
            counter.set_up(number)
    for wrong in ["3", 1.5, None]:
        with pytest.raises(TypeError):
            counter.set_up(wrong)  # type: ignore[arg-type]
    for timeout in [-2, float("nan")]:
        with pytest.raises(ValueError):
            counter.acquire(timeout)
    counter.set_up(2**64 - 1)
    assert counter.available == 2**64 - 1


def test_an_unreachable_server_is_said_to_be_so(mortal_server: Memcached, name: str) -> None:
    mortal_server.kill()
    counter = memlock.connect(mortal_server.url).counter(name)
    for call in [counter.try_acquire, counter.acquire, counter.release, lambda: counter.set_up(1)]:
        with pytest.raises(memlock.Unreachable):
            call()
