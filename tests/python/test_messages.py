"""Every exception names what it is about, and the server that this is on."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import memlock
import pytest
from support import Memcached, run

Call = Callable[[memlock.Client, str], object]


HELD: list[Any] = []


def held(thing: Any) -> Any:
    """Keeps it alive until the test is over."""
    HELD.append(thing)
    thing.acquire()
    return thing


@pytest.fixture(autouse=True)
def let_go() -> Iterator[None]:
    yield
    HELD.clear()


def released(thing: Any) -> Any:
    held(thing).release()
    return thing


def leave(thing: Any) -> None:
    thing.__exit__(None, None, None)


def enter_taken(thing: Any, again: Any) -> None:
    with thing, again:
        raise AssertionError


def lost(client: memlock.Client, name: str, kind: str) -> Any:
    """A lock or a permit that was taken away."""
    if kind == "mutex":
        mutex = held(client.mutex(name))
        assert client.mutex(name).force_unlock(mutex.owner().token)
        return mutex
    semaphore = client.semaphore(name, 1)
    thing = held(semaphore) if kind == "semaphore" else semaphore.permit()
    assert semaphore.tear_down()
    return thing


def torn_down(client: memlock.Client, name: str) -> tuple[memlock.DistinctList, Iterator[str]]:
    keys = client.distinct_list(name, 60)
    keys.insert("key")
    walk = iter(keys)
    assert keys.tear_down()
    return keys, walk


def cancelled(client: memlock.Client) -> memlock.CancelHandle:
    handle = client.cancel_handle()
    handle.cancel()
    return handle


def closed(client: memlock.Client, make: Callable[[memlock.Client], Any]) -> Any:
    """Of a client of its own, which is closed then."""
    other = memlock.connect(repr(client).split('"')[1])
    made = make(other)
    other.close()
    return made


# On a server that works: what raises which exception.
RAISED: dict[type[memlock.Error], list[Call]] = {
    memlock.Invalid: [
        lambda c, n: c.mutex(n, lease=0),
        lambda c, n: c.semaphore(n, 1, lease=0),
        lambda c, n: c.semaphore(n, 0),
        lambda c, n: c.counter(n + " with a space"),
        lambda c, n: c.distinct_list(n, 0),
        lambda c, n: c.distinct_list(n, 60).insert(""),
        lambda c, n: c.semaphore(n, 1).release(0),
        lambda c, n: held(c.mutex(n)).extend(0.1),
        lambda c, n: held(c.mutex(n, renew=True)).extend(),
        lambda c, n: c.semaphore(n, 1).acquire(permits=2),
        lambda c, n: c.semaphore(n, 1).acquire(permits=0),
        lambda c, n: held(c.semaphore(n, 3)) and c.semaphore(n, 2).acquire(),
        lambda c, n: held(c.semaphore(n, 3)) and c.semaphore(n, 2).set_up(60),
    ],
    memlock.NotHeld: [
        lambda c, n: c.mutex(n).release(),
        lambda c, n: released(c.mutex(n)).release(),
        lambda c, n: c.mutex(n).extend(),
        lambda c, n: c.mutex(n).check(),
        lambda c, n: c.mutex(n).fence,
        lambda c, n: c.semaphore(n, 1).release(),
        lambda c, n: released(c.semaphore(n, 1)).release(),
        lambda c, n: c.semaphore(n, 1).extend(),
        lambda c, n: c.semaphore(n, 1).check(),
    ],
    memlock.LockLost: [
        lambda c, n: lost(c, n, "mutex").release(),
        lambda c, n: lost(c, n, "mutex").extend(),
        lambda c, n: leave(lost(c, n, "mutex")),
        lambda c, n: lost(c, n, "semaphore").release(),
        lambda c, n: lost(c, n, "semaphore").extend(),
        lambda c, n: leave(lost(c, n, "semaphore")),
        lambda c, n: lost(c, n, "permit").release(),
        lambda c, n: lost(c, n, "permit").extend(),
        lambda c, n: leave(lost(c, n, "permit")),
    ],
    memlock.TimedOut: [
        lambda c, n: enter_taken(c.mutex(n), c.mutex(n, timeout=0.01)),
        lambda c, n: enter_taken(c.semaphore(n, 1), c.semaphore(n, 1, timeout=0)),
        lambda c, n: held(c.semaphore(n, 1)) and c.semaphore(n, 1).permit(timeout=0),
    ],
    memlock.SemaphoreNotFound: [
        lambda c, n: c.semaphore(n).acquire(),
        lambda c, n: c.semaphore(n).permit(),
        lambda c, n: c.semaphore(n).available,
        lambda c, n: c.semaphore(n).set_up(60),
        lambda c, n: c.semaphore(n).resize(2),
    ],
    memlock.CounterNotFound: [
        lambda c, n: c.counter(n).try_acquire(),
        lambda c, n: c.counter(n).acquire(),
        lambda c, n: c.counter(n).acquire(priority=0),
        lambda c, n: c.counter(n).release(),
        lambda c, n: c.counter(n).available,
    ],
    memlock.SessionNotFound: [
        lambda c, n: torn_down(c, n)[0].insert("key"),
        lambda c, n: len(torn_down(c, n)[0]),
        lambda c, n: next(torn_down(c, n)[1]),
    ],
    memlock.Interrupted: [
        lambda c, n: c.mutex(n).acquire(cancel=cancelled(c)),
        lambda c, n: c.semaphore(n, 1).acquire(cancel=cancelled(c)),
        lambda c, n: c.counter(n).acquire(cancel=cancelled(c)),
    ],
    memlock.ClientClosed: [
        lambda c, n: closed(c, lambda c: c.mutex(n)).acquire(),
        lambda c, n: closed(c, lambda c: c.counter(n)).acquire(),
    ],
}


def test_a_with_statement_that_times_out_says_what_is_missing(
    client: memlock.Client, name: str
) -> None:
    held(client.mutex(name))
    with pytest.raises(memlock.TimedOut, match=r"Timed out after 120 ms waiting for the lock"):
        client.mutex(name, timeout=0.12).__enter__()
    with pytest.raises(memlock.TimedOut, match=r"is held by another holder"):
        client.mutex(name, timeout=0).__enter__()
    held(client.semaphore(name, 1))
    with pytest.raises(memlock.TimedOut, match=r"Timed out after 10 ms waiting for a permit"):
        client.semaphore(name, 1, timeout=0.01).__enter__()
    with pytest.raises(memlock.TimedOut, match=r"has 0 of 1 permits available"):
        client.semaphore(name, 1).permit(timeout=0)


def names(error: BaseException, name: str, server: str) -> None:
    assert name in str(error)
    assert server in str(error)


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("store", ["memcached", "memory"])
def test_an_exception_names_the_lock_and_the_server(
    server: Memcached, name: str, store: str, raised: type[memlock.Error]
) -> None:
    for number, use in enumerate(RAISED[raised]):
        unique = f"{name}-{number}"
        place = f"memory://{unique}" if store == "memory" else f"127.0.0.1:{server.port}"
        url = place if store == "memory" else f"memcached://{place}"
        with pytest.raises(raised) as caught:
            use(memlock.connect(url), unique)
        assert type(caught.value) is raised, number
        names(caught.value, unique, place)


# Of nothing that was acquired before the server died.
DEAD: list[Call] = [
    lambda c, n: c.mutex(n).acquire(),
    lambda c, n: c.mutex(n).__enter__(),
    lambda c, n: c.mutex(n).owner(),
    lambda c, n: c.mutex(n).locked(),
    lambda c, n: c.mutex(n).force_unlock("token"),
    lambda c, n: c.semaphore(n, 1).acquire(),
    lambda c, n: c.semaphore(n, 1).__enter__(),
    lambda c, n: c.semaphore(n, 1).permit(),
    lambda c, n: c.semaphore(n, 1).available,
    lambda c, n: c.semaphore(n, 1).holders(),
    lambda c, n: c.semaphore(n, 1).resize(2),
    lambda c, n: c.semaphore(n, 1).set_up(60),
    lambda c, n: c.semaphore(n, 1).tear_down(),
    lambda c, n: c.counter(n).set_up(1),
    lambda c, n: c.counter(n).try_acquire(),
    lambda c, n: c.counter(n).acquire(),
    lambda c, n: c.counter(n).acquire(priority=1),
    lambda c, n: c.counter(n).release(),
    lambda c, n: c.counter(n).available,
    lambda c, n: c.distinct_list(n, 60),
]


def test_an_unreachable_server_is_named(mortal_server: Memcached, name: str) -> None:
    mortal_server.kill()
    for use in DEAD:
        with pytest.raises(memlock.Unreachable) as caught:
            use(memlock.connect(mortal_server.url), name)
        names(caught.value, name, f"127.0.0.1:{mortal_server.port}")


@pytest.mark.parametrize("renew", [False, True], ids=["lease", "renewed"])
@pytest.mark.parametrize("call", ["release", "extend", "check", "__exit__"])
def test_a_server_that_died_is_named_for_what_is_held(
    mortal_server: Memcached, name: str, call: str, renew: bool
) -> None:
    client = memlock.connect(mortal_server.url)
    renew = renew and call != "extend"
    semaphore = client.semaphore(name, 2, renew=renew)
    things = [held(client.mutex(name, renew=renew)), held(semaphore), semaphore.permit()]
    keys = client.distinct_list(name, 60)
    # So that it is asked anew, and not on a connection that is known to be closed.
    time.sleep(0.2)
    mortal_server.kill()
    arguments = [None] * 3 if call == "__exit__" else []
    calls = [functools.partial(getattr(thing, call), *arguments) for thing in things]
    for use in [*calls, lambda: keys.insert("key"), lambda: len(keys), keys.tear_down]:
        with pytest.raises((memlock.Unreachable, memlock.OutcomeUnknown)) as caught:
            use()
        names(caught.value, name, f"127.0.0.1:{mortal_server.port}")


def test_a_counter_that_is_no_number_is_named(
    server: Memcached, client: memlock.Client, name: str
) -> None:
    mutex, counter = held(client.mutex(name)), client.counter(f"lock:{name}")
    parks = functools.partial(counter.acquire, priority=0)
    for use in [counter.try_acquire, counter.acquire, parks, counter.release]:
        with pytest.raises(memlock.ProtocolError) as caught:
            use()
        names(caught.value, name, f"127.0.0.1:{server.port}")
    with pytest.raises(memlock.ProtocolError):
        _ = counter.available
    assert mutex.check()


BARE = """
import sys, memlock
url, name = sys.argv[1:]
memlock.init(url)
place = url.partition("//")[2]
def fails(call, *arguments):
    try:
        call(*arguments)
    except memlock.Error as error:
        told = name in str(error) and place in str(error)
        print(type(error).__name__, "told" if told else error)
fails(memlock.mutex_unlock, name)
fails(memlock.mutex_lock, name, 0)
memlock.mutex_lock(name, 30)
fails(memlock.mutex_lock, name, 30)
fails(memlock.semaphore_acquire, name, 30)
fails(memlock.semaphore_release, name)
fails(memlock.semaphore_set_up, name, 0, 30)
fails(memlock.distinct_list_insert, name, "key")
"""


def test_the_bare_functions_name_them_too(server: Memcached, name: str) -> None:
    raised = ["NotHeld", "Invalid", "Deadlock", "SemaphoreNotFound", "NotHeld", "Invalid"]
    raised.append("SessionNotFound")
    assert run(BARE, server.url, name) == [f"{error} told" for error in raised]


def test_a_forked_child_is_told_what_it_does_not_hold(server: Memcached, name: str) -> None:
    mutex = held(memlock.connect(server.url).mutex(name))
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            mutex.release()
        except memlock.NotHeld as error:
            os.write(send, str(error).encode())
        os._exit(0)
    os.close(send)
    os.waitpid(child, 0)
    with os.fdopen(receive) as told:
        sentence = told.read()
    assert name in sentence
    assert str(server.port) in sentence
    assert "parent" in sentence
