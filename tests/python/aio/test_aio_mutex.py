"""memlock.aio.Mutex: what asyncio's users expect of a lock."""

from __future__ import annotations

import anyio
import memlock
import memlock.aio
import pytest
from support import MemcachedText

pytestmark = pytest.mark.anyio


async def until_queued(plain: MemcachedText, name: str, number: int) -> None:
    with anyio.fail_after(20):
        while len(plain.queue(name)) != number:
            await anyio.sleep(0.002)


async def test_a_lock_is_held_within_its_block(aio_client: memlock.aio.Client, name: str) -> None:
    mutex, other = aio_client.mutex(name), aio_client.mutex(name)
    assert not mutex.is_held and mutex.remaining == 0.0 and not await mutex.locked()
    async with mutex as entered:
        assert entered is mutex and mutex.is_held and 28.0 < mutex.remaining <= 30.0
        assert await mutex.locked() and await mutex.check() and mutex.lost is None
        owner = await other.owner()
        assert owner is not None and owner.pid is not None
        first = mutex.fence
        assert not await other.acquire(blocking=False)
        assert not await other.acquire(timeout=0.05)
        await mutex.extend(100)
        assert mutex.remaining > 90.0
    assert not mutex.is_held and not await mutex.locked()
    async with other:
        assert other.fence > first


async def test_acquire_and_release_are_those_of_a_lock(
    aio_client: memlock.aio.Client, name: str
) -> None:
    mutex = aio_client.mutex(name, timeout=0)
    assert await mutex.acquire() and await mutex.acquire(timeout=0.05) is False
    await mutex.release()
    for call in (mutex.release, mutex.extend, mutex.check):
        with pytest.raises(memlock.NotHeld, match=name):
            await call()
    with pytest.raises(memlock.NotHeld):
        _ = mutex.fence
    with pytest.raises(ValueError, match="non-blocking"):
        await mutex.acquire(blocking=False, timeout=1)
    async with aio_client.mutex(name):
        with pytest.raises(memlock.TimedOut, match=name):
            async with mutex:
                pass


async def test_arguments_are_checked_at_once(aio_client: memlock.aio.Client) -> None:
    with pytest.raises(memlock.Invalid):
        aio_client.mutex("")
    with pytest.raises(memlock.Invalid):
        aio_client.mutex("x", lease=0.1)
    with pytest.raises(memlock.Invalid, match="renew=True"):
        aio_client.mutex("x", cancel_on_lost=True)
    with pytest.raises(memlock.Invalid, match="renew=True"):
        aio_client.mutex("x", on_lost=print)
    with pytest.raises(memlock.Invalid, match="renew"):
        aio_client.mutex("x", max_hold=3)


async def test_tasks_that_share_an_object_exclude_each_other(
    aio_client: memlock.aio.Client, name: str
) -> None:
    mutex, inside, entries = aio_client.mutex(name), 0, 0

    async def work() -> None:
        nonlocal inside, entries
        for _ in range(10):
            async with mutex:
                inside, entries = inside + 1, entries + 1
                assert inside == 1
                await anyio.sleep(0)
                inside -= 1

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(work)
    assert entries == 80 and not await mutex.locked()


async def test_any_task_may_release(aio_client: memlock.aio.Client, name: str) -> None:
    mutex = aio_client.mutex(name)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mutex.acquire)
    assert mutex.is_held
    await mutex.release()
    assert not await mutex.locked()


async def test_a_task_that_overslept_does_not_release_the_lock_of_the_next(
    aio_client: memlock.aio.Client, name: str, plain: MemcachedText
) -> None:
    mutex, released = aio_client.mutex(name, lease=3), anyio.Event()
    raised: list[BaseException] = []

    async def sleeper() -> None:
        await mutex.acquire()
        plain.delete(f"lock:{name}")
        released.set()
        await next_has_it.wait()
        try:
            await mutex.release()
        except memlock.LockLost as lost:
            raised.append(lost)

    next_has_it = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sleeper)
        await released.wait()
        await mutex.acquire()
        next_has_it.set()
    assert len(raised) == 1
    assert mutex.is_held and await mutex.check()
    await mutex.release()


async def test_an_exception_of_the_block_is_not_hidden(
    aio_client: memlock.aio.Client, name: str, plain: MemcachedText
) -> None:
    with pytest.raises(KeyError):
        async with aio_client.mutex(name):
            plain.delete(f"lock:{name}")
            raise KeyError
    with pytest.raises(memlock.LockLost):
        async with aio_client.mutex(name):
            plain.delete(f"lock:{name}")


async def test_waiters_are_served_in_their_order(
    aio_client: memlock.aio.Client, name: str, plain: MemcachedText
) -> None:
    order: list[int] = []

    async def work(place: int) -> None:
        async with aio_client.mutex(name):
            order.append(place)

    async with anyio.create_task_group() as tasks, aio_client.mutex(name):
        for place in range(20):
            tasks.start_soon(work, place)
            await anyio.sleep(0.005)
        await until_queued(plain, name, 1)
    assert order == list(range(20))


async def test_an_operator_may_take_a_lock_away(aio_client: memlock.aio.Client, name: str) -> None:
    mutex = aio_client.mutex(name)
    await mutex.acquire()
    owner = await mutex.owner()
    assert owner is not None
    assert await mutex.force_unlock(owner.token) and not await mutex.force_unlock(owner.token)
    with pytest.raises(memlock.LockLost):
        await mutex.release()


async def test_an_object_that_is_deallocated_releases(
    aio_client: memlock.aio.Client, name: str
) -> None:
    await aio_client.mutex(name).acquire()
    async with aio_client.mutex(name, timeout=10):
        pass
