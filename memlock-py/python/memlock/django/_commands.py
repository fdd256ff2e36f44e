"""Management commands of Django that hold a lock."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable, TypeVar, cast

from django.core.management.base import (  # type: ignore[import-untyped, unused-ignore]
    BaseCommand,
    CommandError,
)

from memlock._guard import call_locked
from memlock._locked_calls import Locks
from memlock._memlock import LockLost, TimedOut
from memlock.django._transactions import held_until_commit

if TYPE_CHECKING:
    from memlock._locked_calls import AnyClient, Duration

_Class = TypeVar("_Class", bound=type)

# Those of the command `memlock run`.
_BUSY = 75
_LOST = 79


def lock_command(
    client: AnyClient,
    name: str | bytes,
    *,
    lease: Duration = 60,
    timeout: Duration | None = 0,
    max_hold: Duration | None = None,
    busy_status: int = _BUSY,
) -> Callable[[_Class], _Class]:
    """Make a decorator of a command's class: it runs once at a time, on all hosts.

        @lock_command(client, "nightly-report")
        class Command(BaseCommand):
            def handle(self, *args, **options): ...

    If another holder has the lock `name` for `timeout` seconds (0: one attempt; None: no limit),
    the command ends with the exit status 75 and a message that names the lock and its holder; with
    busy_status=0 it ends so without a failure. call_command() raises the CommandError, or returns
    None with busy_status=0.

    The lease, in seconds, is renewed while the command runs, for at most `max_hold` seconds. If the
    process is killed, the lock ends with its lease. The command's `mutex` is the lock: a long
    command checks `self.mutex.lost`, and presents `self.mutex.fence`. If the lock was lost, the
    command runs to its end and then fails with the exit status 79: another one may have run
    meanwhile.

    Without a server the command is not run and Unreachable is raised; a server that goes away later
    is only logged. Raises Invalid for durations out of range, and TypeError for another class.
    """
    locks = Locks(client, name, lease, timeout, max_hold)

    def decorate(command: _Class) -> _Class:
        if not (isinstance(command, type) and issubclass(command, BaseCommand)):
            raise TypeError(f"lock_command() decorates a subclass of BaseCommand, not {command!r}")
        execute = cast("Any", command).execute

        @functools.wraps(execute)
        def locked(self: Any, *arguments: Any, **options: Any) -> Any:
            def busy(error: TimedOut) -> None:
                if busy_status != 0:
                    raise CommandError(str(error), returncode=busy_status) from error
                (options.get("stderr") or self.stderr).write(f"{error}\n")

            self.mutex = locks.mutex(name)
            lock = held_until_commit(self.mutex)
            try:
                return call_locked(lock, busy, "A lock", execute, self, *arguments, **options)
            except LockLost as error:
                raise CommandError(str(error), returncode=_LOST) from error

        command.execute = locked  # type: ignore[attr-defined]
        return command

    return decorate
