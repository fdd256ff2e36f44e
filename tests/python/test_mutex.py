"""The mutex behaves like threading.Lock, and says what happened."""

from __future__ import annotations

import gc
import re
import socket
import time
from datetime import timedelta

import memlock
import pytest
from support import Memcached, MemcachedText, answered


def test_it_is_taken_and_released(any_client: memlock.Client, name: str) -> None:
    mutex = any_client.mutex(name)
    assert not mutex.locked()
    assert mutex.acquire() is True
    assert mutex.locked()
    assert mutex.release() is None
    assert not mutex.locked()


def test_with_gives_the_mutex_and_a_fence(server: Memcached, name: str) -> None:
    with memlock.connect(server.url).mutex(name, lease=30) as mutex:
        assert isinstance(mutex.fence, int)
        assert 28 < mutex.remaining <= 30


def test_fences_rise_from_holder_to_holder(any_client: memlock.Client, name: str) -> None:
    fences = []
    for _ in range(10):
        with any_client.mutex(name) as mutex:
            fences.append(mutex.fence)
    assert fences == sorted(set(fences))


def test_another_object_is_told_busy(any_client: memlock.Client, name: str) -> None:
    with any_client.mutex(name):
        other = any_client.mutex(name)
        assert other.acquire(blocking=False) is False
        assert other.acquire(False) is False
        assert other.acquire(timeout=0) is False
        assert other.locked()


def test_the_same_object_waits_for_itself_like_a_lock(
    any_client: memlock.Client, name: str
) -> None:
    with any_client.mutex(name) as mutex:
        fence = mutex.fence
        began = time.monotonic()
        assert mutex.acquire(timeout=0.2) is False
        assert 0.2 <= time.monotonic() - began < 2
        assert mutex.acquire(blocking=False) is False
        assert mutex.fence == fence


def test_timeouts_are_checked_as_threading_lock_does(client: memlock.Client, name: str) -> None:
    mutex = client.mutex(name)
    for blocking, timeout in [(False, 1.0), (False, 0), (True, -2), (True, float("nan"))]:
        with pytest.raises(ValueError):
            mutex.acquire(blocking, timeout)
    for timeout in [1e20, float("inf")]:
        with pytest.raises(OverflowError):
            mutex.acquire(timeout=timeout)
    with pytest.raises(TypeError):
        mutex.acquire(timeout="1")  # type: ignore[arg-type]
    assert not mutex.locked()
    assert mutex.acquire(1, -1) is True  # type: ignore[arg-type]
    mutex.release()
    assert mutex.acquire(False, -1) is True
    mutex.release()


def test_acquire_without_a_timeout_waits_as_the_mutex_says(
    any_client: memlock.Client, name: str
) -> None:
    with any_client.mutex(name):
        for timeout in [0, 0.1, timedelta(milliseconds=100)]:
            assert any_client.mutex(name, timeout=timeout).acquire() is False


def test_releasing_what_is_not_held_is_an_error(any_client: memlock.Client, name: str) -> None:
    mutex = any_client.mutex(name)
    with pytest.raises(memlock.NotHeld) as caught:
        mutex.release()
    assert isinstance(caught.value, RuntimeError)
    mutex.acquire()
    mutex.release()
    with pytest.raises(RuntimeError):
        mutex.release()
    with pytest.raises(memlock.NotHeld):
        mutex.extend()
    with pytest.raises(memlock.NotHeld):
        _ = mutex.fence
    assert mutex.remaining == 0.0


def test_a_plain_add_and_a_mutex_exclude_each_other(
    client: memlock.Client, plain: MemcachedText, name: str
) -> None:
    key = f"lock:{name}"
    with client.mutex(name):
        assert not plain.add(key)
        record = plain.get(key)
        assert record is not None
        assert re.fullmatch(rb"memlock/1 [0-9a-f]{32} \S+ \d+ \d+", record)
    assert plain.add(key)
    assert client.mutex(name).acquire(blocking=False) is False
    assert plain.delete(key)
    assert client.mutex(name).acquire(blocking=False) is True


def test_the_owner_is_told(any_client: memlock.Client, name: str) -> None:
    mutex = any_client.mutex(name, lease=60)
    assert mutex.owner() is None
    with mutex:
        owner = mutex.owner()
        assert owner is not None
        assert owner.host == socket.gethostname()
        assert owner.pid is not None
        assert owner.since is not None
        assert abs(owner.since - time.time()) < 10
        assert owner.remaining is not None
        assert 55 <= owner.remaining <= 62
        assert owner.token.encode() in owner.value
        assert owner == mutex.owner()
        assert "Owner" in repr(owner)


def test_an_operator_takes_a_lock_off_by_its_token(any_client: memlock.Client, name: str) -> None:
    mutex = any_client.mutex(name)
    mutex.acquire()
    owner = mutex.owner()
    assert owner is not None
    operator = any_client.mutex(name)
    assert operator.force_unlock("0" * 32) is False
    assert operator.force_unlock(owner.token) is True
    assert operator.force_unlock(owner.token) is False
    with pytest.raises(memlock.LockLost):
        mutex.release()
    with pytest.raises(TypeError):
        operator.force_unlock(1)  # type: ignore[arg-type]


