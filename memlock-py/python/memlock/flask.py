"""Views of Flask that hold a lock.

    from memlock.flask import lock_view

    @app.post("/orders/<int:order_id>/pay")
    @lock_view(client, "order:{order_id}")
    def pay(order_id): ...

Requires Flask 2.3 or later: `pip install memlock[flask]`.
"""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Callable, TypeVar, cast

from flask import Response

from memlock._busy import busy_text, check_retry_after, log_refused
from memlock._locked_calls import Locks

if TYPE_CHECKING:
    from memlock._lock_name import NameOf
    from memlock._locked_calls import AnyClient, Duration

__all__ = ["lock_view"]

_View = TypeVar("_View", bound=Callable[..., Any])


def lock_view(
    client: AnyClient,
    name: NameOf,
    *,
    lease: Duration = 30,
    timeout: Duration | None = 0,
    max_hold: Duration | None = None,
    status: int = 423,
    retry_after: int = 1,
) -> Callable[[_View], _View]:
    """Make a decorator of a view: each request holds a lock while the view runs.

    Write it below the route. `name` has the parameters of the view in braces, whose values are str,
    int, UUID, dates or enums; or it is a function that gets the arguments of the view and returns
    the name. If another holder has the lock for `timeout` seconds (0: one attempt; None: no limit),
    the response has the `status`, 423 or 409, and asks to try again after `retry_after` seconds;
    the view is not called.

    The lease, in seconds, is renewed while the view runs, for at most `max_hold` seconds. The lock
    is released when the view has returned or raised, and so before a streaming response is sent:
    commit in the view. A view that is a coroutine function is cancelled if the lock is lost.

    A request raises LockLost when the lock was lost meanwhile: another holder may have had it.
    Without a server it raises Unreachable, and the view is not called; a server that goes away
    later is only logged, and the lock ends with its lease. A server that was just started may raise
    Recovering. Raises TypeError for a field that is no parameter of the view, and Invalid for
    durations out of range.
    """
    locks = Locks(client, name, lease, timeout, max_hold)
    check_retry_after(retry_after)

    def decorate(view: _View) -> _View:
        def busy(error: Any) -> Response:
            log_refused(error)
            headers = {"Retry-After": str(retry_after)}
            return Response(busy_text, status=status, headers=headers, mimetype="text/plain")

        is_async = iscoroutinefunction(view)
        return cast("_View", locks.wrap(view, busy, is_coroutine_function=is_async))

    return decorate
