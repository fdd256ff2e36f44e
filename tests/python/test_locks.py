"""Mutexes, semaphores, permits and counters: what their objects take, and what they give."""

from __future__ import annotations

import gc
import math
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import memlock
import pytest
from support import Memcached, MemcachedText, answered, safe

Make = Callable[..., Any]

# Of each there is one.
ONE: dict[str, Make] = {
    "mutex": lambda client, name, **more: client.mutex(name, **more),
    "semaphore": lambda client, name, **more: client.semaphore(name, 1, **more),
}


@pytest.fixture(params=ONE)
def make(request: pytest.FixtureRequest) -> Make:
    return ONE[request.param]


def test_timeouts_are_those_of_threadings_locks_and_semaphores(
    make: Make, client: memlock.Client, name: str
) -> None:
    one = make(client, name)
    for blocking, timeout in [(False, 1.0), (False, 0), (True, -2), (True, math.nan)]:
        with pytest.raises(ValueError):
            one.acquire(blocking, timeout)
    for timeout in [1e20, math.inf]:
        with pytest.raises(OverflowError):
            one.acquire(timeout=timeout)
    with pytest.raises(TypeError):
        one.acquire(timeout="1")
    with pytest.raises(TypeError):
        one.acquire(True, 1, 1)
    for blocking, timeout in [(True, None), (True, -1), (False, None), (False, -1), (1, 0)]:
        assert one.acquire(blocking, timeout) is True
        safe(one.acquire(False) is False, "held twice")
        safe(one.acquire(timeout=0) is False, "held twice")
        assert one.release() is None


def test_acquire_without_a_timeout_waits_as_the_object_says(
    make: Make, client: memlock.Client, name: str
) -> None:
    # The same object waits for itself, like a lock of threading's.
    with make(client, name) as held:
        began = time.monotonic()
        assert held.acquire(timeout=0.2) is False
        assert time.monotonic() - began >= 0.2
        for timeout in [0, 0.1, timedelta(milliseconds=100)]:
            impatient = make(client, name, timeout=timeout)
            assert impatient.acquire() is False
            with pytest.raises(memlock.TimedOut), impatient:
                raise AssertionError("the body ran without the lock")
        assert held.is_held


def test_what_is_lost_is_told_once_and_then_it_is_not_held(
    make: Make, client: memlock.Client, plain: MemcachedText, name: str
) -> None:
    one = make(client, name)
    one.acquire()
    plain.take_away(name)
    for _ in range(2):
        with pytest.raises(memlock.LockLost):
            one.extend()
    with pytest.raises(memlock.LockLost):
        one.release()
    assert (one.remaining, one.is_held) == (0.0, False)
    for call in [one.release, one.extend]:
        with pytest.raises(memlock.NotHeld):
            call()


def test_extending_takes_a_lease_of_any_kind_or_that_of_the_object(
    make: Make, client: memlock.Client, name: str
) -> None:
    with make(client, name, lease=timedelta(seconds=20)) as held:
        for lease, least, most in [(60, 45, 60), (None, 5, 20), (timedelta(minutes=1), 45, 60)]:
            held.extend(lease)
            assert least < held.remaining <= most


def test_an_object_that_goes_releases_all_that_it_holds(
    any_client: memlock.Client, name: str
) -> None:
    mutex, semaphore = any_client.mutex(name), any_client.semaphore(name, 5)
    permit = semaphore.permit()
    for held in (mutex, semaphore, semaphore):
        held.acquire()
    del mutex, semaphore, permit, held
    gc.collect()
    assert not any_client.mutex(name).locked()
    assert any_client.semaphore(name).available == 5


