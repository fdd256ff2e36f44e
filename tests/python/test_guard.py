"""``guard=``: what is held survives the end of its server, and nothing new is granted meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import memlock
import pytest
from support import PATIENCE, Memcached, eventually, run

GUARD = 5.0


def url(server: Memcached) -> str:
    return f"{server.url}?guard=5s"


def key(server: Memcached, name: str) -> bytes | None:
    with server.plain() as plain:
        return plain.get(name)


@pytest.fixture(scope="module")
def old_servers() -> Iterator[list[Memcached]]:
    """They age together, so that the tests wait but once for the end of the first guard."""
    servers = [Memcached() for _ in range(5)]
    yield servers
    for server in servers:
        server.close()


@pytest.fixture
def old_server(old_servers: list[Memcached]) -> Iterator[Memcached]:
    """A server of the test's own that was not started just now."""
    server = old_servers.pop() if old_servers else Memcached()
    yield server
    server.close()


def test_a_held_lock_survives_the_end_of_its_server(old_server: Memcached) -> None:
    client, other = memlock.connect(url(old_server)), memlock.connect(url(old_server))
    mutex = client.mutex("m", lease=GUARD)
    for put_back in ("extend", "check"):
        assert mutex.acquire(timeout=PATIENCE)
        fence = mutex.fence
        mutex.extend(GUARD)
        began = time.monotonic()
        old_server.restart()
        assert key(old_server, "lock:m") is None
        if put_back == "extend":
            mutex.extend(GUARD)
        else:
            assert mutex.check()
        assert key(old_server, "lock:m") is not None
        assert mutex.fence == fence
        with pytest.raises(memlock.Recovering):
            other.mutex("m", lease=GUARD).acquire(blocking=False)
        assert time.monotonic() - began < GUARD
        mutex.release()
        assert key(old_server, "lock:m") is None
        with other.mutex("m", lease=GUARD) as granted:
            assert time.monotonic() - began >= GUARD
            assert granted.fence is not None
            assert fence is not None
            assert granted.fence > fence


def test_a_renewed_lock_is_kept_across_a_restart_and_on_lost_is_not_called(
    old_server: Memcached,
) -> None:
    client = memlock.connect(url(old_server))
    lost: list[object] = []
    mutex = client.mutex("m", lease=GUARD, renew=True, on_lost=lost.append)
    assert mutex.acquire(timeout=PATIENCE)
    for _ in range(2):
        old_server.restart()
        eventually(lambda: key(old_server, "lock:m"), GUARD)
    # For longer than a lease.
    time.sleep(GUARD + 1)
    assert mutex.check()
    mutex.release()
    assert lost == []


def test_permits_survive_too(old_server: Memcached) -> None:
    clients = [memlock.connect(url(old_server)) for _ in range(2)]
    semaphores = [client.semaphore("s", 3, lease=GUARD) for client in clients]
    permits = [semaphore.permit(timeout=PATIENCE) for semaphore in semaphores]
    for permit in permits:
        permit.extend(GUARD)
    began = time.monotonic()
    old_server.restart()
    unknown = memlock.connect(url(old_server)).semaphore("s", lease=GUARD)
    # Not that there is none: its holders may put it back.
    with pytest.raises(memlock.Recovering):
        unknown.acquire(blocking=False)
    permits[0].extend(GUARD)
    assert permits[1].check()
    record = key(old_server, "semaphore:s")
    assert record is not None
    assert len(record.splitlines()) == 3
    with pytest.raises(memlock.Recovering):
        unknown.acquire(blocking=False)
    assert time.monotonic() - began < GUARD
    for permit in permits:
        permit.release()
    assert unknown.acquire(timeout=PATIENCE)
    assert time.monotonic() - began >= GUARD
    unknown.release()


def test_a_lock_whose_lease_ended_is_lost(old_server: Memcached) -> None:
    mutex = memlock.connect(url(old_server)).mutex("m", lease=GUARD)
    assert mutex.acquire(timeout=PATIENCE)
    mutex.extend(2)
    old_server.restart()
    eventually(lambda: mutex.remaining == 0)
    assert not mutex.check()
    with pytest.raises(memlock.LockLost):
        mutex.extend(GUARD)
    assert key(old_server, "lock:m") is None


def test_a_try_raises_with_the_times_and_a_wait_waits(mortal_server: Memcached) -> None:
    client = memlock.connect(url(mortal_server))
    mutex = client.mutex("m", lease=GUARD)
    with pytest.raises(memlock.Recovering, match=r"was started .* ago.* in [1-6] s") as refusal:
        mutex.acquire(blocking=False)
    assert f"127.0.0.1:{mortal_server.port}" in str(refusal.value)
    assert isinstance(refusal.value, memlock.Error)
    assert not isinstance(refusal.value, TimeoutError)
    assert not mutex.acquire(timeout=0.2)
    assert mutex.acquire(timeout=PATIENCE)
    mutex.release()


def test_a_wait_during_the_recovery_is_cancelled_at_once(mortal_server: Memcached) -> None:
    client = memlock.connect(url(mortal_server))
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            client.mutex("m", lease=GUARD).acquire()
        except memlock.Interrupted as interrupted:
            ended.append(interrupted)

    waiter = threading.Thread(target=wait)
    waiter.start()
    eventually(lambda: key(mortal_server, "lock:m%wait"))
    client.cancel_waits()
    waiter.join(PATIENCE)
    assert len(ended) == 1


def test_leases_and_guards_that_do_not_fit_are_refused(old_server: Memcached) -> None:
    client = memlock.connect(url(old_server))
    for refuse in (
        lambda: client.mutex("m", lease=GUARD + 1),
        lambda: client.semaphore("s", 2, lease=GUARD + 1),
    ):
        with pytest.raises(memlock.Invalid, match=r"6 s .*5 s"):
            refuse()
    mutex = client.mutex("m", lease=GUARD)
    assert mutex.acquire(timeout=PATIENCE)
    with pytest.raises(memlock.Invalid, match="guard of 5 s"):
        mutex.extend(GUARD + 1)
    mutex.release()
    for parameters, says in (("", "no guard="), ("?guard=9s", "guard=9s")):
        another = memlock.connect(old_server.url + parameters).mutex("m", lease=1)
        with pytest.raises(memlock.ConfigError, match="guard=5s") as refusal:
            another.acquire(blocking=False)
        assert says in str(refusal.value)
    for bad in ("0", "500ms", "x", "2h"):
        with pytest.raises(memlock.ConfigError, match="guard"):
            memlock.connect(f"memcached://h?guard={bad}")


BARE = """
import sys
import memlock

memlock.init(sys.argv[1])
for call in (lambda: memlock.mutex_lock_nonblock("m", 1), lambda: memlock.mutex_lock("m", 6)):
    try:
        print(call())
    except memlock.Error as error:
        print(type(error).__name__, error.code)
print(memlock.mutex_lock("m", 5), memlock.mutex_unlock("m"))
"""


def test_the_bare_functions_heed_the_guard(mortal_server: Memcached) -> None:
    answers = run(BARE, url(mortal_server))
    assert answers == ["Recovering 9", "Invalid -1", "True True"]
