"""``quorum=majority``: a lock on three servers, of which any one may be killed or started anew."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import memlock
import pytest
from support import PATIENCE, Memcached, eventually, run

GUARD = 4.0


class Members:
    """Three memcacheds as a quorum wants them: without evictions, and without flush_all."""

    def __init__(self) -> None:
        self.servers = [Memcached() for _ in range(3)]
        for server in self.servers:
            server.restart("-M", "-F")
        addresses = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        self.url = f"memcached://{addresses}?quorum=majority&guard=4s"

    def settle(self) -> None:
        """The guard of all has ended, for every client."""
        for server in self.servers:

            def is_old(server: Memcached = server) -> bool:
                with server.plain() as plain:
                    return int(plain.stats()["uptime"]) >= GUARD + 4

            eventually(is_old, 60)

    def restart(self, place: int) -> None:
        self.servers[place].restart("-M", "-F")

    def hold_on_all(self, mutex: memlock.Mutex, name: str) -> None:
        """With the votes of all servers: on a busy machine one may answer too late."""

        def votes(server: Memcached) -> bool:
            with server.plain() as plain:
                return plain.get(f"lock:{name}") is not None

        def is_held_on_all() -> bool:
            assert mutex.acquire(timeout=60)
            if all(votes(server) for server in self.servers):
                return True
            mutex.release()
            return False

        eventually(is_held_on_all, 60)


@pytest.fixture
def members() -> Iterator[Members]:
    members = Members()
    members.settle()
    yield members
    for server in members.servers:
        server.close()


def is_not_given(members: Members, name: str) -> bool:
    """It is held, or a majority was started anew a moment ago and gives nothing yet."""
    try:
        return not memlock.connect(members.url).mutex(name, lease=GUARD).acquire(blocking=False)
    except memlock.Recovering:
        return True


def test_a_lock_is_taken_extended_and_released_without_one_of_three(members: Members) -> None:
    mutex = memlock.connect(members.url).mutex("m", lease=GUARD)
    last = 0
    for place, server in enumerate(members.servers):
        server.kill()
        assert mutex.acquire(timeout=60)
        mutex.extend(GUARD)
        assert mutex.check()
        assert is_not_given(members, "m")
        assert mutex.fence is not None
        assert mutex.fence > last
        last = mutex.fence
        members.restart(place)
        mutex.extend(GUARD)
        mutex.release()
    with memlock.connect(members.url).mutex("m", lease=GUARD) as granted:
        assert granted.fence is not None
        assert granted.fence > last


def test_a_renewed_lock_is_kept_over_the_end_of_each_server(members: Members) -> None:
    lost: list[object] = []
    client = memlock.connect(members.url)
    with client.mutex("m", lease=GUARD, renew=True, on_lost=lost.append) as mutex:
        for place in range(3):
            members.restart(place)
            assert is_not_given(members, "m")
            # For longer than half a lease, so that it is renewed.
            assert not memlock.connect(members.url).mutex("m", lease=GUARD).acquire(timeout=2.5)
            assert mutex.check()
    assert lost == []


def test_a_waiter_gets_the_lock_though_a_server_was_killed(members: Members) -> None:
    client = memlock.connect(members.url)
    granted: list[int | None] = []

    def wait() -> None:
        with memlock.connect(members.url).mutex("m", lease=GUARD) as mutex:
            granted.append(mutex.fence)

    mutex = client.mutex("m", lease=GUARD)
    members.hold_on_all(mutex, "m")
    fence = mutex.fence
    waiter = threading.Thread(target=wait)
    waiter.start()

    def is_waiting() -> bool:
        for server in members.servers:
            with server.plain() as plain:
                if plain.queue("m"):
                    return True
        return False

    eventually(is_waiting)
    members.servers[1].kill()
    mutex.release()
    waiter.join(PATIENCE)
    assert len(granted) == 1
    assert granted[0] is not None
    assert fence is not None
    assert granted[0] > fence


def test_without_a_majority_an_error_names_the_servers(members: Members) -> None:
    mutex = memlock.connect(members.url).mutex("m", lease=GUARD)
    assert mutex.acquire(blocking=False)
    mutex.release()
    for server in members.servers[:2]:
        server.kill()
    with pytest.raises((memlock.Unreachable, memlock.OutcomeUnknown)) as failure:
        mutex.acquire(blocking=False)
    for server in members.servers:
        assert f"127.0.0.1:{server.port}" in str(failure.value)


def test_what_a_quorum_has_not_is_refused() -> None:
    client = memlock.connect("memcached://a,b,c?quorum=majority&guard=60s")
    for refuse in (
        lambda: client.semaphore("s", 2, lease=GUARD),
        lambda: client.distinct_list("l", 60),
        lambda: client.counter("c"),
    ):
        with pytest.raises(memlock.ConfigError, match="postgresql://"):
            refuse()
    for bad in ("a,b?quorum=majority&guard=60s", "a,b,c?quorum=majority", "a,b,c?quorum=2"):
        with pytest.raises(memlock.ConfigError):
            memlock.connect(f"memcached://{bad}")


BARE = """
import memlock

print(memlock.mutex_lock("m", 4), memlock.mutex_lock_nonblock("m", 4), memlock.mutex_unlock("m"))
"""


def test_the_bare_functions_work_without_one_of_three(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMLOCK_URL", members.url)
    for place, server in enumerate(members.servers):
        server.kill()
        assert run(BARE) == ["True False True"]
        members.restart(place)
        members.settle()