def test_a_failed_release_can_be_tried_again(mortal_server: Memcached, name: str) -> None:
    client = memlock.connect(f"{mortal_server.bare_url}?io_timeout=300ms")
    mutex, semaphore = client.mutex(name), client.semaphore(name, 3)
    for acquire in (mutex.acquire, semaphore.acquire, semaphore.acquire):
        answered(acquire)
    permit, fence = answered(semaphore.permit), mutex.fence
    releases = [mutex.release, lambda: semaphore.release(2), permit.release]
    with mortal_server.paused():
        for release in releases:
            with pytest.raises((memlock.OutcomeUnknown, memlock.Unreachable)):
                release()
        assert mutex.fence == fence
        # The request may yet be carried out, and then it is another's.
        assert mutex.remaining == 0.0
        assert "held 2 times" in repr(semaphore)
    for release in releases:
        answered(release)
    assert not answered(mutex.locked)
    assert answered(lambda: semaphore.available) == 3
    for again in [mutex.release, semaphore.release, permit.release]:
        with pytest.raises(memlock.NotHeld):
            again()


def test_a_repr_says_what_is_held(server: Memcached, client: memlock.Client, name: str) -> None:
    mutex, semaphore = client.mutex(name), client.semaphore(name, 3)
    assert repr(mutex) == f'<memlock.Mutex "{name}" not held>'
    assert repr(semaphore) == f'<memlock.Semaphore "{name}" not held>'
    with mutex, semaphore, semaphore.permit(permits=2) as permit:
        assert str(mutex.fence) in repr(mutex)
        assert repr(semaphore) == f'<memlock.Semaphore "{name}" held once>'
        assert "permits=2" in repr(permit)
    assert "expired or released" in repr(permit)
    assert name in repr(client.counter(name))
    assert server.url in repr(client)


def test_the_owner_is_told(any_client: memlock.Client, name: str) -> None:
    mutex = any_client.mutex(name, lease=60)
    assert mutex.owner() is None
    with mutex:
        owner = mutex.owner()
        assert owner is not None
        assert owner.host == socket.gethostname()
        assert owner.remaining is not None
        assert 0 < owner.remaining <= 62
        assert owner.token.encode() in owner.value
        assert owner == mutex.owner()
        assert "Owner" in repr(owner)
        with pytest.raises(TypeError):
            mutex.force_unlock(1)  # type: ignore[arg-type]


def test_a_plain_clients_lock_has_an_owner_without_a_name(
    client: memlock.Client, plain: MemcachedText, name: str
) -> None:
    plain.add(f"lock:{name}", b"\xffPHP")
    owner = client.mutex(name).owner()
    assert owner is not None
    assert (owner.host, owner.pid, owner.since, owner.remaining) == (None, None, None, None)
    assert owner.value == b"\xffPHP"
    assert client.mutex(name).force_unlock(owner.token) is True


def test_holders_are_told(any_client: memlock.Client, name: str) -> None:
    semaphore = any_client.semaphore(name, 5, lease=60)
    with semaphore.permit(permits=3) as permit:
        (holder,) = semaphore.holders()
        assert (holder.token, holder.permits, permit.permits) == (permit.token, 3, 3)
        assert holder.host == socket.gethostname()[:32]
        assert f"pid={holder.pid}" in repr(holder)
        assert holder == holder  # noqa: PLR0124
        with semaphore:
            (first, second) = semaphore.holders()
            assert first != second


def test_one_semaphore_holds_several_acquisitions_and_releases_the_latest_first(
    any_client: memlock.Client, name: str
) -> None:
    semaphore = any_client.semaphore(name, 5, lease=60)
    for permits in (1, 2):
        assert semaphore.acquire(permits=permits) is True
    semaphore.extend(300)
    assert len({holder.token for holder in semaphore.holders()}) == 2
    assert semaphore.acquire() is True
    assert semaphore.remaining <= 60, "the latest is meant"
    safe(semaphore.acquire(blocking=False, permits=2) is False, "more permits than there are")
    for n in (4, 2**62):
        with pytest.raises(memlock.NotHeld):
            semaphore.release(n)
    for n in (0, -1):
        with pytest.raises(ValueError):
            semaphore.release(n)
    assert semaphore.available == 1
    semaphore.release()
    assert semaphore.remaining > 60
    semaphore.release(n=1)
    assert semaphore.available == 4
    semaphore.release()
    assert (semaphore.available, semaphore.remaining) == (5, 0.0)


