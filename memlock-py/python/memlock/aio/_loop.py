"""Waiting for a call in the running event loop, of asyncio or trio."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

from memlock._ended import EndedCalls

if TYPE_CHECKING:
    from memlock._memlock import _Call


class Loop(EndedCalls):
    """An event loop, as calls use it."""

    async def result_of(self, call: _Call) -> Any:
        """Wait for the call, and return its result or raise its exception.

        If the task is cancelled meanwhile, so is the call: what was granted all the same is
        released.
        """
        number = next(self._numbers)
        try:
            await self._wait(call, number)
        except BaseException:
            self._ended.pop(number, None)
            call.cancel()
            raise
        return call.result()

    async def _wait(self, call: _Call, number: int) -> None:
        raise NotImplementedError

    def task(self) -> Any:
        """Return the current task."""
        raise NotImplementedError

    def event(self) -> Any:
        """Make an event."""
        raise NotImplementedError

    async def wait(self, event: Any, timeout: float | None) -> None:
        """Wait for the event for at most that many seconds."""
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        """Let other tasks run."""
        raise NotImplementedError

    def cancellation(self) -> Cancellation:
        """Return what cancels the rest of a block of the current task, from here on."""
        raise NotImplementedError


class Cancellation:
    """Cancels a block of a task."""

    is_requested = False

    def request(self) -> None:
        """Cancel the block. To be called in the loop."""
        raise NotImplementedError

    def end(self, error: BaseException | None) -> bool:
        """End the block. Return whether its exception is the cancellation of this object."""
        raise NotImplementedError


class _AsyncioCancellation(Cancellation):
    def __init__(self) -> None:
        self._task: Any = asyncio.current_task()
        # Before 3.11 a task does not count who has cancelled it.
        self._before = getattr(self._task, "cancelling", int)()

    def request(self) -> None:
        self.is_requested = True
        self._task.cancel()

    def end(self, error: BaseException | None) -> bool:
        if not self.is_requested:
            return False
        left = self._task.uncancel() if hasattr(self._task, "uncancel") else 0
        return isinstance(error, asyncio.CancelledError) and left <= self._before


class _TrioCancellation(Cancellation):
    def __init__(self, trio: Any) -> None:
        self._scope = trio.CancelScope()
        self._scope.__enter__()

    def request(self) -> None:
        self.is_requested = True
        self._scope.cancel()

    def end(self, error: BaseException | None) -> bool:
        trace = None if error is None else error.__traceback__
        caught = self._scope.__exit__(None if error is None else type(error), error, trace)
        return bool(caught)


class _Asyncio(Loop):
    # It refers to no loop, because a loop keeps it alive.
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        loop.add_reader(self.completions.fileno(), self.dispatch)

    async def _wait(self, call: _Call, number: int) -> None:
        future = asyncio.get_running_loop().create_future()
        self._ended[number] = functools.partial(_end, weakref.ref(future))
        call.notify(self.completions, number)
        await future

    def task(self) -> Any:
        return asyncio.current_task()

    def event(self) -> Any:
        return asyncio.Event()

    async def wait(self, event: Any, timeout: float | None) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(event.wait(), timeout)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def cancellation(self) -> Cancellation:
        return _AsyncioCancellation()


def _end(future: weakref.ref[asyncio.Future[None]]) -> None:
    waiting = future()
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


class _Trio(Loop):
    def __init__(self, trio: Any) -> None:
        super().__init__()
        self._trio = trio
        trio.lowlevel.spawn_system_task(self._serve, name="memlock")

    async def _serve(self) -> None:
        while True:
            await self._trio.lowlevel.wait_readable(self.completions.fileno())
            self.dispatch()

    async def _wait(self, call: _Call, number: int) -> None:
        event = self._trio.Event()
        self._ended[number] = event.set
        call.notify(self.completions, number)
        await event.wait()

    def task(self) -> Any:
        return self._trio.lowlevel.current_task()

    def event(self) -> Any:
        return self._trio.Event()

    async def wait(self, event: Any, timeout: float | None) -> None:
        with self._trio.move_on_after(float("inf") if timeout is None else timeout):
            await event.wait()

    async def sleep(self, seconds: float) -> None:
        await self._trio.sleep(seconds)

    def cancellation(self) -> Cancellation:
        return _TrioCancellation(self._trio)


class _Loops(threading.local):
    """Those of this thread."""

    def __init__(self) -> None:
        self.of_asyncio: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Asyncio] = (
            weakref.WeakKeyDictionary()
        )
        # A variable of trio's runs, once trio is used.
        self.of_trio: Any = None


_loops = _Loops()


def running() -> Loop:
    """Return the running event loop."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return _running_trio()
    known = _loops.of_asyncio.get(loop)
    if known is None:
        known = _loops.of_asyncio[loop] = _Asyncio(loop)
    return known


def current_task() -> Any:
    """Return the current task; None outside of a loop."""
    try:
        return running().task()
    except RuntimeError:
        return None


def _running_trio() -> Loop:
    trio = sys.modules.get("trio")
    if trio is None or not trio.lowlevel.in_trio_task():
        raise RuntimeError(
            "no running event loop: memlock.aio is for coroutines of asyncio or trio"
        )
    if _loops.of_trio is None:
        _loops.of_trio = trio.lowlevel.RunVar("memlock")
    known: Loop | None = _loops.of_trio.get(None)
    if known is None:
        known = _Trio(trio)
        _loops.of_trio.set(known)
    return known


def _forget() -> None:
    """Forget all: a child made by fork shares the descriptors with its parent."""
    _loops.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_forget)
