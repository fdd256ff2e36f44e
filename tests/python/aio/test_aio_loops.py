"""Several loops, threads and processes; loops that are closed; programs that end."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import memlock.aio
import pytest
from support import Child, Memcached, MemcachedText, eventually, run

MANY = 1000


async def use(client: memlock.aio.Client, name: str) -> None:
    async with client.mutex(name):
        await asyncio.sleep(0)


def test_a_client_is_used_by_one_loop_after_the_other(
    aio_client: memlock.aio.Client, name: str
) -> None:
    for _ in range(5):
        asyncio.run(use(aio_client, name))


def test_a_client_and_a_mutex_are_used_by_several_loops_at_once(
    aio_client: memlock.aio.Client, name: str
) -> None:
    mutex, inside, entries = aio_client.mutex(name), 0, []

    async def work() -> None:
        nonlocal inside
        for _ in range(20):
            async with mutex:
                inside += 1
                assert inside == 1
                entries.append(1)
                await asyncio.sleep(0)
                inside -= 1

    threads = [threading.Thread(target=lambda: asyncio.run(work())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(entries) == 80


def test_what_a_closed_loop_has_left_is_cancelled(
    aio_client: memlock.aio.Client, name: str, plain: MemcachedText
) -> None:
    async def hold_and_wait() -> None:
        await aio_client.mutex(name).acquire()
        waiting = asyncio.ensure_future(aio_client.mutex(f"{name}-2").acquire())
        await asyncio.sleep(0)
        del waiting

    holder = memlock.connect(repr(aio_client).split('"')[1]).mutex(f"{name}-2")
    with holder:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(hold_and_wait())
        loop.set_exception_handler(lambda *_: None)
        loop.close()
        del loop
        gc.collect()
        eventually(lambda: plain.get(f"lock:{name}") is None)
        eventually(lambda: not plain.queue(f"{name}-2"))


def test_neither_threads_nor_the_executor_grow_with_the_tasks(
    aio_client: memlock.aio.Client, name: str
) -> None:
    order: list[int] = []

    async def work(place: int) -> None:
        async with aio_client.mutex(name):
            order.append(place)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with aio_client.mutex(f"{name}-first"):
            pass
        before = len(os.listdir("/proc/self/task"))
        async with aio_client.mutex(name):
            tasks = [asyncio.ensure_future(work(place)) for place in range(MANY)]
            await asyncio.sleep(0.2)
            assert len(os.listdir("/proc/self/task")) <= before + 2
        await asyncio.gather(*tasks)
        assert loop._default_executor is None  # type: ignore[attr-defined]

    asyncio.run(main())
    assert order == list(range(MANY))


def test_a_forked_child_uses_the_client_and_holds_nothing(
    aio_client: memlock.aio.Client, name: str
) -> None:
    async def parent() -> None:
        mutex = aio_client.mutex(name)
        async with mutex:
            fence, child = mutex.fence, os.fork()
            if child == 0:
                # The loop of the parent runs no more here.
                asyncio.events._set_running_loop(None)
                os._exit(asyncio.run(in_child(aio_client, mutex, f"{name}-child")))
            loop = asyncio.get_running_loop()
            _, status = await loop.run_in_executor(None, os.waitpid, child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            assert await mutex.check() and mutex.fence == fence

    asyncio.run(parent())


async def in_child(client: memlock.aio.Client, mutex: memlock.aio.Mutex, name: str) -> int:
    async with client.mutex(name):
        is_held = mutex.is_held
        try:
            await mutex.release()
        except memlock.NotHeld:
            return int(is_held)
    return 2


def test_a_deadline_of_asyncio_ends_a_wait(aio_client: memlock.aio.Client, name: str) -> None:
    async def main() -> None:
        async with aio_client.mutex(name):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(aio_client.mutex(name).acquire(), 0.05)

    asyncio.run(main())


def test_what_is_held_can_be_looked_at_outside_of_a_loop(
    aio_client: memlock.aio.Client, name: str
) -> None:
    mutex = aio_client.mutex(name)
    assert not mutex.is_held and mutex.lost is None
    asyncio.run(mutex.acquire())
    assert mutex.is_held and mutex.fence > 0 and mutex.remaining > 20
    asyncio.run(mutex.release())
    assert not mutex.is_held


def test_outside_of_a_loop_there_is_a_clear_error(aio_client: memlock.aio.Client) -> None:
    waiting = aio_client.mutex("x").acquire()
    with pytest.raises(RuntimeError, match="no running event loop"):
        waiting.send(None)


ENDS = """
import asyncio, sys, memlock.aio
client = memlock.aio.connect(sys.argv[1])

async def main():
    mutex = client.mutex(sys.argv[2])
    await mutex.acquire()
    tasks = [asyncio.ensure_future(client.mutex(sys.argv[2]).acquire()) for _ in range(20)]
    await asyncio.sleep(0.05)
    print("waiting", flush=True)
    {end}

try:
    asyncio.run(main())
except KeyboardInterrupt:
    pass
print("over")
"""


@pytest.mark.parametrize(
    "end", ["return", "sys.exit(0)", "await asyncio.sleep(60)"], ids=["return", "exit", "ctrl-c"]
)
def test_a_program_ends_with_tasks_that_wait(
    server: Memcached, name: str, plain: MemcachedText, end: str
) -> None:
    program = ENDS.replace("{end}", end)
    with Child(program, server.url, name) as child:
        assert child.reads() == "waiting"
        if "sleep(60)" in end:
            child.signal(2)
        elif end == "return":
            assert child.reads() == "over"
        child.ends()
    # What it held is free at once.
    assert memlock.connect(server.url).mutex(name).acquire(timeout=10)


def test_a_thread_may_block_beside_the_loop(aio_client: memlock.aio.Client, name: str) -> None:
    url, inside, most = repr(aio_client).split('"')[1], 0, 0
    blocking = memlock.connect(url)

    def count(by: int) -> None:
        nonlocal inside, most
        inside += by
        most = max(most, inside)

    def thread() -> None:
        for _ in range(50):
            with blocking.mutex(name):
                count(1)
                count(-1)

    async def task() -> None:
        for _ in range(50):
            async with aio_client.mutex(name):
                count(1)
                await asyncio.sleep(0)
                count(-1)

    other = threading.Thread(target=thread)
    other.start()
    asyncio.run(task())
    other.join()
    assert most == 1


def in_both(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a coroutine on asyncio, in its debug mode, which reports what blocks the loop."""
    asyncio.run(body(), debug=True)


def test_debug_mode_has_nothing_to_report(
    aio_client: memlock.aio.Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    in_both(lambda: use(aio_client, name))
    assert not [
        record for record in caplog.records if record.name == "asyncio" and record.levelno > 20
    ]


def test_many_programs_share_a_lock(server: Memcached, name: str) -> None:
    program = """
import asyncio, sys, memlock.aio
client = memlock.aio.connect(sys.argv[1])
async def work():
    for _ in range(10):
        async with client.mutex(sys.argv[2]) as mutex:
            print(mutex.fence)
async def main():
    await asyncio.gather(*(work() for _ in range(5)))
asyncio.run(main())
"""
    fences = [int(fence) for fence in run(program, server.url, name)]
    assert len(fences) == 50 and fences == sorted(set(fences))