def test_a_lost_acquisition_is_told_and_the_others_are_released(
    client: memlock.Client, plain: MemcachedText, name: str
) -> None:
    semaphore = client.semaphore(name, 3)
    semaphore.acquire()
    plain.take_away(name)
    semaphore.acquire()
    with pytest.raises(memlock.LockLost):
        semaphore.release(2)
    assert semaphore.available == 3
    with pytest.raises(memlock.NotHeld):
        semaphore.release()


def test_a_permit_is_an_acquisition_of_its_own(any_client: memlock.Client, name: str) -> None:
    semaphore = any_client.semaphore(name, 5, lease=20)
    with semaphore.permit(permits=2, priority=5) as permit, semaphore:
        permit.extend(60)
        assert 20 < permit.remaining <= 60
        assert 0 < semaphore.remaining <= 20
        semaphore.release()
        with pytest.raises(memlock.NotHeld):
            semaphore.release()
        assert semaphore.available == 3
        semaphore.acquire()
    assert semaphore.available == 5
    assert permit.remaining == 0.0
    for over in [permit.release, permit.extend]:
        with pytest.raises(memlock.NotHeld):
            over()


def test_setting_up_tearing_down_and_resizing_give_what_they_found(
    any_client: memlock.Client, name: str
) -> None:
    semaphore, stranger = any_client.semaphore(name, 2), any_client.semaphore(name)
    for minute, new in [(60, True), (timedelta(minutes=1), False)]:
        assert semaphore.set_up(minute) is new
    assert (semaphore.resize(4), semaphore.resize(2)) == (2, 4)
    assert stranger.permits == 2
    assert (semaphore.tear_down(), semaphore.tear_down()) == (True, False)
    for call in [stranger.holders, lambda: stranger.permits]:
        with pytest.raises(memlock.SemaphoreNotFound, match=name):
            call()


@pytest.mark.parametrize("permits", [0, -1, 2**32, 10**30])
def test_unusable_numbers_of_permits_are_refused(
    client: memlock.Client, name: str, permits: int
) -> None:
    three = client.semaphore(name, 3)
    for call in [
        lambda: client.semaphore(name, permits),
        lambda: three.acquire(permits=permits),
        lambda: three.permit(permits=permits),
        lambda: three.resize(permits),
    ]:
        with pytest.raises(memlock.Invalid):
            call()


def test_priorities_are_numbers_of_64_bits(client: memlock.Client, name: str) -> None:
    semaphore, counter = client.semaphore(name, 3), client.counter(name)
    with pytest.raises(memlock.Invalid):
        semaphore.acquire(priority=2**63)
    for wrong in ["3", 1.5]:
        with pytest.raises(TypeError):
            client.semaphore(name, wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            semaphore.acquire(priority=wrong)  # type: ignore[arg-type]
    assert semaphore.acquire(priority=-(2**63), ages=False) is True
    assert semaphore.acquire(priority=2**63 - 1) is True
    counter.set_up(1)
    assert counter.acquire(priority=-(2**63)) is True


def test_counters_take_the_numbers_and_timeouts_that_they_can(
    any_client: memlock.Client, name: str
) -> None:
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
    for timeout in [-2, math.nan]:
        with pytest.raises(ValueError):
            counter.acquire(timeout)
    assert (counter.set_up(1), counter.set_up(5)) == (True, False)
    for priority in [None, 0]:
        for unlimited in [None, -1]:
            assert counter.acquire(unlimited, priority) is True
            assert counter.release() == 1
    other = any_client.counter(f"{name}-most")
    other.set_up(2**64 - 1)
    assert other.available == 2**64 - 1
