"""A release that is left to the end of a transaction: what the lock's object does meanwhile."""

from __future__ import annotations

import gc
import logging
import threading
import uuid
import weakref

import memlock
import pytest
from memlock._deferral import defer, release_all
from support import (
    PATIENCE,
    Make,
    Memcached,
    MemcachedText,
    answered,
    eventually,
    is_free,
    together,
)


def test_a_with_statement_leaves_the_lock_to_the_transaction(
    make: Make, client: memlock.Client, name: str
) -> None:
    with make() as held:
        release = defer(held)
        held.extend(60)
    # Its object still answers for it.
    assert held.is_held
    assert 30 < held.remaining <= 60
    assert not is_free(client, name)
    if not isinstance(held, memlock.Permit):
        with pytest.raises(memlock.NotHeld):
            held.release()
    for _ in range(2):
        release.release()
        assert is_free(client, name)
    assert (held.is_held, held.lost) == (False, None)
    # And it can be used again, as before.
    with make() if isinstance(held, memlock.Permit) else held:
        assert not is_free(client, name)
    assert is_free(client, name)


def test_a_transaction_may_end_before_the_with_statement(client: memlock.Client, name: str) -> None:
    limit = client.semaphore(name, 5)
    for lock in (client.mutex(name), limit):
        with lock:
            defer(lock).release()
            assert is_free(client, name)
            # The same object may acquire again inside.
            with lock:
                assert not is_free(client, name)
            assert is_free(client, name)
        with pytest.raises(memlock.NotHeld):
            lock.release()
    with limit.permit() as permit:
        defer(permit).release()
        with pytest.raises(memlock.NotHeld):
            defer(permit)
    permit.release()
    assert is_free(client, name)


def test_a_release_by_hand_is_left_to_the_transaction_once(
    make: Make, client: memlock.Client, name: str
) -> None:
    held = make()
    if not isinstance(held, memlock.Permit):
        assert held.acquire()
    release = defer(held)
    held.release()
    assert held.is_held
    assert not is_free(client, name)
    if not isinstance(held, memlock.Permit):
        for call in (held.release, lambda: defer(held)):
            with pytest.raises(memlock.NotHeld):
                call()
    release.release()
    assert is_free(client, name)


def test_nothing_held_cannot_be_deferred(client: memlock.Client, name: str) -> None:
    limit = client.semaphore(name, 1)
    permit = limit.permit()
    permit.release()
    for lock in (client.mutex(name), limit, permit):
        with pytest.raises(memlock.NotHeld):
            defer(lock)

    class Asynchronous:
        async def release(self) -> None: ...

    for lock, why in ((object(), "release"), (Asynchronous(), "coroutine")):
        with pytest.raises(TypeError, match=why):
            defer(lock)  # type: ignore[arg-type]


def test_the_last_of_several_transactions_releases(client: memlock.Client, name: str) -> None:
    with client.mutex(name) as mutex:
        first, second = defer(mutex), defer(mutex)
    first.release()
    first.release()
    assert not is_free(client, name)
    second.release()
    assert is_free(client, name)


def test_another_thread_that_acquires_by_the_same_object_keeps_its_lock(
    client: memlock.Client, name: str
) -> None:
    mutex = client.mutex(name)
    acquired, end = threading.Event(), threading.Event()

    def hold() -> None:
        with mutex:
            acquired.set()
            end.wait(PATIENCE)

    with mutex:
        release = defer(mutex)
        thread = threading.Thread(target=hold)
        thread.start()
        release.release()
        assert acquired.wait(PATIENCE)
    # This thread's `with` statement has ended, and the other's lock is held.
    assert not is_free(client, name)
    end.set()
    thread.join()
    assert is_free(client, name)


def test_the_object_may_go_before_the_transaction_ends(
    make: Make, client: memlock.Client, name: str
) -> None:
    def work() -> object:
        with make() as held:
            return defer(held)

    release = work()
    gc.collect()
    assert not is_free(client, name)
    # A transaction that is forgotten releases when it is deallocated.
    del release
    gc.collect()
    assert is_free(client, name)


def test_a_cycle_through_the_callbacks_is_collected(client: memlock.Client, name: str) -> None:
    class Transaction:
        release: object

        def lost(self, why: str) -> None: ...

    work = Transaction()
    with client.mutex(name, renew=True, on_lost=work.lost) as mutex:
        work.release = defer(mutex)
    weak = weakref.ref(mutex)
    del mutex
    gc.collect()
    assert not is_free(client, name)
    assert weak() is not None
    del work
    gc.collect()
    assert weak() is None
    assert is_free(client, name)


