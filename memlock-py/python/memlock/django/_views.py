"""Views of Django that hold a lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, TypeVar, cast

from asgiref.sync import iscoroutinefunction
from django.http import HttpResponse  # type: ignore[import-untyped, unused-ignore]

from memlock._busy import busy_text, check_retry_after, log_refused
from memlock._locked_calls import Locks
from memlock.django._transactions import held_until_commit

if TYPE_CHECKING:
    from memlock._lock_name import NameOf
    from memlock._locked_calls import AnyClient, Duration

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

        @lock_view(client, "order:{order_id}")
        def pay(request, order_id): ...

    `name` has the parameters of the view in braces, also attributes of them such as
    "{request.user.pk}", whose values are str, int, UUID, dates or enums; or it is a function that
    gets the arguments of the view and returns the name. If another holder has the lock for
    `timeout` seconds (0: one attempt; None: no limit), the response has the `status`, 423 or 409,
    and asks to try again after `retry_after` seconds; the view is not called.

    The lease, in seconds, is renewed while the view runs, for at most `max_hold` seconds. The lock
    is released when the view has returned or raised, before a streaming response is sent; in a
    transaction that is open around the view, such as that of ATOMIC_REQUESTS, after its COMMIT or
    ROLLBACK. A view that is a coroutine function does not block the event loop, and is cancelled if
    the lock is lost.

    A request raises LockLost when the lock was lost meanwhile: another holder may have had it.
    Without a server it raises Unreachable, and the view is not called; a server that goes away
    later is only logged, and the lock ends with its lease. A server that was just started may raise
    Recovering. Raises TypeError for a field that is no parameter of the view, and Invalid for
    durations out of range.
    """
    locks = Locks(client, name, lease, timeout, max_hold)
    check_retry_after(retry_after)

    def decorate(view: _View) -> _View:
        def busy(error: Any) -> HttpResponse:
            log_refused(error)
            headers = {"Retry-After": str(retry_after)}
            content = {"content": busy_text, "content_type": "text/plain"}
            return HttpResponse(**content, status=status, headers=headers)

        is_async = bool(iscoroutinefunction(view))
        locked = locks.wrap(view, busy, is_coroutine_function=is_async, hold=held_until_commit)
        return cast("_View", locked)

    return decorate
