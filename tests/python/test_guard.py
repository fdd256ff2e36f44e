"""``guard=``: what is held survives the end of its server, and nothing new is granted meanwhile."""

from __future__ import annotations

import threading

import memlock
import pytest
from support import PATIENCE, Memcached, eventually, run, safe

# Of tests that never reach its end.
LONG = "io_timeout=20s&guard=3600s&evictions=allow"
# Of one that does; the leases are as long, and outlast a restart, also on a busy machine.
GUARD = 30.0
SHORT = "io_timeout=20s&guard=30s&evictions=allow"


def connect(server: Memcached, parameters: str) -> memlock.Client:
    return memlock.connect(f"{server.bare_url}?{parameters}")


def key(server: Memcached, name: str) -> bytes | None:
    with server.plain() as plain:
        return plain.get(name)


def test_what_is_held_survives_the_end_of_its_server(mortal_server: Memcached) -> None:
    client, other = connect(mortal_server, SHORT), connect(mortal_server, SHORT)
    lost: list[object] = []
    mutex = client.mutex("m", lease=GUARD)
    renewed = client.mutex("renewed", lease=GUARD, renew=True, on_lost=lost.append)
    permit = client.semaphore("s", 3, lease=GUARD).permit(timeout=PATIENCE)
    assert mutex.acquire(timeout=PATIENCE)
    assert renewed.acquire(timeout=PATIENCE)
    fence = mutex.fence
    assert fence is not None
    mutex.extend(GUARD)
    permit.extend(GUARD)
    mortal_server.kill()
    mortal_server.start()
    mutex.extend(GUARD)
    assert permit.check()
    assert renewed.check()
    assert key(mortal_server, "lock:m") is not None
    assert mutex.fence == fence
    theirs = other.mutex("m", lease=GUARD)
    try:
        safe(not theirs.acquire(blocking=False), "held twice")
    except memlock.Recovering as recovering:
        assert "was started" in str(recovering)
    mutex.release()
    permit.release()
    assert theirs.acquire(timeout=PATIENCE)
    assert theirs.fence is not None
    assert theirs.fence > fence
    theirs.release()
    # For longer than a lease.
    assert renewed.check()
    renewed.release()
    assert lost == []


def test_a_try_raises_with_the_times_and_a_wait_waits(mortal_server: Memcached) -> None:
    client = connect(mortal_server, LONG)
    mutex = client.mutex("m")
    with pytest.raises(memlock.Recovering, match=r"was started .* ago.* in \d+ ") as refusal:
        mutex.acquire(blocking=False)
    assert f"127.0.0.1:{mortal_server.port}" in str(refusal.value)
    assert isinstance(refusal.value, memlock.Error)
    assert not isinstance(refusal.value, TimeoutError)
    assert not mutex.acquire(timeout=0.2)
    # Not that there is no such semaphore: its holders may put it back.
    with pytest.raises(memlock.Recovering):
        client.semaphore("s").acquire(blocking=False)
    with pytest.raises(memlock.Recovering):
        client.semaphore("s", 3).acquire(blocking=False)


def test_a_wait_during_the_recovery_can_be_cancelled(mortal_server: Memcached) -> None:
    client = connect(mortal_server, LONG)
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            client.mutex("m").acquire()
        except memlock.Interrupted as interrupted:
            ended.append(interrupted)

    waiter = threading.Thread(target=wait)
    waiter.start()
    eventually(lambda: key(mortal_server, "lock:m%wait"))
    client.cancel_waits()
    waiter.join(PATIENCE)
    assert len(ended) == 1


def test_leases_and_guards_that_do_not_fit_are_refused(mortal_server: Memcached) -> None:
    client = connect(mortal_server, LONG)
    for refuse in (
        lambda: client.mutex("m", lease=3601),
        lambda: client.semaphore("s", 2, lease=3601),
    ):
        with pytest.raises(memlock.Invalid, match="guard of 60 min"):
            refuse()
    assert not client.mutex("m").locked()
    for parameters, says in (("", "no guard="), ("guard=9s", "guard=9s")):
        another = connect(mortal_server, f"io_timeout=20s&{parameters}").mutex("m", lease=1)
        with pytest.raises(memlock.ConfigError, match="guard=3600s") as refusal:
            another.acquire(blocking=False)
        assert says in str(refusal.value)
    for bad in ("0", "500ms", "x", "2h"):
        with pytest.raises(memlock.ConfigError, match="guard"):
            memlock.connect(f"memcached://h?guard={bad}")


BARE = """
import sys
import memlock

memlock.init(sys.argv[1])
for call in (lambda: memlock.mutex_lock_nonblock("m", 1), lambda: memlock.mutex_lock("m", 3601)):
    try:
        print(call())
    except memlock.Error as error:
        print(type(error).__name__, error.code)
"""


def test_the_bare_functions_heed_the_guard(mortal_server: Memcached) -> None:
    answers = run(BARE, f"{mortal_server.bare_url}?{LONG}")
    assert answers == ["Recovering 9", "Invalid -1"]
