"""Makes the calls of driver.py by the coroutines of memlock.aio, in one event loop."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import driver
import memlock.aio

# In the place of a thread: those of the clients, which carry out the calls. See asleep.rs.
WORKERS = "0"

# What methods return, and is called by driver.py in its turn.
OBJECTS = (
    memlock.aio.Counter,
    memlock.aio.DistinctList,
    memlock.aio.Mutex,
    memlock.aio.Permit,
    memlock.aio.Semaphore,
)


class Coroutines(driver.Calls):
    """Has a loop in a thread of its own run each coroutine. The thread of the call waits for it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.of_thread = threading.local()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def connect(self, url: str) -> Object:
        return Object(self, memlock.aio.connect(url), None)

    def begin(self, number: str) -> None:
        """Leave it to the coroutine: before that nothing sleeps."""
        self.of_thread.number = number

    def drop(self, target: str) -> None:
        held = getattr(driver.objects.pop(target, None), "held", None)
        if held is not None:
            client = held.client
            del held
            # A thread of the client releases it, and carries out calls in their order.
            client.mutex("dropped").locked()

    def result_of(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        number = self.of_thread.number
        # The future would keep it until the garbage collector runs; it is to go when it is dropped.
        results = []

        async def run() -> None:
            # After the first step, which has begun the call.
            self.loop.call_soon(driver.say, number, "at", WORKERS)
            results.append(await coroutine)

        asyncio.run_coroutine_threadsafe(run(), self.loop).result()
        return results.pop()


class Object:
    """An object of memlock.aio that is called like the one of memlock."""

    def __init__(self, calls: Coroutines, target: Any, client: Object | None) -> None:
        self.calls, self.target, self.client = calls, target, client

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.target, name)
        if not inspect.ismethod(attribute):
            return attribute
        called = functools.partial(self.call, attribute)
        # This one is a property there.
        return called() if name == "available" else called

    def call(self, method: Any, *arguments: Any, **options: Any) -> Any:
        result = method(*arguments, **options)
        if inspect.iscoroutine(result):
            result = self.calls.result_of(result)
        if isinstance(result, OBJECTS):
            return Object(self.calls, result, self if self.client is None else self.client)
        return result

    def __len__(self) -> int:
        return int(self.call(self.target.count))

    def items(self) -> Iterator[tuple[int, str]]:
        async def all_items() -> list[tuple[int, str]]:
            return [item async for item in self.target.items()]

        return iter(self.call(all_items))


if __name__ == "__main__":
    driver.main(Coroutines())
