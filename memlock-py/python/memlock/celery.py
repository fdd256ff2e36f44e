"""Tasks of Celery that hold a lock.

    from memlock.celery import lock_task

    @app.task
    @lock_task(client, "import:{customer_id}")
    def import_orders(customer_id): ...

Requires Celery 5.3 or later: `pip install memlock[celery]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Literal, TypeVar, cast

from celery import Task, current_task  # type: ignore[import-untyped, unused-ignore]

from memlock._guard import log_skipped
from memlock._locked_calls import Locks

if TYPE_CHECKING:
    from memlock._lock_name import NameOf
    from memlock._locked_calls import AnyClient, Duration
    from memlock._memlock import TimedOut

__all__ = ["lock_task"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def lock_task(
    client: AnyClient,
    name: NameOf,
    *,
    lease: Duration = 60,
    timeout: Duration = 0,
    max_hold: Duration | None = None,
    busy: Literal["retry", "skip"] = "retry",
    countdown: float = 10,
) -> Callable[[_Function], _Function]:
    """Make a decorator of a task's function: one call with the same lock runs at a time.

    Write it below the decorator that makes the task. `name` has the parameters of the function in
    braces, whose values are str, int, UUID, dates or enums; or it is a function that gets the
    arguments of the call and returns the name. Tasks that are bound get themselves, too.

    If another holder has the lock for `timeout` seconds (0: one attempt), during which this worker
    waits, then with busy="retry" the task is sent to the queue again, to be run after `countdown`
    seconds. That does not count as one of its retries, and goes on until the task's `expires`;
    tasks that wait so are run in no particular order. With busy="skip" the task ends as if it had
    returned None, and that is logged as INFO of the logger "memlock". A task that is called
    directly, or eagerly by apply(), cannot be sent again: it raises TimedOut.

    The lease, in seconds, is renewed while the function runs, for at most `max_hold` seconds. It
    ends by itself when the worker process is killed, and not before: what acks_late and
    reject_on_worker_lost deliver again is busy for as long. A retry() of the function releases the
    lock.

    The task raises LockLost when the lock was lost while it ran: another one may have run
    meanwhile. Without a server it raises Unreachable, and the function is not called: use
    autoretry_for=(memlock.Unreachable,). A server that goes away later is only logged, and the lock
    ends with its lease. The client may be made before the worker forks. The pools prefork, solo and
    threads are supported; gevent and eventlet are not.

    Raises TypeError for a field that is no parameter of the function and for another `busy`, and
    Invalid for durations out of range.
    """
    if busy not in ("retry", "skip"):
        raise TypeError(f'busy must be "retry" or "skip", and not {busy!r}')
    locks = Locks(client, name, lease, timeout, max_hold)

    def decorate(function: _Function) -> _Function:
        if isinstance(function, Task):
            raise TypeError(
                f"lock_task() must be below the decorator that makes the task {function.name}: "
                "otherwise the worker calls the function without the lock."
            )

        def send_again(error: TimedOut) -> None:
            _send_again(locked, error, countdown)

        locked = locks.wrap(function, log_skipped(function) if busy == "skip" else send_again)
        return cast("_Function", locked)

    return decorate


def _send_again(function: Any, error: TimedOut, countdown: float) -> None:
    task = current_task._get_current_object() if current_task else None
    if task is None or task.request.called_directly or task.request.is_eager:
        raise error
    if not _runs(task, function):
        # It is another task that calls the function, and may have done a part of its work.
        raise error
    request = task.request
    retries = request.retries
    # retry() counts one more. This one is no failure of the task.
    request.retries = retries - 1
    try:
        task.retry(exc=error, countdown=countdown)
    finally:
        request.retries = retries


def _runs(task: Any, function: Any) -> bool:
    """Whether this is the function of the task, perhaps inside of other decorators."""
    run = task.run
    while run is not None:
        if getattr(run, "__func__", run) is function:
            return True
        run = getattr(run, "__wrapped__", None)
    return False
