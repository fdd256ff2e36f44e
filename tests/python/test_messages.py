"""Every exception names what it is about, and the server that this is on."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import memlock
import pytest
from support import Memcached, run

Call = Callable[[memlock.Client, str], object]


def twice(thing: Any) -> None:
    thing.acquire()
    thing.release()
    thing.release()


def lost_mutex(client: memlock.Client, name: str) -> memlock.Mutex:
    mutex = client.mutex(name)
    mutex.acquire()
    owner = mutex.owner()
    assert owner is not None
    assert client.mutex(name).force_unlock(owner.token)
    return mutex


def lost_semaphore(client: memlock.Client, name: str) -> memlock.Semaphore:
    semaphore = client.semaphore(name, 1)
    semaphore.acquire()
    assert client.semaphore(name, 1).tear_down()
    return semaphore


def lost_permit(client: memlock.Client, name: str) -> memlock.Permit:
    permit = client.semaphore(name, 1).permit()
    assert client.semaphore(name, 1).tear_down()
    return permit


def leave(thing: Any) -> None:
    thing.__exit__(None, None, None)


def enter_taken(thing: Any, again: Any) -> None:
    with thing, again:
        raise AssertionError


def other_number(client: memlock.Client, name: str, use: Callable[[Any], object]) -> None:
    with client.semaphore(name, 3):
        use(client.semaphore(name, 2))


def torn_down(client: memlock.Client, name: str) -> memlock.DistinctList:
    keys = client.distinct_list(name, 60)
    keys.insert("key")
    assert keys.tear_down()
    return keys


def walk_torn_down(client: memlock.Client, name: str) -> None:
    keys = client.distinct_list(name, 60)
    keys.insert("key")
    walk = iter(keys)
    assert keys.tear_down()
    next(walk)


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


# On a server that works.
CALLS: dict[str, tuple[type[memlock.Error], Call]] = {
    "mutex lease": (memlock.Invalid, lambda c, n: c.mutex(n, lease=0)),
    "semaphore lease": (memlock.Invalid, lambda c, n: c.semaphore(n, 1, lease=0)),
    "semaphore permits": (memlock.Invalid, lambda c, n: c.semaphore(n, 0)),
    "counter key": (memlock.Invalid, lambda c, n: c.counter(n + " with a space")),
    "list duration": (memlock.Invalid, lambda c, n: c.distinct_list(n, 0)),
    "mutex not held": (memlock.NotHeld, lambda c, n: c.mutex(n).release()),
    "mutex released twice": (memlock.NotHeld, lambda c, n: twice(c.mutex(n))),
    "mutex extend not held": (memlock.NotHeld, lambda c, n: c.mutex(n).extend()),
    "mutex check not held": (memlock.NotHeld, lambda c, n: c.mutex(n).check()),
    "mutex fence not held": (memlock.NotHeld, lambda c, n: c.mutex(n).fence),
    "semaphore not held": (memlock.NotHeld, lambda c, n: c.semaphore(n, 1).release()),
    "semaphore released twice": (memlock.NotHeld, lambda c, n: twice(c.semaphore(n, 1))),
    "semaphore extend not held": (memlock.NotHeld, lambda c, n: c.semaphore(n, 1).extend()),
    "semaphore check not held": (memlock.NotHeld, lambda c, n: c.semaphore(n, 1).check()),
    "semaphore release of none": (memlock.Invalid, lambda c, n: c.semaphore(n, 1).release(0)),
    "mutex release lost": (memlock.LockLost, lambda c, n: lost_mutex(c, n).release()),
    "mutex extend lost": (memlock.LockLost, lambda c, n: lost_mutex(c, n).extend()),
    "mutex with lost": (memlock.LockLost, lambda c, n: leave(lost_mutex(c, n))),
    "semaphore release lost": (memlock.LockLost, lambda c, n: lost_semaphore(c, n).release()),
    "semaphore extend lost": (memlock.LockLost, lambda c, n: lost_semaphore(c, n).extend()),
    "semaphore with lost": (memlock.LockLost, lambda c, n: leave(lost_semaphore(c, n))),
    "permit release lost": (memlock.LockLost, lambda c, n: lost_permit(c, n).release()),
    "permit extend lost": (memlock.LockLost, lambda c, n: lost_permit(c, n).extend()),
    "permit with lost": (memlock.LockLost, lambda c, n: leave(lost_permit(c, n))),
    "mutex lease of extend": (memlock.Invalid, lambda c, n: held(c.mutex(n)).extend(0.1)),
    "renewed mutex extend": (memlock.Invalid, lambda c, n: held(c.mutex(n, renew=True)).extend()),
    "mutex timed out": (
        memlock.TimedOut,
        lambda c, n: enter_taken(c.mutex(n), c.mutex(n, timeout=0.01)),
    ),
    "semaphore timed out": (
        memlock.TimedOut,
        lambda c, n: enter_taken(c.semaphore(n, 1), c.semaphore(n, 1, timeout=0)),
    ),
    "permit timed out": (
        memlock.TimedOut,
        lambda c, n: held(c.semaphore(n, 1)) and c.semaphore(n, 1).permit(timeout=0),
    ),
    "too many permits": (memlock.Invalid, lambda c, n: c.semaphore(n, 1).acquire(permits=2)),
    "no permits": (memlock.Invalid, lambda c, n: c.semaphore(n, 1).acquire(permits=0)),
    "other number acquire": (memlock.Invalid, lambda c, n: other_number(c, n, held)),
    "other number set_up": (
        memlock.Invalid,
        lambda c, n: other_number(c, n, lambda semaphore: semaphore.set_up(60)),
    ),
    "semaphore missing": (memlock.SemaphoreNotFound, lambda c, n: c.semaphore(n).acquire()),
    "semaphore missing permit": (memlock.SemaphoreNotFound, lambda c, n: c.semaphore(n).permit()),
    "semaphore missing available": (
        memlock.SemaphoreNotFound,
        lambda c, n: c.semaphore(n).available,
    ),
    "semaphore missing set_up": (memlock.SemaphoreNotFound, lambda c, n: c.semaphore(n).set_up(60)),
    "semaphore missing resize": (memlock.SemaphoreNotFound, lambda c, n: c.semaphore(n).resize(2)),
    "counter missing acquire": (memlock.CounterNotFound, lambda c, n: c.counter(n).try_acquire()),
    "counter missing release": (memlock.CounterNotFound, lambda c, n: c.counter(n).release()),
    "counter missing available": (memlock.CounterNotFound, lambda c, n: c.counter(n).available),
    "list gone add": (memlock.SessionNotFound, lambda c, n: torn_down(c, n).insert("key")),
    "list gone len": (memlock.SessionNotFound, lambda c, n: len(torn_down(c, n))),
    "list gone walk": (memlock.SessionNotFound, walk_torn_down),
    "list key": (memlock.Invalid, lambda c, n: c.distinct_list(n, 60).insert("")),
    "mutex cancelled": (memlock.Interrupted, lambda c, n: c.mutex(n).acquire(cancel=cancelled(c))),
    "semaphore cancelled": (
        memlock.Interrupted,
        lambda c, n: c.semaphore(n, 1).acquire(cancel=cancelled(c)),
    ),
    "counter cancelled": (
        memlock.Interrupted,
        lambda c, n: c.counter(n).acquire(cancel=cancelled(c)),
    ),
    "mutex closed": (
        memlock.ClientClosed,
        lambda c, n: closed(c, lambda c: c.mutex(n)).acquire(),
    ),
    "counter closed": (
        memlock.ClientClosed,
        lambda c, n: closed(c, lambda c: c.counter(n)).acquire(),
    ),
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


def held(thing: Any) -> Any:
    """Keeps it alive until the test is over."""
    HELD.append(thing)
    thing.acquire()
    return thing


HELD: list[Any] = []


@pytest.fixture(autouse=True)
def let_go() -> Iterator[None]:
    yield
    HELD.clear()


def names(error: BaseException, name: str, server: str) -> None:
    assert name in str(error)
    assert server in str(error)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("store", ["memcached", "memory"])
def test_an_exception_names_the_lock_and_the_server(
    server: Memcached, name: str, store: str, call: str
) -> None:
    place = f"memory://{uuid.uuid4().hex}" if store == "memory" else f"127.0.0.1:{server.port}"
    url = place if store == "memory" else f"memcached://{place}"
    raised, use = CALLS[call]
    with pytest.raises(raised) as caught:
        use(memlock.connect(url), name)
    assert type(caught.value) is raised
    names(caught.value, name, place)


# Of something that was acquired before the server died.
DEAD: dict[str, Call] = {
    "mutex": lambda c, n: c.mutex(n).acquire(),
    "mutex with": lambda c, n: c.mutex(n).__enter__(),
    "mutex owner": lambda c, n: c.mutex(n).owner(),
    "mutex locked": lambda c, n: c.mutex(n).locked(),
    "mutex force_unlock": lambda c, n: c.mutex(n).force_unlock("token"),
    "semaphore": lambda c, n: c.semaphore(n, 1).acquire(),
    "permit": lambda c, n: c.semaphore(n, 1).permit(),
    "available": lambda c, n: c.semaphore(n, 1).available,
    "holders": lambda c, n: c.semaphore(n, 1).holders(),
    "resize": lambda c, n: c.semaphore(n, 1).resize(2),
    "semaphore set_up": lambda c, n: c.semaphore(n, 1).set_up(60),
    "semaphore tear_down": lambda c, n: c.semaphore(n, 1).tear_down(),
    "counter set_up": lambda c, n: c.counter(n).set_up(1),
    "counter try_acquire": lambda c, n: c.counter(n).try_acquire(),
    "counter acquire": lambda c, n: c.counter(n).acquire(priority=1),
    "counter release": lambda c, n: c.counter(n).release(),
    "counter available": lambda c, n: c.counter(n).available,
    "list": lambda c, n: c.distinct_list(n, 60),
}
HOLDING: dict[str, Callable[[Any], object]] = {
    "release": lambda thing: thing.release(),
    "extend": lambda thing: thing.extend(),
    "check": lambda thing: thing.check(),
    "with": leave,
}


@pytest.fixture(scope="module")
def dead() -> Iterator[Memcached]:
    server = Memcached()
    server.kill()
    yield server
    server.close()


@pytest.mark.parametrize("call", DEAD)
def test_an_unreachable_server_is_named(dead: Memcached, name: str, call: str) -> None:
    with pytest.raises(memlock.Unreachable) as caught:
        DEAD[call](memlock.connect(dead.url), name)
    names(caught.value, name, f"127.0.0.1:{dead.port}")


@pytest.mark.parametrize("renew", [False, True], ids=["lease", "renewed"])
@pytest.mark.parametrize("call", HOLDING)
def test_a_server_that_died_is_named_for_what_is_held(
    mortal_server: Memcached, name: str, call: str, renew: bool
) -> None:
    if renew and call == "extend":
        renew = False
    client = memlock.connect(mortal_server.url)
    semaphore = client.semaphore(name, 2, renew=renew)
    things = [held(client.mutex(name, renew=renew)), held(semaphore), semaphore.permit()]
    keys = client.distinct_list(name, 60)
    # So that it is asked anew, and not on a connection that is known to be closed.
    time.sleep(0.2)
    mortal_server.kill()
    for thing in things:
        with pytest.raises((memlock.Unreachable, memlock.OutcomeUnknown)) as caught:
            HOLDING[call](thing)
        names(caught.value, name, f"127.0.0.1:{mortal_server.port}")
    for use in [lambda: keys.insert("key"), lambda: len(keys), keys.tear_down]:
        with pytest.raises((memlock.Unreachable, memlock.OutcomeUnknown)) as caught:
            use()
        names(caught.value, name, f"127.0.0.1:{mortal_server.port}")


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
