"""memlock.aio.Semaphore and memlock.aio.Permit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from memlock._memlock import LockLost, NotHeld, TimedOut
from memlock.aio._acquirable import Acquirable, limit
from memlock.aio._held import Acquisition, Holder, Options, acquire
from memlock.aio._loop import running

if TYPE_CHECKING:
    from datetime import timedelta
    from types import TracebackType

    from typing_extensions import Self

    import memlock
    from memlock._memlock import _Loss


class Permit:
    """One acquisition of a semaphore, of one permit or several.

    Made by Semaphore.permit(), which acquires. The permits are held until release(), the end of
    the `async with` statement, or the deallocation of the object, and for at most the lease, unless
    it is extended. Any task may use the object.
    """

    def __init__(self, acquisition: Acquisition, subject: str, options: Options) -> None:
        """Use Semaphore.permit()."""
        self._acquisition = acquisition
        self._options = options
        self._held = Holder(subject)

    async def release(self) -> None:
        """Release the permits, all together, in one or two round trips.

        Raises NotHeld, a RuntimeError, when they were already released; LockLost when the lease had
        expired or the server had lost them. After Unreachable, OutcomeUnknown and ProtocolError
        they are still held, and release() can be called again.
        """
        await self._held.release(self._acquisition)

    async def extend(self, lease: float | timedelta | None = None) -> None:
        """Give the permits a new lease, counted from now; by default that of the semaphore.

        Raises NotHeld; LockLost, as release() does; Invalid for a lease out of range or with
        renew=True; Unreachable when nothing was changed; OutcomeUnknown or ProtocolError when it
        may have been.
        """
        await self._acquisition.extend(lease)

    async def check(self) -> bool:
        """Ask the server whether the permits are still held. One round trip."""
        return await self._acquisition.check()

    @property
    def remaining(self) -> float:
        """The number of seconds for which the permits are guaranteed to be held. No I/O."""
        return self._acquisition.held.remaining

    @property
    def is_held(self) -> bool:
        """Whether the permits are guaranteed to be held. No I/O."""
        return self.remaining > 0.0

    @property
    def lost(self) -> _Loss | None:
        """Why the permits were lost; None while no loss is known. No I/O."""
        return self._acquisition.held.lost

    async def wait_lost(self, timeout: float | timedelta | None = None) -> _Loss | None:
        """Wait for a loss for at most `timeout` seconds, and return the reason as `lost` does."""
        loss: _Loss | None = await self._acquisition.wait_lost(timeout)
        return loss

    @property
    def permits(self) -> int:
        """The number of permits that were acquired."""
        return self._acquisition.held.permits

    @property
    def token(self) -> str:
        """Identifies this acquisition, as Holder.token does."""
        return self._acquisition.held.token

    async def __aenter__(self) -> Self:
        """Return the permit, which is held."""
        self._held.enter(self._acquisition, self._options)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release the permits, as the end of `async with` of a Mutex does."""
        await self._held.exit(self._acquisition, exc_value)

    def __repr__(self) -> str:
        """Tell the number of permits and the time that is left."""
        return f"<memlock.aio.Permit permits={self.permits}, {self.remaining:.1f} s left>"


class Semaphore(Acquirable):
    """A semaphore by its name: limits how many permits all processes hold at the same time.

    Made by Client.semaphore(). It is used like asyncio.BoundedSemaphore, in an `async with`
    statement or by acquire() and release(). Tasks may share the object, which may hold any number
    of acquisitions at once. "The acquisition" to which release(), extend(), `remaining` and others
    apply is the latest one of the current task or, in a task that has none, the oldest one of the
    object. permit() returns an acquisition as an object of its own.

    A holder keeps its permits for at most the lease, unless it extends the lease or it is renewed.
    All users of a semaphore share its number of permits.
    """

    def __init__(self, core: memlock.Semaphore, options: Options) -> None:
        """Use Client.semaphore()."""
        super().__init__(core, options, newest=False)
        self._core = core

    async def acquire(
        self,
        blocking: bool = True,
        timeout: float | None = -1,
        *,
        permits: int = 1,
        priority: int = 0,
        ages: bool = True,
    ) -> bool:
        """Acquire permits, all together, and return whether they were acquired.

        blocking=False tries once. Otherwise it waits for `timeout` seconds; the default, -1, and
        None mean the semaphore's own `timeout`. Waiters of higher `priority` are served first,
        those of the same in the order of their arrival. A waiter that was overtaken 16 times is
        served next, unless ages=False.

        A task that is cancelled holds nothing. Raises as Mutex.acquire(), and SemaphoreNotFound
        when the semaphore was not set up and this object was made without its number of permits;
        Invalid for more permits than there are.
        """
        acquired = await self._acquire(limit(blocking, timeout), permits, priority, ages)
        if isinstance(acquired, TimedOut):
            return False
        self._held.add(acquired)
        return True

    async def _acquire(
        self, timeout: float | None, permits: int = 1, priority: int = 0, ages: bool = True
    ) -> Acquisition | TimedOut:
        request = (permits, priority, ages)
        return await acquire(
            lambda *notify: self._core._acquire(timeout, request, *notify), self._options
        )

    async def permit(
        self,
        timeout: float | None = -1,
        *,
        permits: int = 1,
        priority: int = 0,
        ages: bool = True,
    ) -> Permit:
        """Acquire permits, and return them as an object of their own.

            async with await semaphore.permit() as permit: ...

        Raises TimedOut when the timeout expired, and otherwise as acquire().
        """
        acquired = await self._acquire(limit(True, timeout), permits, priority, ages)
        if isinstance(acquired, TimedOut):
            raise acquired
        return Permit(acquired, self._held.subject, self._options)

    async def release(self, n: int = 1) -> None:
        """Release the acquisition, or `n` of them, with all their permits.

        Raises NotHeld, a RuntimeError and ValueError, when this object holds fewer, and then
        releases none; and otherwise as Mutex.release().
        """
        if n < 1 or n > len(self._held):
            raise NotHeld(f"{self._held.subject}: this object does not hold {n} acquisitions.")
        lost = None
        for _ in range(n):
            try:
                await self._held.release(self._held.must_be_held())
            except LockLost as error:
                lost = error
        if lost is not None:
            raise lost

    async def permits(self) -> int:
        """Return the number of permits of the semaphore, held or not. One round trip."""
        return int(await self._call(lambda: self._core.permits))

    async def available(self) -> int:
        """Return the number of permits that no process holds. A snapshot. One round trip."""
        return int(await self._call(lambda: self._core.available))

    async def holders(self) -> list[memlock.Holder]:
        """Return a list of Holder, one for each acquisition, in all processes. A snapshot."""
        holders: list[memlock.Holder] = await self._call(self._core.holders)
        return holders

    async def resize(self, n: int) -> int:
        """Change the number of permits for all processes, and return the previous number.

        No holder loses any. Objects that are made afterwards need the new number.
        """
        return int(await self._call(lambda: self._core.resize(n)))

    async def set_up(self, life: float | timedelta) -> bool:
        """Set up the semaphore, which expires `life` after its last use; True if it is new."""
        return bool(await self._call(lambda: self._core.set_up(life)))

    async def tear_down(self) -> bool:
        """Remove the semaphore for all processes. Return False if there was none."""
        return bool(await self._call(self._core.tear_down))

    async def _call(self, function: Callable[[], Any]) -> Any:
        return await running().result_of(self._core._call(function))

    def __repr__(self) -> str:
        """Tell the name, and how many acquisitions are held."""
        count = len(self._held)
        return self._described(f"held {count} times" if count else "not held")
