"""Semaphores, permits, counters and distinct lists in coroutines."""

from __future__ import annotations

import anyio
import memlock
import memlock.aio
import pytest
from support import PATIENCE, MemcachedText

pytestmark = pytest.mark.anyio


async def test_a_semaphore_limits_the_tasks_inside(
    aio_client: memlock.aio.Client, name: str
) -> None:
    semaphore, inside, most = aio_client.semaphore(name, permits=3), 0, 0

    async def work() -> None:
        nonlocal inside, most
        async with semaphore:
            inside += 1
            most = max(most, inside)
            await anyio.sleep(0.01)
            inside -= 1

    async with anyio.create_task_group() as tasks:
        for _ in range(12):
            tasks.start_soon(work)
    assert most == 3 and await semaphore.available() == 3


async def test_permits_are_objects_of_their_own(aio_client: memlock.aio.Client, name: str) -> None:
    semaphore = aio_client.semaphore(name, permits=4, timeout=0)
    async with await semaphore.permit(permits=3) as permit:
        assert permit.permits == 3 and permit.is_held and await permit.check()
        assert await semaphore.available() == 1 and await semaphore.permits() == 4
        assert [holder.token for holder in await semaphore.holders()] == [permit.token]
        await permit.extend(99)
        assert permit.remaining > 90
        with pytest.raises(memlock.TimedOut):
            await semaphore.permit(permits=2)
        assert not await semaphore.acquire(permits=2)
    with pytest.raises(memlock.NotHeld):
        await permit.release()
    assert await semaphore.resize(6) == 4


async def test_an_object_may_hold_several_acquisitions(
    aio_client: memlock.aio.Client, name: str
) -> None:
    semaphore = aio_client.semaphore(name, permits=5)
    await semaphore.set_up(60)
    for _ in range(4):
        assert await semaphore.acquire()
    with pytest.raises(memlock.NotHeld):
        await semaphore.release(5)
    await semaphore.release(3)
    assert semaphore.is_held and await semaphore.available() == 4
    await semaphore.release()
    assert not semaphore.is_held
    with pytest.raises(memlock.NotHeld):
        await semaphore.extend()
    assert await semaphore.tear_down()
    with pytest.raises(memlock.SemaphoreNotFound):
        await aio_client.semaphore(name).acquire()


async def test_waiters_of_higher_priority_come_first(
    aio_client: memlock.aio.Client, name: str, plain: MemcachedText
) -> None:
    order: list[int] = []
    semaphore = aio_client.semaphore(name, permits=1)
    url = repr(aio_client).split('"')[1]
    async with anyio.create_task_group() as tasks, await semaphore.permit():
        for place, priority in enumerate((0, 5, 9), start=1):
            tasks.start_soon(takes, url, name, priority, order)
            with anyio.fail_after(20):
                while len(plain.permit_queue(name)) < place:
                    await anyio.sleep(0.005)
    assert order == [9, 5, 0]


async def takes(url: str, name: str, priority: int, order: list[int]) -> None:
    semaphore = memlock.aio.connect(url).semaphore(name, permits=1)
    await semaphore.acquire(priority=priority)
    order.append(priority)
    await semaphore.release()


async def test_a_counter_is_taken_and_released(aio_client: memlock.aio.Client, name: str) -> None:
    counter = aio_client.counter(name)
    with pytest.raises(memlock.CounterNotFound):
        await counter.try_acquire()
    assert await counter.set_up(2) and not await counter.set_up(9)
    assert await counter.try_acquire() and await counter.acquire()
    assert not await counter.try_acquire() and not await counter.acquire(timeout=0.05)
    assert await counter.release() == 1 and await counter.available() == 1


@pytest.mark.parametrize("priority", [None, 1])
async def test_all_waits_for_a_counter_end_when_they_are_cancelled(
    aio_client: memlock.aio.Client, name: str, priority: int | None
) -> None:
    counter = aio_client.counter(name)
    assert await counter.set_up(0)

    async def waits() -> None:
        with pytest.raises(memlock.Interrupted):
            await counter.acquire(priority=priority)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(waits)
            await anyio.wait_all_tasks_blocked()
            aio_client.cancel_waits()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(counter.acquire, -1, priority)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    assert await counter.release() == 1
    assert await counter.acquire(PATIENCE, priority) and await counter.available() == 0


@pytest.mark.parametrize("priority", [None, 1])
async def test_the_timeout_of_a_counter_is_checked(
    aio_client: memlock.aio.Client, name: str, priority: int | None
) -> None:
    counter = aio_client.counter(name)
    assert await counter.set_up(1)
    for timeout, error in ((-2, ValueError), (float("nan"), ValueError), (1e30, OverflowError)):
        with pytest.raises(error):
            await counter.acquire(timeout, priority)
    assert await counter.available() == 1


async def test_exactly_one_insert_of_a_key_is_the_first(
    aio_client: memlock.aio.Client, name: str
) -> None:
    first = 0
    keys = [f"key-{number}" for number in range(20)]

    async def inserts() -> None:
        nonlocal first
        mine = await aio_client.distinct_list(name, 60)
        for key in keys:
            is_first = await mine.insert(key)
            first += is_first

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(inserts)
    assert first == len(keys)
    distinct = await aio_client.distinct_list(name, 60)
    assert not distinct.created
    assert sorted([key async for key in distinct]) == sorted(keys)
    assert await distinct.contains("key-1") and not await distinct.contains("other")
    assert await distinct.add_many(["key-1", "new"]) == [
        (await distinct.id("key-1"), False),
        (21, True),
    ]
    assert [item async for item in distinct.items()][-1] == (21, "new")
    with pytest.raises(KeyError):
        await distinct.id("other")
    with pytest.raises(TypeError):
        await distinct.insert_many("abc")
    assert await distinct.count() == 21 and await distinct.tear_down()
    with pytest.raises(memlock.SessionNotFound):
        await distinct.insert("x")


async def test_more_keys_than_one_batch_are_iterated(
    aio_client: memlock.aio.Client, name: str
) -> None:
    async with aio_client:
        distinct = await aio_client.distinct_list(name, 60)
        keys = [f"{number}" for number in range(700)]
        await distinct.insert_many(iter(keys))
        assert [key async for key in distinct] == keys
    with pytest.raises(memlock.ClientClosed):
        await distinct.insert("x")
