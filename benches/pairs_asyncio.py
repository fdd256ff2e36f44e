"""The rate of pairs of lock+unlock of one Python process, by coroutines on a loop of asyncio.

Called as pairs.py is, with the same output.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import memlock.aio
import pairs_program
import redis.asyncio
from pairs_program import Limit, Measured

LEASE_S = 30
TASKS = 200

Pair = Callable[[], Awaitable[None]]
Contender = tuple[Callable[[str], Pair], int]


def memlock_pair(url: str) -> Pair:
    """The mutex of memlock.aio."""
    mutex = memlock.aio.connect(url).mutex("bench", lease=LEASE_S)

    async def pair() -> None:
        async with mutex:
            pass

    return pair


def redis_pair(url: str) -> Pair:
    """redis.asyncio's Lock: SET NX PX, and a release by Lua; a waiter asks every 100 ms."""
    lock = redis.asyncio.Redis.from_url(url).lock("bench", timeout=LEASE_S)

    async def pair() -> None:
        async with lock:
            pass

    return pair


# Each with the number of tasks that do it at the same time.
CONTENDERS = {
    "memlock": (memlock_pair, 1),
    "memlock-tasks": (memlock_pair, TASKS),
    "redis": (redis_pair, 1),
}


async def run(pairs: list[Pair], count: int, seconds: float) -> int:
    """Run exactly `count` pairs, or as many as fit in `seconds`; return their number."""
    end = time.perf_counter() + seconds
    done = 0

    async def repeat(pair: Pair) -> None:
        nonlocal done
        while done < count if count else time.perf_counter() < end:
            done += 1
            await pair()

    async with asyncio.TaskGroup() as tasks:
        for pair in pairs:
            tasks.create_task(repeat(pair))
    return done


async def measure(contender: Contender, url: str, limit: Limit) -> Measured:
    """Warm up, unless the number of pairs is given, and measure."""
    connect, tasks = contender
    pairs = [connect(url)] * tasks
    if not limit.count:
        await run(pairs, 0, limit.seconds / 4)
    begin = time.perf_counter()
    return await run(pairs, limit.count, limit.seconds), time.perf_counter() - begin


if __name__ == "__main__":
    pairs_program.main(
        "pairs_asyncio.py", CONTENDERS, lambda *arguments: asyncio.run(measure(*arguments))
    )
