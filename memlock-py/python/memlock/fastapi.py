"""Locks that requests to FastAPI hold.

    from memlock.fastapi import lock

    OrderLock = lock(client, "order:{order_id}", order_id=int)

    @app.post("/orders/{order_id}/pay")
    async def pay(order_id: int, mutex: Annotated[memlock.aio.Mutex, OrderLock]): ...

Requires FastAPI 0.121.1 or later: `pip install memlock[fastapi]`.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Literal

from fastapi import Depends, HTTPException

from memlock._busy import busy_text, check_retry_after, log_refused
from memlock._lock_name import fields_of, fill
from memlock._locked_calls import AsyncHeld, Locks
from memlock._memlock import TimedOut
from memlock.aio._guard import Entered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import memlock.aio
    from memlock._lock_name import NameOf
    from memlock._locked_calls import AnyClient, Duration

__all__ = ["lock"]

_KIND = inspect.Parameter.KEYWORD_ONLY


def lock(
    client: AnyClient,
    name: NameOf,
    *,
    lease: Duration = 30,
    timeout: Duration | None = 0,
    max_hold: Duration | None = None,
    status: int = 423,
    retry_after: int = 1,
    scope: Literal["function", "request"] = "function",
    **types: Any,
) -> Any:
    """Make a dependency: each request holds a lock while it is handled.

        @app.delete("/reports/{day}", dependencies=[lock(client, "report:{day}", day=date)])
        def delete(day: date): ...

    `name` has parameters of the request in braces, and `types` tells the type of each, as the
    function that handles the request declares it: otherwise /orders/7 and /orders/07 would be two
    locks. Or `name` is a function with parameters of the request, a dependency itself, that returns
    the name. If another holder has the lock for `timeout` seconds (0: one attempt; None: no limit),
    the response has the `status`, 423 or 409, and asks to try again after `retry_after` seconds.

    The value of the dependency is the memlock.aio.Mutex. The lease, in seconds, is renewed for at
    most `max_hold` seconds. The lock is released when the function has returned or raised, or was
    cancelled, before the response is sent; with scope="request" after that, which a client can
    delay, and after background tasks. The loop is not blocked, and a handler that is a coroutine
    function is cancelled if the lock is lost. Dependencies are left in reverse order: name the lock
    before the one that commits.

    A request raises LockLost when the lock was lost meanwhile: another holder may have had it.
    Without a server it raises Unreachable, and nothing is handled; a server that goes away later is
    only logged, and the lock ends with its lease. A server that was just started may raise
    Recovering. Raises TypeError for a field without a type, and Invalid for durations out of range.
    """
    locks = Locks(client, name, lease, timeout, max_hold)
    check_retry_after(retry_after)

    async def dependency(**values: Any) -> AsyncIterator[memlock.aio.Mutex]:
        own = fill(name, values, "a request") if isinstance(name, str) else values["name"]
        held = AsyncHeld(locks.aio_mutex(own))
        try:
            mutex = await held.__aenter__()
        except TimedOut as error:
            log_refused(error)
            headers = {"Retry-After": str(retry_after)}
            raise HTTPException(status, busy_text, headers) from None
        async with Entered(held):
            yield mutex

    dependency.__signature__ = _signature(name, types)  # type: ignore[attr-defined]
    return Depends(dependency, scope=scope)


def _signature(name: NameOf, types: dict[str, Any]) -> inspect.Signature:
    """Tell FastAPI which parameters of the request the name is made of."""
    if not isinstance(name, str):
        if types:
            raise TypeError("a function that returns the name has its types in its signature")
        return inspect.Signature([inspect.Parameter("name", _KIND, default=Depends(name))])
    fields = list(dict.fromkeys(fields_of(name)))
    missing = [field for field in fields if field not in types]
    if missing:
        raise TypeError(
            f'The name of the lock "{name}" has the field "{missing[0]}": pass its type, as the '
            f"function that handles the request declares it, such as {missing[0]}=int."
        )
    unused = [field for field in types if field not in fields]
    if unused:
        raise TypeError(f'The name of the lock "{name}" has no field "{unused[0]}".')
    return inspect.Signature(
        [inspect.Parameter(field, _KIND, annotation=types[field]) for field in fields]
    )
