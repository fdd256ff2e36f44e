"""What `with` raises, and what it must not hide."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import memlock
import pytest
from support import KINDS, Memcached, MemcachedText, safe

Make = Callable[[], Any]


class BodyError(Exception):
    pass


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, client: memlock.Client, name: str) -> Make:
    return lambda: KINDS[request.param](client, name)


def is_free(client: memlock.Client, name: str) -> bool:
    return not client.mutex(name).locked() and client.semaphore(name, 5).acquire(permits=5)


def test_the_bodys_exception_goes_on_and_the_lock_is_free(
    make: Make, client: memlock.Client, name: str
) -> None:
    with pytest.raises(BodyError), make():
        raise BodyError
    assert is_free(client, name)


@pytest.mark.parametrize("extends", [False, True])
def test_a_loss_is_raised_at_the_end_and_a_successors_lock_is_left_alone(
    make: Make, plain: MemcachedText, name: str, extends: bool
) -> None:
    with contextlib.ExitStack() as stack:
        with pytest.raises(memlock.LockLost), make() as held:
            plain.take_away(name)
            successor = stack.enter_context(make())
            if extends:
                # Found here, and raised again at the end.
                with pytest.raises(memlock.LockLost):
                    held.extend()
        safe(successor.check(), "the successor's was released")


def test_the_bodys_exception_wins_over_a_lost_lock(
    make: Make, plain: MemcachedText, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(BodyError), make():
        plain.take_away(name)
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
    (record,) = caplog.records
    assert mutex.fence > 0, "what could not be released is still held"
    # Unless the request was not sent: the end of the connection was seen before.
    sent = "OutcomeUnknown" in record.getMessage()
    assert (mutex.remaining == 0.0) == sent, "whether it was held cannot be known once it was sent"
    mortal_server.start()
    with pytest.raises(memlock.LockLost):
        mutex.release()


def test_a_body_that_released_is_told_unless_it_raised(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(memlock.NotHeld), make() as held:
        held.release()
    with pytest.raises(BodyError), make() as held:
        held.release()
        raise BodyError
    assert not caplog.records


def test_a_client_is_a_context_manager_too(
    server: Memcached, client: memlock.Client, name: str
) -> None:
    with memlock.connect(server.url) as other, other.mutex(name) as mutex:
        assert mutex.locked()
    assert other.closed
    assert not client.mutex(name).locked()
