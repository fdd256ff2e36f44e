"""What `with` raises, and what it must not hide."""

from __future__ import annotations

import logging

import memlock
import pytest
from support import Memcached, MemcachedText


class BodyError(Exception):
    pass


def test_the_body_never_runs_without_the_lock(any_client: memlock.Client, name: str) -> None:
    with any_client.mutex(name):
        for timeout in [0, 0.05]:
            with pytest.raises(memlock.TimedOut) as caught, any_client.mutex(name, timeout=timeout):
                raise AssertionError("the body ran without the lock")
            assert isinstance(caught.value, TimeoutError)
            assert name in str(caught.value)


def test_the_bodys_exception_goes_on_and_the_lock_is_free(
    any_client: memlock.Client, name: str
) -> None:
    with pytest.raises(BodyError), any_client.mutex(name):
        raise BodyError
    assert not any_client.mutex(name).locked()


def test_a_lock_lost_meanwhile_is_raised_at_the_end(
    client: memlock.Client, plain: MemcachedText, name: str
) -> None:
    with pytest.raises(memlock.LockLost), client.mutex(name):
        plain.delete(f"lock:{name}")


def test_a_successors_lock_is_left_alone(
    client: memlock.Client, plain: MemcachedText, name: str
) -> None:
    key = f"lock:{name}"
    with pytest.raises(memlock.LockLost), client.mutex(name):
        plain.delete(key)
        plain.add(key, b"successor")
    assert plain.get(key) == b"successor"


def test_the_bodys_exception_wins_over_a_lost_lock(
    client: memlock.Client, plain: MemcachedText, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(BodyError), client.mutex(name):
        plain.delete(f"lock:{name}")
        raise BodyError
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("memlock", logging.WARNING)
    assert name in record.getMessage()
    assert "LockLost" in record.getMessage()


def test_the_bodys_exception_wins_over_an_unreachable_server(
    mortal_server: Memcached, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    mutex = memlock.connect(mortal_server.url).mutex(name)
    with pytest.raises(BodyError), mutex:
        mortal_server.kill()
        raise BodyError
    assert len(caplog.records) == 1
    assert mutex.fence > 0, "what could not be released is still held"
    assert mutex.remaining == 0.0, "but whether it was cannot be known"


def test_an_unreachable_server_is_raised_when_the_body_succeeded(
    mortal_server: Memcached, name: str
) -> None:
    mutex = memlock.connect(mortal_server.url).mutex(name)
    with pytest.raises((memlock.Unreachable, memlock.OutcomeUnknown)), mutex:
        mortal_server.kill()
    mortal_server.start()
    with pytest.raises(memlock.LockLost):
        mutex.release()


def test_a_body_that_released_is_told(any_client: memlock.Client, name: str) -> None:
    with pytest.raises(memlock.NotHeld), any_client.mutex(name) as mutex:
        mutex.release()


def test_a_body_that_released_and_raised_has_left_nothing_to_say(
    any_client: memlock.Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(BodyError), any_client.mutex(name) as mutex:
        mutex.release()
        raise BodyError
    assert not caplog.records


def test_a_loss_found_by_extending_is_raised_again_at_the_end(
    client: memlock.Client, plain: MemcachedText, name: str
) -> None:
    with pytest.raises(memlock.LockLost), client.mutex(name) as mutex:
        plain.delete(f"lock:{name}")
        with pytest.raises(memlock.LockLost):
            mutex.extend()


def test_a_client_is_a_context_manager_too(
    server: Memcached, client: memlock.Client, name: str
) -> None:
    with memlock.connect(server.url) as other, other.mutex(name) as mutex:
        assert mutex.locked()
    assert other.closed
    assert not client.mutex(name).locked()
