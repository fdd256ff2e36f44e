"""What is held: by one acquisition, and by an object that several tasks may use."""

from __future__ import annotations

import collections
import logging
import weakref
from typing import TYPE_CHECKING, Any, Callable

from memlock._memlock import Error, LockLost, NotHeld, TimedOut
from memlock.aio._loop import Loop, current_task, running

if TYPE_CHECKING:
    from memlock._memlock import _Call, _Held

_log = logging.getLogger("memlock")


class Options:
    """How an object renews what it acquires, and whom it tells."""

    def __init__(
        self,
        renew: bool,
        on_lease_at_risk: Callable[[float], object] | None,
        on_lost: Callable[[str], object] | None,
        cancel_on_lost: bool,
    ) -> None:
        self.renew = renew
        self.on_lease_at_risk = on_lease_at_risk
        self.on_lost = on_lost
        self.cancel_on_lost = cancel_on_lost


class Watch:
    """What the renewal thread reports of one acquisition, as it is told in the event loop."""

    def __init__(self, loop: Loop, options: Options) -> None:
        self._loop = loop
        self._options = options
        self._notices: collections.deque[tuple[Callable[[Any], object] | None, Any]] = (
            collections.deque()
        )
        self._number = loop.subscribe(self._tell)
        self.is_over = loop.event()
        self.cancel: Callable[[], None] | None = None

    # The renewal thread calls these two.

    def lease_at_risk(self, seconds: float) -> None:
        self._notices.append((self._options.on_lease_at_risk, seconds))
        self._loop.completions.add(self._number)

    def lost(self, reason: str) -> None:
        self._notices.append((self._lost, reason))
        self._loop.completions.add(self._number)

    def _tell(self) -> None:
        while self._notices:
            called, value = self._notices.popleft()
            if called is not None:
                called(value)

    def _lost(self, reason: str) -> None:
        self.is_over.set()
        if self.cancel is not None:
            self.cancel()
        if self._options.on_lost is not None:
            self._options.on_lost(reason)

    def close(self) -> None:
        """Tell nothing more."""
        self._loop.unsubscribe(self._number)
        self.is_over.set()


class Acquisition:
    """One acquisition. It belongs to no task: any may release it."""

    def __init__(self, held: _Held, loop: Loop, watch: Watch | None) -> None:
        self.held = held
        self.task = weakref.ref(loop.task())
        self.watch = watch

    async def release(self) -> None:
        """Release it. That is carried out also if this task is cancelled meanwhile."""
        call = self.held.release()
        await running().result_of(call)
        self.close()

    def close(self) -> None:
        """Tell no more of it."""
        if self.watch is not None:
            self.watch.close()

    async def extend(self, lease: Any) -> None:
        """Give it a new lease."""
        await running().result_of(self.held.extend(lease))

    async def check(self) -> bool:
        """Ask the server whether it is still held."""
        return bool(await running().result_of(self.held.check()))

    async def wait_lost(self, timeout: Any) -> Any:
        """Wait until it is lost or released."""
        loop, seconds = running(), None if timeout is None else _seconds(timeout)
        left = self.held.remaining
        if self.held.lost is None and left > 0.0:
            if self.watch is not None:
                await loop.wait(self.watch.is_over, seconds)
            else:
                await loop.sleep(left if seconds is None else min(left, seconds))
        return self.held.lost


def _seconds(duration: Any) -> float:
    return float(duration.total_seconds() if hasattr(duration, "total_seconds") else duration)


async def acquire(begin: Callable[..., _Call], options: Options) -> Acquisition | TimedOut:
    """Acquire by a call. Returns the exception that says why nothing was acquired in time."""
    loop = running()
    watch = Watch(loop, options) if options.renew else None
    try:
        call = begin(watch and watch.lease_at_risk, watch and watch.lost)
        result = await loop.result_of(call)
    except BaseException:
        if watch is not None:
            watch.close()
        raise
    if isinstance(result, TimedOut):
        if watch is not None:
            watch.close()
        return result
    return Acquisition(result, loop, watch)


class Holder:
    """What an object holds, by acquisitions of several tasks."""

    def __init__(self, subject: str, newest: bool = True) -> None:
        self.subject = subject
        self._newest = newest
        self._all: list[Acquisition] = []
        # Of `async with` statements that cancel their blocks, by acquisition.
        self._cancellations: weakref.WeakKeyDictionary[Acquisition, Any] = (
            weakref.WeakKeyDictionary()
        )

    def add(self, acquisition: Acquisition) -> None:
        """Add what was acquired."""
        # What was lost, and whose task is gone, will not be released.
        self._all = [one for one in self._all if one.held.remaining > 0.0 or one.task() is not None]
        self._all.append(acquisition)

    def current(self) -> Acquisition | None:
        """Return the latest acquisition of this task, or else the newest or oldest of any."""
        if not self._all:
            return None
        task = current_task()
        for one in reversed(self._all):
            if task is not None and one.task() is task:
                return one
        return self._all[-1 if self._newest else 0]

    def must_be_held(self) -> Acquisition:
        """Return the same, or raise NotHeld."""
        current = self.current()
        if current is None:
            raise NotHeld(f"{self.subject}: not held by this object.")
        return current

    async def release(self, acquisition: Acquisition) -> None:
        """Release an acquisition. After a failure it can be released again."""
        if acquisition in self._all:
            self._all.remove(acquisition)
        try:
            await acquisition.release()
        except (LockLost, NotHeld):
            acquisition.close()
            raise
        except Error:
            self._all.append(acquisition)
            raise

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, acquisition: Acquisition, options: Options) -> None:
        """Begin the block of an `async with` statement."""
        self.add(acquisition)
        if options.cancel_on_lost and acquisition.watch is not None:
            cancellation = running().cancellation()
            self._cancellations[acquisition] = cancellation
            acquisition.watch.cancel = cancellation.request

    async def exit(self, acquisition: Acquisition, error: BaseException | None) -> None:
        """End the block. A failure to release does not hide an exception of the block."""
        if acquisition.watch is not None:
            acquisition.watch.cancel = None
        cancellation = self._cancellations.pop(acquisition, None)
        if cancellation is not None and cancellation.end(error):
            error = None
        try:
            await self.release(acquisition)
        except Error as failure:
            if error is None:
                raise
            if not isinstance(failure, NotHeld):
                text = "Not released after the body of its `async with` statement raised. %s: %s"
                _log.warning(text, type(failure).__name__, failure)
        except BaseException:
            # The block has ended before it noticed that it was cancelled here.
            if cancellation is None or not cancellation.is_requested or error is not None:
                raise
        if cancellation is not None and cancellation.is_requested and error is None:
            raise LockLost(f"{self.subject}: lost, and so its block was cancelled.")
