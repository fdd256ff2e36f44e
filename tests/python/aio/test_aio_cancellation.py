"""Tasks that are cancelled hold nothing, and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import random

import anyio
import memlock
import memlock.aio
import pytest
from support import Memcached, MemcachedText

pytestmark = pytest.mark.anyio

# `make soak` and the like may ask for more.
CANCELLATIONS = int(os.environ.get("MEMLOCK_CANCELLATIONS", "300"))


async def test_nothing_is_left_behind_by_cancellations_at_random_moments(
    aio_client: memlock.aio.Client, name: str, plain: MemcachedText
) -> None:
    seed = int(os.environ.get("MEMLOCK_SEED", random.randrange(1 << 32)))
    print(f"MEMLOCK_SEED={seed}")
    chance = random.Random(seed)

    async def tries() -> None:
        with anyio.move_on_after(chance.random() * 0.004):
            async with aio_client.mutex(name):
                await anyio.sleep(chance.random() * 0.002)

    with anyio.fail_after(60):
        for _ in range(CANCELLATIONS // 10):
            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(tries)
        # The lock, and the queue, are free.
        async with aio_client.mutex(name, timeout=5):
            pass
        while plain.queue(name) or plain.get(f"lock:{name}") is not None:
            await anyio.sleep(0.005)


async def test_a_cancelled_wait_leaves_the_queue_and_others_are_served(
    aio_client: memlock.aio.Client, name: str, plain: MemcachedText
) -> None:
    served = anyio.Event()

    async def next_one() -> None:
        async with aio_client.mutex(name):
            served.set()

    async with anyio.create_task_group() as tasks:
        async with aio_client.mutex(name):
            with anyio.move_on_after(0.05) as scope:
                await aio_client.mutex(name).acquire()
            assert scope.cancelled_caught
            tasks.start_soon(next_one)
            await anyio.sleep(0.05)
        with anyio.fail_after(10):
            await served.wait()
    assert plain.queue(name) == []


async def test_a_release_that_has_begun_is_carried_out(
    aio_client: memlock.aio.Client, name: str
) -> None:
    mutex = aio_client.mutex(name)
    for _ in range(50):
        with anyio.CancelScope() as scope:
            async with mutex:
                scope.cancel()
        # Otherwise this would wait for the lease.
        assert await mutex.acquire(timeout=10)
        await mutex.release()


async def test_permits_of_cancelled_tasks_are_released(
    aio_client: memlock.aio.Client, name: str
) -> None:
    semaphore, counter = aio_client.semaphore(name, 3), aio_client.counter(f"{name}-counter")
    await counter.set_up(3)

    async def tries(delay: float) -> None:
        with anyio.move_on_after(delay):
            await semaphore.acquire(permits=2)
            await semaphore.release()
        with anyio.move_on_after(delay):
            await counter.acquire()
            await counter.release()

    async with anyio.create_task_group() as tasks:
        for place in range(40):
            tasks.start_soon(tries, place * 0.0002)
    with anyio.fail_after(10):
        # Nothing is left: what a cancelled task did not release, this object holds.
        while await semaphore.available() != 3:
            if semaphore.is_held:
                await semaphore.release()
            else:  # It is on its way.
                await anyio.sleep(0.01)
    assert await counter.available() <= 3


async def test_a_server_that_hangs_does_not_block_the_loop(
    aio_client: memlock.aio.Client, mortal_server: Memcached, name: str
) -> None:
    hung = memlock.aio.connect(f"{mortal_server.url}?io_timeout=500ms&connect_timeout=500ms")
    async with hung.mutex(name):
        pass
    turns, ended = 0, False

    async def count() -> None:
        nonlocal turns
        while not ended:
            turns += 1
            await anyio.sleep(0)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        with mortal_server.paused():
            with pytest.raises(memlock.Error):
                await hung.mutex(name).acquire()
            # Another server of another client is not concerned.
            async with aio_client.mutex(name):
                pass
            # For a moment it is not asked again.
            with anyio.move_on_after(0.05), contextlib.suppress(memlock.Unreachable):
                await hung.mutex(name).acquire()
            # So are calls that only read, of all kinds.
            for _ in range(3):
                with pytest.raises(memlock.Unreachable, match=name):
                    await hung.mutex(name).owner()
                with pytest.raises(memlock.Unreachable, match=name):
                    await hung.semaphore(name, 2).available()
        ended = True
    # In half a second a loop that was blocked would have had a few turns.
    assert turns > 1000
    # It is asked again once a second.
    with anyio.fail_after(20):
        while True:
            with contextlib.suppress(memlock.Unreachable):
                async with hung.mutex(name):
                    break
            await anyio.sleep(0.05)


async def test_a_closed_client_ends_waits(server: Memcached, name: str) -> None:
    client, other = memlock.aio.connect(server.url), memlock.aio.connect(server.url)
    async with other.mutex(name):
        async with anyio.create_task_group() as tasks:

            async def waits() -> None:
                with pytest.raises(memlock.ClientClosed, match=name):
                    await client.mutex(name).acquire()

            mutex = client.mutex(f"{name}-held")
            await mutex.acquire()
            tasks.start_soon(waits)
            await anyio.sleep(0.05)
            client.close()
        assert client.closed
        with pytest.raises(memlock.ClientClosed):
            client.mutex(name)
        # What is held stays held, and can be released.
        assert mutex.is_held
        await mutex.release()


async def test_waits_are_interrupted(aio_client: memlock.aio.Client, name: str) -> None:
    async with aio_client.mutex(name), anyio.create_task_group() as tasks:

        async def waits() -> None:
            with pytest.raises(memlock.Interrupted):
                await aio_client.mutex(name).acquire()

        tasks.start_soon(waits)
        await anyio.sleep(0.05)
        aio_client.cancel_waits()
