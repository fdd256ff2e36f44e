"""memlock.aio.DistinctList."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Callable

from memlock.aio._loop import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    import memlock

# How many keys an iteration reads in one call: as many as one batch of the server.
_BATCH = 256


class DistinctList:
    """A named set of keys with ids, shared by all processes that use the session's name.

    Made by Client.distinct_list(). Exactly one of all inserts of a key returns True, and all
    callers get the same id for a key. See memlock.DistinctList, whose exceptions these calls raise.
    A call whose task is cancelled may have been carried out or not.
    """

    def __init__(self, core: memlock.DistinctList) -> None:
        """Use Client.distinct_list()."""
        self._core = core

    @property
    def created(self) -> bool:
        """Whether this object has set the session up; False if it joined an existing one."""
        return self._core.created

    async def insert(self, key: str | bytes) -> bool:
        """Insert a key, and return whether this insert was the first."""
        return bool(await self._call(lambda: self._core.insert(key)))

    async def insert_many(self, keys: Iterable[str | bytes]) -> list[tuple[int, bool]]:
        """Insert many keys, and return a list with (id, first) for each, in the same order."""
        given: Any = keys if isinstance(keys, (str, bytes)) else list(keys)
        inserted: list[tuple[int, bool]] = await self._call(lambda: self._core.insert_many(given))
        return inserted

    # The names that sets use.
    add = insert
    add_many = insert_many

    async def id(self, key: str | bytes) -> int:
        """Return the id of a key. Raises KeyError when it is not in the list."""
        return int(await self._call(lambda: self._core.id(key)))

    async def contains(self, key: str | bytes) -> bool:
        """Return whether the key is in the list. One round trip."""
        return bool(await self._call(lambda: key in self._core))

    async def count(self) -> int:
        """Return the number of assigned ids, as len() of a memlock.DistinctList."""
        return int(await self._call(lambda: len(self._core)))

    async def items(self) -> AsyncIterator[tuple[int, str]]:
        """Iterate over (id, key), in the order of ids, of the keys that are in the list now."""
        entries = await self._call(self._core.items)
        while batch := await self._call(lambda: list(itertools.islice(entries, _BATCH))):
            for item in batch:
                yield item

    async def __aiter__(self) -> AsyncIterator[str]:
        """Iterate over the keys, as items()."""
        async for _, key in self.items():
            yield key

    async def tear_down(self) -> bool:
        """End the session for all processes. Return False if it had already ended."""
        return bool(await self._call(self._core.tear_down))

    async def _call(self, function: Callable[[], Any]) -> Any:
        return await running().result_of(self._core._call(function))

    def __repr__(self) -> str:
        """Tell the name of the session."""
        return repr(self._core).replace("memlock.", "memlock.aio.", 1)
