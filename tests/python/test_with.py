"""What `with` raises, and what it must not hide."""

from __future__ import annotations

import contextlib
import logging

import memlock
import pytest
from support import Make, Memcached, MemcachedText, Unwanted, is_free, safe


def test_the_bodys_exception_goes_on_and_the_lock_is_free(
    make: Make, client: memlock.Client, name: str
) -> None:
    with pytest.raises(Unwanted), make():
        raise Unwanted
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
    with pytest.raises(Unwanted), make():
        plain.take_away(name)
        raise Unwanted
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("memlock", logging.WARNING)
    assert name in record.getMessage()
    assert "LockLost" in record.getMessage()


def test_a_body_that_released_is_told_unless_it_raised(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(memlock.NotHeld), make() as held:
        held.release()
    with pytest.raises(Unwanted), make() as held:
        held.release()
        raise Unwanted
    assert not caplog.records


def test_a_client_is_a_context_manager_too(
    server: Memcached, client: memlock.Client, name: str
) -> None:
    with memlock.connect(server.url) as other, other.mutex(name) as mutex:
        assert mutex.locked()
    assert other.closed
    assert not client.mutex(name).locked()
