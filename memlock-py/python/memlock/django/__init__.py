"""Locks in Django.

    from memlock.django import lock_command, lock_view, release_on_commit

    @lock_command(client, "nightly-report")
    class Command(BaseCommand): ...

    @lock_view(client, "order:{order_id}")
    def pay(request, order_id): ...

    with transaction.atomic():
        with client.mutex(f"account:{pk}") as mutex:
            release_on_commit(mutex)
            ...

Requires Django 4.2 or later: `pip install memlock[django]`.
"""

from memlock.django._commands import lock_command
from memlock.django._transactions import release_on_commit
from memlock.django._views import lock_view

__all__ = ["lock_command", "lock_view", "release_on_commit"]

for _public in (lock_command, lock_view, release_on_commit):
    _public.__module__ = "memlock.django"
