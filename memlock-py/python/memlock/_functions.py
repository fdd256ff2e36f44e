"""Which functions a decorator can run under a lock."""

from __future__ import annotations

import functools
import inspect
from typing import Any, NoReturn


def name_of(function: Any) -> str:
    """Return the name of a function, for messages."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{name}()"


def is_coroutine_function(function: Any) -> bool:
    """Whether a call of it returns a coroutine, as far as it tells."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 -- an object with async def __call__
    )


def check_function(subject: str, function: Any) -> None:
    """Raise TypeError for what would not run under the lock, or not be a method any more."""
    if isinstance(function, (staticmethod, classmethod)):
        kind = type(function).__name__
        _refuse(subject, f"a {kind}: write @{kind} above the decorator that holds the lock")
    if isinstance(function, type):
        _refuse(subject, f"the class {function.__qualname__}: decorate its methods")
    if not callable(function):
        _refuse(subject, f"a {type(function).__name__}, which is not a function")
    call = getattr(function, "__call__", None)  # noqa: B004
    for one in (function, call):
        if inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one):
            _refuse(
                subject,
                f"{name_of(function)}, a generator function: its body would run after the lock "
                "was released. Use a `with` statement in its body",
            )


def refuse_deferred(subject: str, function: Any, result: Any) -> None:
    """Raise TypeError for a result whose work would be done after the lock was released."""
    if inspect.iscoroutine(result):
        result.close()
        kind = "coroutine"
    elif inspect.isgenerator(result) or inspect.isasyncgen(result):
        kind = "generator"
    else:
        return
    raise TypeError(
        f"{subject}: {name_of(function)} returned a {kind}, which would run after the lock was "
        "released. Decorate the function that does the work."
    )


def _refuse(subject: str, what: str) -> NoReturn:
    raise TypeError(f"{subject} cannot hold its lock for {what}.")
