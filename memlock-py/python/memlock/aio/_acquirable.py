"""What mutexes and semaphores have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memlock._memlock import Invalid, TimedOut
from memlock._subject import subject_of
from memlock.aio._held import Acquisition, Holder, Options

if TYPE_CHECKING:
    from datetime import timedelta
    from types import TracebackType

    from typing_extensions import Self

    from memlock._memlock import _Loss


class Acquirable:
    """What can be acquired, and what the object holds of it."""

    def __init__(self, core: object, options: Options, newest: bool) -> None:
        """`newest`: which acquisition counts for a task that has none of its own."""
        self._options = options
        self._held = Holder(subject_of(core), newest)

    async def _acquire(self, timeout: float | None) -> Acquisition | TimedOut:
        raise NotImplementedError

    async def extend(self, lease: float | timedelta | None = None) -> None:
        """Give the acquisition a new lease, counted from now; by default as long as the first.

        One round trip, or two for permits. The fence does not change. Raises NotHeld; LockLost, as
        release() does; Invalid for a lease out of range or with renew=True; Unreachable when
        nothing was changed; OutcomeUnknown or ProtocolError when it may have been: `remaining` then
        assumes the shorter of the two leases.
        """
        await self._held.must_be_held().extend(lease)

    async def check(self) -> bool:
        """Ask the server whether the acquisition is still held. One round trip.

        A renewed acquisition that is not held any more is lost for good. Raises NotHeld when the
        object holds nothing; Unreachable or ProtocolError.
        """
        return await self._held.must_be_held().check()

    @property
    def remaining(self) -> float:
        """The number of seconds for which the acquisition is guaranteed to be held. No I/O."""
        current = self._held.current()
        return 0.0 if current is None else current.held.remaining

    @property
    def is_held(self) -> bool:
        """Whether it is guaranteed to be held, unless the server has lost it. No I/O."""
        return self.remaining > 0.0

    @property
    def lost(self) -> _Loss | None:
        """Why it was lost, as memlock.Mutex.lost; None while no loss is known. No I/O."""
        current = self._held.current()
        return None if current is None else current.held.lost

    async def wait_lost(self, timeout: float | timedelta | None = None) -> _Loss | None:
        """Wait for a loss for at most `timeout` seconds, and return the reason as `lost` does.

        Returns None when the time has passed, or when it was released meanwhile.
        """
        loss: _Loss | None = await self._held.must_be_held().wait_lost(timeout)
        return loss

    async def __aenter__(self) -> Self:
        """Acquire with the object's `timeout`, and return the object itself.

        Raises TimedOut when the timeout expired, and otherwise as acquire().
        """
        acquired = await self._acquire(None)
        if isinstance(acquired, TimedOut):
            raise acquired
        self._held.enter(acquired, self._options)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release the acquisition.

        When the body raised an exception, that exception propagates, and a failure to release is
        only logged, as a warning of the logger "memlock"; otherwise the failure is raised, as by
        release().
        """
        current = self._held.current()
        if current is not None:
            await self._held.exit(current, exc_value)
        elif exc_value is None:
            self._held.must_be_held()

    def _described(self, state: str) -> str:
        return f"<{self._held.subject.replace('memlock.', 'memlock.aio.', 1)} {state}>"


def limit(blocking: bool, timeout: Any) -> float | None:
    """Return the timeout of an acquire() call, of which the arguments are those of threading's."""
    if blocking:
        return None if timeout is None else float(timeout)
    if timeout not in (-1, None):
        raise Invalid("can't specify a timeout for a non-blocking call")
    return 0.0
