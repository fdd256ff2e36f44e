"""The mutex that a decorated call holds."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from memlock._memlock import NotHeld

if TYPE_CHECKING:
    from memlock._memlock import Mutex

# Set by the decorators, in the context of the call: of its thread, or of its task.
blocking: ContextVar[Any] = ContextVar("memlock.current_mutex")
asynchronous: ContextVar[Any] = ContextVar("memlock.aio.current_mutex")


def current_mutex() -> Mutex:
    """Return the mutex that this call holds, for its `fence`, `lost` and `remaining`.

    For functions that hold a lock by Mutex.guard, or by lock_view, lock_command or lock_task of
    memlock.django, memlock.flask and memlock.celery, and for what they call in their thread. The
    innermost one counts. Raises NotHeld, a RuntimeError, outside of such a call. Coroutine
    functions use memlock.aio.current_mutex(). No I/O.
    """
    mutex: Mutex = current(blocking)
    return mutex


def current(variable: ContextVar[Any]) -> Any:
    """Return the value of one of the variables, or raise NotHeld."""
    try:
        return variable.get()
    except LookupError:
        raise NotHeld(
            f"{variable.name}() was not called by a function that holds a lock by a decorator."
        ) from None
