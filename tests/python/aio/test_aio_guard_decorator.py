"""memlock.aio.Mutex.guard: each call of the coroutine function is a holder of its own."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import anyio
import memlock
import memlock.aio
import pytest
from support import Memcached

pytestmark = pytest.mark.anyio


async def test_a_call_holds_the_lock(aio_client: memlock.aio.Client, name: str) -> None:
    mutex = aio_client.mutex(name)

    class Account:
        @mutex.guard
        async def work(self, first: int, *, second: int = 2) -> tuple[int, int, bool]:
            """Works."""
            return first, second, await mutex.locked()

    assert await Account().work(1) == (1, 2, True)
    assert not await mutex.locked() and not mutex.is_held
    assert inspect.iscoroutinefunction(Account.work) and Account.work.__doc__ == "Works."


async def test_a_busy_lock_raises_or_is_skipped(
    aio_client: memlock.aio.Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> str:
        return "done"

    waiting = aio_client.mutex(name, timeout=0.05).guard(work)
    skipping = aio_client.mutex(name).guard(skip_if_busy=True)(work)
    async with aio_client.mutex(name):
        with pytest.raises(memlock.TimedOut, match=name):
            await waiting()
        with caplog.at_level(logging.INFO, "memlock"):
            assert await skipping() is None
    (record,) = caplog.records
    assert "work() was skipped" in record.getMessage() and name in record.getMessage()
    assert await waiting() == await skipping() == "done"


async def test_an_exception_releases(aio_client: memlock.aio.Client, name: str) -> None:
    mutex = aio_client.mutex(name)

    @mutex.guard(skip_if_busy=True)
    async def work() -> None:
        raise memlock.TimedOut("of the function")

    with pytest.raises(memlock.TimedOut, match="of the function"):
        await work()
    assert not await mutex.locked()


async def test_each_call_of_a_task_is_its_own_holder(
    aio_client: memlock.aio.Client, name: str
) -> None:
    mutex, inside, entries = aio_client.mutex(name), 0, 0

    @mutex.guard
    async def work() -> None:
        nonlocal inside, entries
        inside, entries = inside + 1, entries + 1
        assert inside == 1
        await anyio.sleep(0)
        inside -= 1

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(work)
    assert entries == 20 and not await mutex.locked()


async def test_the_mutex_of_the_call_is_current(aio_client: memlock.aio.Client, name: str) -> None:
    mutex = aio_client.mutex(name)
    fences: list[int] = []

    @mutex.guard
    async def work() -> None:
        own = memlock.aio.current_mutex()
        await anyio.sleep(0)
        assert own is memlock.aio.current_mutex() and own is not mutex and own.is_held
        fences.append(own.fence)

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(work)
    assert sorted(set(fences)) == fences and len(fences) == 5
    for current in (memlock.aio.current_mutex, memlock.current_mutex):
        with pytest.raises(memlock.NotHeld, match="current_mutex"):
            current()


async def test_a_cancelled_call_releases(aio_client: memlock.aio.Client, name: str) -> None:
    mutex, is_in = aio_client.mutex(name), anyio.Event()

    @mutex.guard
    async def work() -> None:
        is_in.set()
        await anyio.sleep(60)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        await is_in.wait()
        assert await mutex.locked()
        tasks.cancel_scope.cancel()
    with anyio.fail_after(20):
        while await mutex.locked():
            await anyio.sleep(0.002)


async def test_a_loss_cancels_the_call(
    aio_client: memlock.aio.Client, server: Memcached, name: str
) -> None:
    @aio_client.mutex(name, lease=3, renew=True, cancel_on_lost=True).guard
    async def work() -> None:
        with server.plain() as plain:
            plain.delete(f"lock:{name}")
        await anyio.sleep(60)

    with pytest.raises(memlock.LockLost, match=name):
        await work()


async def generator_function() -> Any:
    yield 1


async def test_the_wrong_kind_of_function_is_refused(
    aio_client: memlock.aio.Client, name: str
) -> None:
    mutex = aio_client.mutex(name)
    with pytest.raises(TypeError, match=r"len\(\), which is not a coroutine function.*connect"):
        mutex.guard(len)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="generator function"):
        mutex.guard(generator_function)
    with pytest.raises(TypeError, match="class"):
        mutex.guard(skip_if_busy=True)(int)  # type: ignore[type-var]
