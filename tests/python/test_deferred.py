"""A release that is left to the end of a transaction: what the lock's object does meanwhile."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import threading
import uuid
import weakref

import memlock
import pytest
from memlock._deferral import defer, release_all
from support import Memcached, MemcachedText, eventually, run


def is_free(client: memlock.Client, name: str) -> bool:
    return not client.mutex(name).locked()


def test_a_with_statement_leaves_the_lock_to_the_transaction(
    any_client: memlock.Client, name: str
) -> None:
    mutex = any_client.mutex(name)
    with mutex:
        fence = mutex.fence
        release = defer(mutex)
        assert mutex.is_held
        mutex.extend(60)
    # Its object still answers for it.
    assert mutex.fence == fence
    assert mutex.remaining > 50
    assert not is_free(any_client, name)
    with pytest.raises(memlock.NotHeld):
        mutex.release()
    release.release()
    assert is_free(any_client, name)
    assert not mutex.is_held
    assert mutex.lost is None
    release.release()
    with pytest.raises(memlock.NotHeld):
        mutex.release()
    # And it can be used again, as before.
    with mutex:
        assert not is_free(any_client, name)
    assert is_free(any_client, name)


def test_a_transaction_may_end_before_the_with_statement(
    any_client: memlock.Client, name: str
) -> None:
    mutex = any_client.mutex(name)
    with mutex:
        defer(mutex).release()
        assert is_free(any_client, name)
        # The same object may acquire again inside.
        with mutex:
            assert not is_free(any_client, name)
        assert is_free(any_client, name)
    assert mutex.acquire()
    try:
        defer(mutex).release()
        with mutex:
            pass
        assert mutex.acquire()
        defer(mutex).release()
    finally:
        mutex.release()
    with pytest.raises(memlock.NotHeld):
        mutex.release()


def test_a_release_by_hand_is_left_to_the_transaction_once(
    any_client: memlock.Client, name: str
) -> None:
    mutex = any_client.mutex(name)
    assert mutex.acquire()
    release = defer(mutex)
    mutex.release()
    assert not is_free(any_client, name)
    with pytest.raises(memlock.NotHeld):
        mutex.release()
    with pytest.raises(memlock.NotHeld):
        defer(mutex)
    release.release()
    assert is_free(any_client, name)


def test_nothing_held_cannot_be_deferred(any_client: memlock.Client, name: str) -> None:
    limit = any_client.semaphore(name, 1)
    permit = limit.permit()
    permit.release()
    for lock in (any_client.mutex(name), limit, permit):
        with pytest.raises(memlock.NotHeld):
            defer(lock)
    with pytest.raises(TypeError, match="release"):
        defer(object())  # type: ignore[arg-type]

    class Asynchronous:
        async def release(self) -> None: ...

    with pytest.raises(TypeError, match="coroutine"):
        defer(Asynchronous())


def test_the_last_of_several_transactions_releases(any_client: memlock.Client, name: str) -> None:
    with any_client.mutex(name) as mutex:
        first, second = defer(mutex), defer(mutex)
    first.release()
    first.release()
    assert not is_free(any_client, name)
    second.release()
    assert is_free(any_client, name)


def test_another_thread_that_acquires_by_the_same_object_keeps_its_lock(
    any_client: memlock.Client, name: str
) -> None:
    mutex = any_client.mutex(name)
    acquired, end = threading.Event(), threading.Event()

    def hold() -> None:
        with mutex:
            acquired.set()
            end.wait(20)

    with mutex:
        release = defer(mutex)
        thread = threading.Thread(target=hold)
        thread.start()
        release.release()
        assert acquired.wait(20)
    # This thread's `with` statement has ended, and the other's lock is held.
    assert not is_free(any_client, name)
    end.set()
    thread.join()
    assert is_free(any_client, name)


def test_the_object_may_go_before_the_transaction_ends(
    any_client: memlock.Client, name: str
) -> None:
    def work() -> object:
        with any_client.mutex(name) as mutex:
            return defer(mutex)

    release = work()
    gc.collect()
    assert not is_free(any_client, name)
    # A transaction that is forgotten releases when it is deallocated.
    del release
    gc.collect()
    assert is_free(any_client, name)


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
    with client.mutex(name, lease=2, renew=True) as mutex:
        release = defer(mutex)
    fence = mutex.fence
    assert mutex.wait_lost(2.5) is None
    assert mutex.is_held
    assert mutex.fence == fence
    assert not is_free(client, name)
    release.release()
    assert is_free(client, name)


@pytest.mark.parametrize("case", list(itertools.product([False, True], repeat=2)))
def test_a_loss_is_logged_and_known_and_not_raised(
    client: memlock.Client,
    plain: MemcachedText,
    name: str,
    case: tuple[bool, bool],
    caplog: pytest.LogCaptureFixture,
) -> None:
    renew, ends_first = case
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
    assert mutex.lost == "gone"
    assert mutex.remaining == 0
    (record,) = [each for each in caplog.records if each.name == "memlock"]
    assert record.levelno == logging.WARNING
    assert "LockLost" in record.getMessage()
    assert name in record.getMessage()
    with mutex:
        assert mutex.lost is None


def test_a_server_that_is_gone_raises_nothing(
    mortal_server: Memcached, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = memlock.connect(mortal_server.url)
    mutex = client.mutex(name)
    permit = client.semaphore(name, 2).permit()
    with mutex, permit:
        releases = [defer(mutex), defer(permit)]
        mortal_server.kill()
    release_all(releases)
    messages = [each.getMessage() for each in caplog.records if each.name == "memlock"]
    assert len(messages) == 2
    assert all("after the end of the transaction" in message for message in messages)
    assert not mutex.is_held


def test_a_stalled_server_frees_the_lock_at_the_next_contact(
    mortal_server: Memcached, name: str
) -> None:
    client = memlock.connect(mortal_server.url)
    with client.mutex(name, lease=300) as mutex:
        release = defer(mutex)
    with mortal_server.paused():
        release.release()
    eventually(lambda: client.mutex(name).acquire(timeout=0.5))


def test_semaphores(any_client: memlock.Client, name: str) -> None:
    limit = any_client.semaphore(name, 3)
    with limit:
        release = defer(limit)
        with limit:
            assert limit.available == 1
            inner = defer(limit)
        inner.release()
        assert limit.available == 2
        # The outer one is still held.
        assert limit.is_held
    assert limit.available == 2
    with pytest.raises(memlock.NotHeld):
        limit.release()
    with limit:
        pass
    assert limit.available == 2
    release.release()
    assert limit.available == 3
    with limit:
        defer(limit).release()
        with limit:
            assert limit.available == 2
        assert limit.available == 3
    with pytest.raises(memlock.NotHeld):
        limit.release()


def test_several_acquisitions_of_a_semaphore_at_once(any_client: memlock.Client, name: str) -> None:
    limit = any_client.semaphore(name, 3)
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
    any_client: memlock.Client, name: str
) -> None:
    limit = any_client.semaphore(name, 2)
    assert limit.acquire()
    release = defer(limit)
    assert limit.acquire()
    thread = threading.Thread(target=limit.release)
    thread.start()
    thread.join()
    assert limit.available == 1
    release.release()
    assert limit.available == 2


def test_permits(any_client: memlock.Client, name: str) -> None:
    limit = any_client.semaphore(name, 1)
    with limit.permit() as permit:
        release = defer(permit)
    permit.release()
    assert permit.is_held
    del permit
    gc.collect()
    assert limit.available == 0
    release.release()
    assert limit.available == 1
    with limit.permit() as permit:
        defer(permit).release()
        with pytest.raises(memlock.NotHeld):
            defer(permit)
    permit.release()
    assert limit.available == 1


def test_acquisitions_that_are_never_released_by_hand_do_not_pile_up(name: str) -> None:
    client = memlock.connect(f"memory://{uuid.uuid4().hex}")
    limit, mutex = client.semaphore(name, 2), client.mutex(name)

    def work() -> None:
        for lock in (limit, mutex):
            assert lock.acquire()
            defer(lock).release()

    for _ in range(400):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    work()
    assert limit.available == 2
    for lock in (limit, mutex):
        with lock:
            pass
    assert limit.available == 2
    assert is_free(client, name)


def test_other_locks(caplog: pytest.LogCaptureFixture) -> None:
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


def test_an_interrupted_release_does_not_keep_the_others(
    any_client: memlock.Client, name: str
) -> None:
    class Interrupted:
        def release(self) -> None:
            raise KeyboardInterrupt

    with any_client.mutex(name) as mutex:
        releases = [defer(mutex), defer(Interrupted())]
    with pytest.raises(KeyboardInterrupt):
        release_all(releases)
    assert is_free(any_client, name)
    assert not releases


def test_a_forked_child_does_not_release(client: memlock.Client, name: str) -> None:
    with client.mutex(name) as mutex:
        release = defer(mutex)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                release.release()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
    assert not is_free(client, name)
    release.release()
    assert is_free(client, name)


AT_EXIT = """
import sys, memlock
from memlock._deferral import defer
client = memlock.connect(sys.argv[1])
limit = client.semaphore(sys.argv[2], 2)
with client.mutex(sys.argv[2]) as mutex, limit, limit.permit() as permit:
    sys.modules["kept"] = [defer(mutex), defer(limit), defer(permit)]
print("end")
"""


def test_exit_releases(server: Memcached, client: memlock.Client, name: str) -> None:
    assert run(AT_EXIT, server.url, name) == ["end"]
    assert is_free(client, name)
    assert client.semaphore(name, 2).available == 2