def test_a_plain_clients_lock_has_an_owner_without_a_name(
    client: memlock.Client, plain: MemcachedText, name: str
) -> None:
    plain.add(f"lock:{name}", b"\xffPHP")
    owner = client.mutex(name).owner()
    assert owner is not None
    assert (owner.host, owner.pid, owner.since, owner.remaining) == (None, None, None, None)
    assert owner.value == b"\xffPHP"
    assert client.mutex(name).force_unlock(owner.token) is True


def test_extending_gives_a_new_lease_and_keeps_the_fence(
    any_client: memlock.Client, name: str
) -> None:
    with any_client.mutex(name, lease=timedelta(seconds=10)) as mutex:
        fence = mutex.fence
        mutex.extend(60)
        assert 58 < mutex.remaining <= 60
        assert mutex.fence == fence
        mutex.extend()
        assert 8 < mutex.remaining <= 10
        with pytest.raises(memlock.Invalid):
            mutex.extend(0.5)
        assert 8 < mutex.remaining <= 10


def test_a_lease_that_runs_out_frees_the_lock(any_client: memlock.Client, name: str) -> None:
    mutex = any_client.mutex(name, lease=1)
    began = time.monotonic()
    answered(mutex.acquire)
    other = any_client.mutex(name)
    assert other.acquire(timeout=10)
    assert 0.9 < time.monotonic() - began < 8
    assert mutex.remaining == 0.0
    with pytest.raises(memlock.LockLost):
        mutex.extend()
    with pytest.raises(memlock.LockLost):
        mutex.extend()
    with pytest.raises(memlock.LockLost):
        mutex.release()
    with pytest.raises(memlock.NotHeld):
        mutex.release()
    other.release()


def test_an_object_that_goes_unlocks(any_client: memlock.Client, name: str) -> None:
    mutex = any_client.mutex(name)
    mutex.acquire()
    del mutex
    gc.collect()
    assert not any_client.mutex(name).locked()


def test_an_unreachable_server_is_said_to_be_so(mortal_server: Memcached, name: str) -> None:
    mortal_server.kill()
    client = memlock.connect(mortal_server.url)
    mutex = client.mutex(name)
    calls = [mutex.acquire, mutex.locked, mutex.owner, lambda: client.distinct_list(name, 9)]
    for call in calls:
        with pytest.raises(memlock.Unreachable) as caught:
            call()
        assert isinstance(caught.value, ConnectionError)
    with pytest.raises(memlock.Unreachable), mutex:
        raise AssertionError("the body ran without the lock")


def test_a_lock_that_could_not_be_released_is_still_held_but_not_relied_upon(
    mortal_server: Memcached, name: str
) -> None:
    mutex = memlock.connect(f"{mortal_server.url}?io_timeout=50ms").mutex(name)
    answered(mutex.acquire)
    fence = mutex.fence
    for _ in range(2):
        with mortal_server.paused():
            with pytest.raises((memlock.OutcomeUnknown, memlock.Unreachable)):
                mutex.release()
            assert mutex.fence == fence
            # The request may yet be carried out, and then it is another's.
            assert mutex.remaining == 0.0


def test_a_failed_release_can_be_tried_again(mortal_server: Memcached, name: str) -> None:
    mutex = memlock.connect(f"{mortal_server.url}?io_timeout=50ms").mutex(name)
    answered(mutex.acquire)
    with mortal_server.paused(), pytest.raises((memlock.OutcomeUnknown, memlock.Unreachable)):
        mutex.release()
    answered(mutex.release)
    assert not answered(mutex.locked)


def test_a_restarted_server_has_lost_the_lock(mortal_server: Memcached, name: str) -> None:
    client = memlock.connect(mortal_server.url)
    mutex = client.mutex(name)
    mutex.acquire()
    mortal_server.restart()
    with client.mutex(name) as successor:
        with pytest.raises(memlock.LockLost):
            mutex.release()
        assert client.mutex(name).locked()
        assert successor.remaining > 0
    with pytest.raises(memlock.NotHeld):
        mutex.release()


def test_a_paused_server_does_not_grant_twice(mortal_server: Memcached, name: str) -> None:
    client = memlock.connect(f"{mortal_server.url}?io_timeout=50ms&outage=100ms")
    mutex = client.mutex(name)
    assert not answered(mutex.locked)
    with mortal_server.paused(), pytest.raises((memlock.OutcomeUnknown, memlock.Unreachable)):
        mutex.acquire()
    answered(mutex.acquire)
    assert answered(lambda: client.mutex(name).acquire(blocking=False)) is False
    answered(mutex.release)


def test_a_repr_says_what_is_held(client: memlock.Client, name: str, server: Memcached) -> None:
    mutex = client.mutex(name)
    assert repr(mutex) == f'<memlock.Mutex "{name}" not held>'
    with mutex:
        assert str(mutex.fence) in repr(mutex)
    assert server.url in repr(client)
