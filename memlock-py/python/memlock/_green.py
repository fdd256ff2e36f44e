"""Waiting in the hub of gevent or eventlet, in a program whose threads are greenlets.

memlock.Mutex and the others call this when such a library has replaced Python's threads.
"""

from __future__ import annotations

import itertools
import os
import sys
import weakref
from importlib import import_module
from typing import TYPE_CHECKING, Any

from memlock._ended import EndedCalls

if TYPE_CHECKING:
    from memlock import CancelHandle
    from memlock._memlock import _Call

# How often a wait looks whether its handle was cancelled.
_LOOK_S = 0.05


class Hub(EndedCalls):
    """The hub of a thread. It has one descriptor for all calls that greenlets wait for."""

    def wait(self, call: _Call, cancel: CancelHandle | None) -> bool:
        """Wait for the call, and return whether it ended before the handle was cancelled."""
        number, ended = next(self._numbers), self._event()
        self._ended[number] = ended.set
        if len(self._ended) == 1:
            self._listen()
        try:
            call.notify(self.completions, number)
            while not ended.wait(None if cancel is None else _LOOK_S):
                if cancel is not None and cancel.cancelled:
                    call.cancel()
                    return False
        except BaseException:
            call.cancel()
            raise
        finally:
            self._ended.pop(number, None)
            if not self._ended:
                self._ignore()
        call.result()
        return True

    def sleep(self, seconds: float) -> None:
        """Let other greenlets run."""
        raise NotImplementedError

    def _event(self) -> Any:
        raise NotImplementedError

    def _listen(self) -> None:
        raise NotImplementedError

    def _ignore(self) -> None:
        raise NotImplementedError


class _Gevent(Hub):
    def __init__(self, hub: Any) -> None:
        super().__init__()
        self._watcher = hub.loop.io(self.completions.fileno(), 1)

    def sleep(self, seconds: float) -> None:
        sys.modules["gevent"].sleep(seconds)

    def _event(self) -> Any:
        return import_module("gevent.event").Event()

    def _listen(self) -> None:
        self._watcher.start(self.dispatch)

    def _ignore(self) -> None:
        self._watcher.stop()


class _EventletEvent:
    def __init__(self) -> None:
        self._event = import_module("eventlet.event").Event()

    def set(self) -> None:
        self._event.send(True)

    def wait(self, timeout: float | None) -> bool:
        return self._event.wait(timeout) is not None


class _Eventlet(Hub):
    def __init__(self, hub: Any) -> None:
        super().__init__()
        self._hub: Any = weakref.ref(hub)
        self._listener: Any = None

    def sleep(self, seconds: float) -> None:
        sys.modules["eventlet"].sleep(seconds)

    def _event(self) -> Any:
        return _EventletEvent()

    def _listen(self) -> None:
        hub = self._hub()
        fd, nothing = self.completions.fileno(), lambda *_: None
        self._listener = hub.add(hub.READ, fd, lambda _: self.dispatch(), nothing, nothing)

    def _ignore(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            self._hub().remove(listener)


_hubs: weakref.WeakKeyDictionary[Any, Hub] = weakref.WeakKeyDictionary()
# A child made by fork shares the descriptors with its parent.
os.register_at_fork(after_in_child=_hubs.clear)
_numbers = itertools.count(1)


def _library() -> str | None:
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("threading"):
        return "gevent"
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and patcher.is_monkey_patched("thread"):
        return "eventlet"
    return None


def current_hub() -> Hub | None:
    """Return the hub that runs other greenlets while this one waits; None if there is none."""
    library = _library()
    if library is None:
        return None
    if library == "gevent":
        itself = hub = import_module("gevent").get_hub()
    else:
        hub = import_module("eventlet.hubs").get_hub()
        itself = hub.greenlet
    if _greenlet() is itself:
        return None
    known = _hubs.get(hub)
    if known is None:
        known = _hubs[hub] = _Gevent(hub) if library == "gevent" else _Eventlet(hub)
    return known


def greenlet() -> int | None:
    """Return the number of the current greenlet, which is never used again."""
    if _library() is None:
        return None
    number: int = _greenlet().__dict__.setdefault("_memlock_number", next(_numbers))
    return number


def _greenlet() -> Any:
    return sys.modules["greenlet"].getcurrent()