def test_renewal_goes_on_until_the_release(client: memlock.Client, name: str) -> None:
    mutex = client.mutex(name, lease=15, renew=True)
    with mutex:
        release = defer(mutex)
    # It rises with each renewal.
    left = [mutex.remaining]
    eventually(lambda: left.append(mutex.remaining) or left[-1] > left[-2] or mutex.lost)
    assert mutex.is_held
    release.release()
    assert is_free(client, name)


@pytest.mark.parametrize("renew", [False, True])
@pytest.mark.parametrize("ends_first", [False, True])
def test_a_loss_is_logged_and_known_and_not_raised(
    client: memlock.Client,
    plain: MemcachedText,
    name: str,
    caplog: pytest.LogCaptureFixture,
    *,
    renew: bool,
    ends_first: bool,
) -> None:
    losses: list[str] = []
    options = {"renew": True, "on_lost": losses.append} if renew else {}
    mutex = client.mutex(name, **options)
    with mutex:
        release = defer(mutex)
        assert plain.delete(f"lock:{name}")
        if ends_first:
            release.release()
            assert mutex.lost == "gone"
    release.release()
    assert (mutex.lost, mutex.remaining) == ("gone", 0)
    (record,) = [each for each in caplog.records if each.name == "memlock"]
    assert record.levelno == logging.WARNING
    assert "LockLost" in record.getMessage()
    assert name in record.getMessage()
    with mutex:
        assert mutex.lost is None


def test_a_stalled_server_frees_the_lock_at_the_next_contact(
    mortal_server: Memcached, name: str
) -> None:
    mutex = memlock.connect(f"{mortal_server.bare_url}?io_timeout=300ms").mutex(name, lease=300)
    answered(mutex.acquire)
    release = defer(mutex)
    mutex.release()
    with mortal_server.paused():
        release.release()
    assert answered(lambda: mutex.acquire(timeout=PATIENCE))


def test_acquisitions_of_a_semaphore_are_deferred_one_by_one(
    client: memlock.Client, name: str
) -> None:
    limit = client.semaphore(name, 3)
    with limit:
        outer = defer(limit)
        with limit:
            inner = defer(limit)
        inner.release()
        assert limit.available == 2
        assert limit.is_held, "the outer one"
    with limit:
        pass
    assert limit.available == 2
    outer.release()
    assert limit.acquire()
    assert limit.acquire()
    release = defer(limit)
    with pytest.raises(memlock.NotHeld):
        limit.release(3)
    limit.release(2)
    assert limit.available == 2
    release.release()
    assert limit.available == 3
    assert repr(limit).endswith("not held>")


def test_another_thread_releases_what_no_transaction_will(
    client: memlock.Client, name: str
) -> None:
    limit = client.semaphore(name, 2)
    assert limit.acquire()
    release = defer(limit)
    assert limit.acquire()
    together(limit.release, 1)
    assert limit.available == 1
    release.release()
    assert limit.available == 2


def test_acquisitions_that_are_never_released_by_hand_do_not_pile_up(name: str) -> None:
    client = memlock.connect(f"memory://{uuid.uuid4().hex}")
    limit, mutex = client.semaphore(name, 2), client.mutex(name)

    def work() -> None:
        for lock in (limit, mutex):
            assert lock.acquire()
            defer(lock).release()

    for _ in range(400):
        together(work, 1)
    work()
    assert limit.available == 2
    for lock in (limit, mutex):
        with lock:
            pass
    assert limit.available == 2
    assert not mutex.locked()


def test_other_locks_and_interruptions(
    client: memlock.Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    lock = threading.Lock()
    assert lock.acquire()
    release = defer(lock)
    release.release()
    assert not lock.locked()
    assert lock.acquire()
    release.release()
    assert lock.locked()
    release = defer(lock)
    lock.release()
    release.release()
    assert "RuntimeError" in caplog.text

    class Interrupted:
        def release(self) -> None:
            raise KeyboardInterrupt

    # It keeps no other one from being released.
    with client.mutex(name) as mutex:
        releases = [defer(mutex), defer(Interrupted())]
    with pytest.raises(KeyboardInterrupt):
        release_all(releases)
    assert is_free(client, name)
    assert not releases
