"""The calls of an event loop or a hub that have ended.

It has one descriptor for all its calls. A thread of the client that has carried out a call adds the
call's number to a queue, and the descriptor becomes readable. So no other thread ever calls into a
loop, which may be closed by then.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from types import SimpleNamespace
from typing import Callable

from memlock._memlock import _Completions


class EndedCalls:
    """Those of one loop. It is of one thread, except where that is said."""

    def __init__(self) -> None:
        self.completions = _Completions()
        self._numbers = itertools.count()
        # What is called when the call of this number has ended, or each time the number is added.
        # They keep nothing alive: that is for the tasks, and for what is held.
        self._ended: dict[int, Callable[[], object]] = {}
        self._subscribers: dict[int, weakref.WeakMethod[Callable[[], object]]] = {}

    def dispatch(self) -> None:
        """Call what waits for the calls that have ended."""
        for number in self.completions.take():
            called = self._ended.pop(number, None)
            if called is None and number in self._subscribers:
                called = self._subscribers[number]()
            try:
                if called is not None:
                    called()
            except Exception as error:
                report(error, called)

    def subscribe(self, called: Callable[[], object]) -> int:
        """Have a method called each time a thread adds the returned number to the completions."""
        number, subscribers = next(self._numbers), self._subscribers
        subscribers[number] = weakref.WeakMethod(called, lambda _: subscribers.pop(number, None))
        return number

    def unsubscribe(self, number: int) -> None:
        """Undo subscribe()."""
        self._subscribers.pop(number, None)


def report(error: BaseException, source: object) -> None:
    """Report an exception that nobody can catch."""
    sys.unraisablehook(
        SimpleNamespace(
            exc_type=type(error),
            exc_value=error,
            exc_traceback=error.__traceback__,
            err_msg=None,
            object=source,
        )
    )
