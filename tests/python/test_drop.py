"""Objects that go out of scope while they hold something, and their server is dead or hangs."""

from __future__ import annotations

import functools
import gc
import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from typing import Any

import memlock
import pytest
from support import KINDS, PATIENCE, Child, Memcached, Unwanted, answered


@pytest.fixture(scope="module")
def module_server() -> Iterator[Memcached]:
    server = Memcached()
    yield server
    server.close()


@pytest.fixture
def failing(module_server: Memcached) -> Iterator[Memcached]:
    """A server that the test may kill or pause, and that answers at first."""
    if module_server.process is None:
        module_server.start()
    # What earlier tests have left is not to be released while the server is silent.
    gc.collect()
    yield module_server


def connect(server: Memcached, io_timeout: str = "20s") -> memlock.Client:
    return memlock.connect(f"{server.bare_url}?io_timeout={io_timeout}")


def leave(thing: Callable[[], Any], *, temporary: bool, body: Callable[[], None]) -> None:
    """A `with` statement whose object is held by nothing else, or by a variable."""
    if temporary:
        with thing():
            body()
    else:
        held = thing()
        with held:
            body()


@pytest.mark.parametrize("temporary", [False, True], ids=["variable", "temporary"])
@pytest.mark.parametrize("handling", [False, True], ids=["plain", "in an except block"])
@pytest.mark.parametrize("raises", [False, True], ids=["body ends", "body raises"])
@pytest.mark.parametrize("renew", [False, True], ids=["lease", "renewed"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("silent", [False, True], ids=["dead", "silent"])
def test_a_with_block_raises_the_bodys_exception_or_ours(
    failing: Memcached,
    unraisable: list[BaseException | None],
    name: str,
    *,
    silent: bool,
    kind: str,
    renew: bool,
    raises: bool,
    handling: bool,
    temporary: bool,
) -> None:
    # So short, for the many cases, that a busy server may miss it at first.
    client = connect(failing, io_timeout="100ms") if silent else connect(failing)
    ran = []

    def body() -> None:
        ran.append(True)
        if silent:
            pause.enter_context(failing.paused())
        else:
            failing.kill()
        if raises:
            raise Unwanted

    expected = Unwanted if raises else (memlock.Unreachable, memlock.OutcomeUnknown)
    outer = memlock.Unreachable("handled by the caller")

    def run() -> None:
        while True:
            try:
                make = functools.partial(KINDS[kind], client, name, renew=renew)
                return leave(make, temporary=temporary, body=body)
            except memlock.Error:
                if ran:
                    raise

    with ExitStack() as pause:
        with pytest.raises(expected) as caught:
            if handling:
                try:
                    raise outer
                except memlock.Error:
                    run()
            else:
                run()
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is (outer if handling else None)
        if not raises:
            assert name in str(caught.value)
            assert str(failing.port) in str(caught.value)
        del caught
        gc.collect()
    assert unraisable == []


@pytest.mark.parametrize("renew", [False, True], ids=["lease", "renewed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_release_that_failed_is_not_repeated_when_the_object_goes(
    failing: Memcached, name: str, kind: str, renew: bool
) -> None:
    thing = KINDS[kind](connect(failing), name, renew=renew)
    with pytest.raises((memlock.Unreachable, memlock.OutcomeUnknown)), thing:
        failing.kill()
    failing.start()
    with failing.plain() as plain:
        before = plain.stats()["total_connections"]
        del thing
        gc.collect()
        assert plain.stats()["total_connections"] == before


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_handler_raises_while_an_object_goes_displaces_nothing(
    failing: Memcached, unraisable: list[BaseException | None], name: str, kind: str
) -> None:
    def refuse(_: logging.LogRecord) -> bool:
        raise ZeroDivisionError

    client = connect(failing)
    things = [KINDS[kind](client, f"{name}-{number}") for number in range(2)]
    for thing in things:
        thing.__enter__()
    loggers = [logging.getLogger(f"memlock.{part}") for part in ["mutex", "semaphore", "client"]]
    failing.kill()
    for logger in loggers:
        logger.addFilter(refuse)
    try:
        with pytest.raises(Unwanted):
            lose(things)
    finally:
        for logger in loggers:
            logger.removeFilter(refuse)
    assert unraisable
    assert all(isinstance(error, ZeroDivisionError) for error in unraisable)


def lose(things: list[Any]) -> None:
    """Raises with the last references on its stack."""
    held, _ = things.pop(), things.pop()
    raise Unwanted(held.remaining)


@pytest.mark.parametrize("silent", [False, True], ids=["dead", "silent"])
@pytest.mark.parametrize("renew", [False, True], ids=["lease", "renewed"])
def test_the_garbage_collector_takes_what_is_held(
    failing: Memcached,
    unraisable: list[BaseException | None],
    name: str,
    silent: bool,
    renew: bool,
) -> None:
    class Owner:
        thing: Any
        owner: Owner

        def lost(self, _: str) -> None:
            raise AssertionError

    client = connect(failing, "500ms" if silent else "20s")
    keep = {"renew": True, "max_hold": 60} if renew else {}
    things: list[weakref.ref[Any]] = []
    for number, make in enumerate(KINDS.values()):
        owner = Owner()
        more = {"on_lost": owner.lost} if renew else {}
        thing = functools.partial(make, client, f"{name}-{number}", **keep, **more)
        owner.thing = answered(thing)
        answered(owner.thing.__enter__)
        owner.owner = owner
        things.append(weakref.ref(owner.thing))
        del owner, more, thing
    if not silent:
        failing.kill()
    with failing.paused() if silent else nullcontext():
        gc.collect()
    assert [thing() for thing in things] == [None] * 3
    assert unraisable == []


# Whatever the program has when it ends: globals, cycles, attributes of other modules, a frame.
EXIT = """
import gc, logging, sys, threading
import memlock
url, name, quiet = sys.argv[1:]
if quiet == "quiet":
    logging.getLogger("memlock").addHandler(logging.NullHandler())
client = memlock.connect(url)
mutexes = [client.mutex(f"{name}-{number}", renew=number % 2 == 0) for number in range(50)]
for mutex in mutexes:
    mutex.acquire()
semaphores = [client.semaphore(f"{name}-s", 100, renew=renew) for renew in (True, False)]
permits = []
for semaphore in semaphores:
    for number in range(12):
        semaphore.acquire()
        permits.append(semaphore.permit())
class Cycle:
    pass
cycle = Cycle()
cycle.cycle, cycle.mutex = cycle, mutexes[0]
threading.elsewhere = mutexes[1:3], permits[1]
def hang(mutex):
    print("holding")
    sys.stdin.readline()
    raise SystemExit(0)
del mutex
hang(mutexes[3])
"""


# It holds so much that one timeout for each would take longer than a child may take to end.
SILENT = f"io_timeout={PATIENCE / 12:.0f}s&evictions=allow"


@pytest.mark.parametrize("quiet", ["quiet", "loud"])
@pytest.mark.parametrize("silent", [False, True], ids=["dead", "silent"])
def test_a_program_that_holds_a_hundred_ends_at_once_and_without_complaint(
    failing: Memcached, name: str, silent: bool, quiet: str
) -> None:
    with Child(EXIT, f"{failing.bare_url}?{SILENT}", name, quiet) as child:
        assert child.reads() == "holding"
        if not silent:
            failing.kill()
        with failing.paused() if silent else nullcontext():
            _, complaints = child.process.communicate("\n", timeout=PATIENCE)
    assert child.process.returncode == 0
    lines = complaints.splitlines()
    if quiet == "quiet":
        assert lines == []
    # Without a handler of its own, the program says what its locks are left to.
    for line in lines:
        assert "could not be released when" in line
        assert name in line
        assert str(failing.port) in line


def test_the_end_of_a_program_releases_what_is_on_the_server_that_works(
    failing: Memcached, server: Memcached, name: str
) -> None:
    url = f"memcached://127.0.0.1:{failing.port},127.0.0.1:{server.port}?{SILENT}"
    with Child(EXIT, url, name, "quiet") as child:
        assert child.reads() == "holding"
        with failing.paused(), server.plain() as plain:
            held = [key for key in locks(name) if plain.get(key) is not None]
            assert 5 < len(held) < 45, "the locks are not on both servers"
            child.says("")
            assert child.ends() == 0
            # Some are held by another module, which Python leaves as it is.
            left = {key for key in held if plain.get(key) is not None}
            assert left <= {f"lock:{name}-1", f"lock:{name}-2"}


def locks(name: str) -> Iterator[str]:
    return (f"lock:{name}-{number}" for number in range(50))
