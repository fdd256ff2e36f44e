"""Renewed leases: kept while the loop is busy, and losses as the loop is told of them."""

from __future__ import annotations

import threading
import time

import anyio
import memlock
import memlock.aio
import pytest
from support import MemcachedText

pytestmark = pytest.mark.anyio


async def test_a_lease_is_renewed_while_the_loop_is_blocked(
    aio_client: memlock.aio.Client, name: str
) -> None:
    async with aio_client.mutex(name, lease=2, renew=True) as mutex:
        time.sleep(2.5)
        assert mutex.is_held and await mutex.check()
        with pytest.raises(memlock.Invalid, match="renew"):
            await mutex.extend()
    assert not await mutex.locked()


async def test_a_loss_is_told_in_the_loop(
    aio_client: memlock.aio.Client, name: str, plain: MemcachedText
) -> None:
    told: list[tuple[str, int]] = []
    mutex = aio_client.mutex(
        name,
        lease=2,
        renew=True,
        on_lost=lambda reason: told.append((reason, threading.get_ident())),
    )
    with pytest.raises(memlock.LockLost):
        async with mutex:
            plain.delete(f"lock:{name}")
            assert await mutex.wait_lost(20) == "gone"
            with anyio.fail_after(10):
                while not told:
                    await anyio.sleep(0.005)
            assert told == [("gone", threading.get_ident())]
            assert mutex.lost == "gone" and not mutex.is_held


async def test_a_loss_cancels_the_block_and_its_tasks(
    aio_client: memlock.aio.Client, name: str, plain: MemcachedText
) -> None:
    cancelled: list[int] = []

    async def child(number: int) -> None:
        try:
            await anyio.sleep(60)
        except BaseException:
            cancelled.append(number)
            raise

    with pytest.raises(memlock.LockLost, match=name):
        async with aio_client.mutex(name, lease=2, renew=True, cancel_on_lost=True):
            plain.delete(f"lock:{name}")
            async with anyio.create_task_group() as tasks:
                for number in range(3):
                    tasks.start_soon(child, number)
    assert sorted(cancelled) == [0, 1, 2]
    # The task itself goes on, and may be cancelled by others.
    await anyio.sleep(0)
    with anyio.move_on_after(0.01) as scope:
        await anyio.sleep(10)
    assert scope.cancelled_caught


async def test_a_cancellation_by_others_is_not_a_loss(
    aio_client: memlock.aio.Client, name: str
) -> None:
    with anyio.move_on_after(0.2) as scope:
        async with aio_client.mutex(name, lease=2, renew=True, cancel_on_lost=True):
            await anyio.sleep(10)
    assert scope.cancelled_caught
    assert not await aio_client.mutex(name).locked()


async def test_a_loss_that_the_block_does_not_notice_is_raised_at_its_end(
    aio_client: memlock.aio.Client, name: str, plain: MemcachedText
) -> None:
    with pytest.raises(memlock.LockLost):
        async with aio_client.mutex(name, lease=1.5, renew=True, cancel_on_lost=True) as mutex:
            plain.delete(f"lock:{name}")
            while mutex.lost is None:
                time.sleep(0.01)
    await anyio.sleep(0)


async def test_an_exception_of_a_callback_is_reported(
    aio_client: memlock.aio.Client, name: str, plain: MemcachedText, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda args: reported.append(args.exc_type))

    def raises(_reason: str) -> None:
        raise KeyError

    with pytest.raises(memlock.LockLost):
        async with aio_client.mutex(name, lease=1.5, renew=True, on_lost=raises):
            plain.delete(f"lock:{name}")
            with anyio.fail_after(20):
                while not reported:
                    await anyio.sleep(0.01)
    assert reported == [KeyError]
    async with aio_client.mutex(name):
        pass


async def test_the_longest_hold_ends_a_renewal(aio_client: memlock.aio.Client, name: str) -> None:
    at_risk: list[float] = []
    with pytest.raises(memlock.LockLost):
        async with aio_client.mutex(
            name, lease=2, renew=True, max_hold=1, on_lease_at_risk=at_risk.append
        ) as mutex:
            assert await mutex.wait_lost(20) == "max_hold"
    assert at_risk


async def test_without_renewal_a_lease_ends(aio_client: memlock.aio.Client, name: str) -> None:
    mutex = aio_client.mutex(name, lease=1.5)
    await mutex.acquire()
    assert await mutex.wait_lost(0.05) is None
    assert await mutex.wait_lost() == "expired"
