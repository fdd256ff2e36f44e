"""memlock.aio.Counter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from memlock.aio._acquirable import limit
from memlock.aio._loop import running

if TYPE_CHECKING:
    import memlock


class Counter:
    """A plain counter of free permits: an item with their number, for other programs too.

    Made by Client.counter(). Prefer a Semaphore where you can: a counter has no leases, and the
    permits of a program that died are lost until the item is written anew. See memlock.Counter.
    """

    def __init__(self, core: memlock.Counter) -> None:
        """Use Client.counter()."""
        self._core = core

    async def set_up(self, n: int) -> bool:
        """Create the item with `n` free permits. Return False if there is already one."""
        return bool(await self._call(lambda: self._core.set_up(n)))

    async def try_acquire(self) -> bool:
        """Acquire one permit if one is free, and return whether one was.

        A permit that a cancelled task was given is released. Raises CounterNotFound when there is
        no item.
        """
        return await self.acquire(0.0)

    async def acquire(self, timeout: float | None = -1, priority: int | None = None) -> bool:
        """Wait for one permit for `timeout` seconds, or without a limit for -1 or None.

        Returns False if the timeout expired. Without `priority` it retries, with pauses that grow
        from 1 to 50 ms, without a queue or fairness. With `priority` it waits in a queue, in the
        order of priority, higher first, and of arrival among equals.
        """
        return bool(await running().result_of(self._core._acquire(limit(True, timeout), priority)))

    async def release(self) -> int:
        """Release one permit, whoever acquired it, and return the number of free permits."""
        return int(await self._call(self._core.release))

    async def available(self) -> int:
        """Return the number of free permits. A snapshot. One round trip."""
        return int(await self._call(lambda: self._core.available))

    async def _call(self, function: Callable[[], Any]) -> Any:
        return await running().result_of(self._core._call(function))

    def __repr__(self) -> str:
        """Tell the key."""
        return repr(self._core).replace("memlock.", "memlock.aio.", 1)
