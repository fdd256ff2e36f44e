"""Every exception names what it is about, and the server that this is on."""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import memlock
import pytest
from support import Memcached

# What may be a password is S3CRET.
REFUSED = [
    "memcached://u:S3CRET@h",
    "memcached://h?password=a&pool=S3CRET",
    "memory://u:S3CRET@h",
    "redis://S3CRET@h",
    "redis://u:S3CRET",
    "redis://u:S3CRET@h/x",
    "redis://u:S3CRET%40h",
    "redis://u:S3CRET\udcff@h",
    "redis+unix:///s?password=S3CRET&db=x",
    "mysql://u:S3CRET@tcp(h:3306)/d",
    "postgresql://h/d?user=u&password=a%40S3CRET&port=x",
    "postgresql+psycopg2://u:S3CRET@h/d",
    "jdbc:postgresql://h/d?user=u&password=S3CRET",
    "sqlite:///u:S3CRET@h/d",
    "host=h user=u password=S3CRET",
    '"redis://u:S3CRET@h"',
    "u:S3CRET",
    "S3CRET",
]
ACCEPTED = {
    "redis://:S3CRET@h:1/2?pool=3": "redis://***@h:1/2?pool=3",
    "redis://u:%40S3CRET@h": "redis://***@h",
    "redis://u:a/S3CRET@h": "redis://***@h",
    "redis+unix:///s?user=S3CRET&password=S3CRET": "redis+unix:///s",
    "mysql://S3CRET@h/d": "mysql://***@h/d",
    "postgresql://u:S3CRET@h,i/d": "postgresql://***@h,i/d",
    "postgresql://h/d?user=u&password=S3CRET%40b": "postgresql:***",
}


@pytest.mark.parametrize("url", REFUSED)
def test_no_exception_contains_a_password(url: str) -> None:
    for call in (memlock.connect, memlock.init):
        with pytest.raises(memlock.ConfigError) as refused:
            call(url)
        error: BaseException | None = refused.value
        while error:
            assert "S3CRET" not in f"{error} {error!r} {error.args}"
            error = error.__cause__ or error.__context__


@pytest.mark.parametrize("url", ACCEPTED)
def test_a_client_is_shown_without_its_password(url: str) -> None:
    client = memlock.connect(url)
    assert repr(client) == f'<memlock.Client "{ACCEPTED[url]}">'
    with pytest.raises(memlock.Invalid) as refused:
        client.mutex("")
    assert f" on {ACCEPTED[url].split('?')[0]}: " in str(refused.value)
    client.close()
    with pytest.raises(memlock.ClientClosed) as closed:
        client.mutex("m")
    assert f'"{ACCEPTED[url]}" is closed' in str(closed.value)


@pytest.mark.parametrize("name", ["redis://u:S3CRET@h", "mysql+pymysql://S3CRET@h/d"])
def test_the_url_of_a_store_is_no_name(client: memlock.Client, name: str) -> None:
    calls: list[Callable[[str], object]] = [
        client.mutex,
        lambda name: client.semaphore(name, 1),
        client.semaphore,
        client.counter,
        lambda name: client.distinct_list(name, 60),
        lambda name: memlock.mutex_lock(name, 60),
        memlock.mutex_unlock,
        lambda name: memlock.semaphore_acquire(name, 60),
        memlock.semaphore_release,
        lambda name: memlock.distinct_list_set_up(name, 60),
    ]
    for call in calls:
        for given in (name, name.encode()):
            with pytest.raises(memlock.Invalid, match="URL of a store") as refused:
                call(given)  # type: ignore[arg-type]
            assert "S3CRET" not in f"{refused.value} {refused.value!r} {refused.value.args}"
    # A page, and an address without a user, are good names.
    for good in ("https://u@host/page", "redis://web1:6379"):
        assert not client.mutex(good).locked()


def quoting(listener: socket.socket) -> None:
    """Quotes the whole request in an error, as some servers do with commands they do not know."""
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with connection:
                request = connection.recv(4096).split(b"\r\n")[4]
                connection.sendall(b"-ERR no good: '" + request + b"'\r\n")
                connection.recv(4096)


def test_a_password_that_a_server_quotes_is_not_in_the_exception(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=quoting, args=(listener,), daemon=True).start()
        port = listener.getsockname()[1]
        for password in ("S3CRET", "S3CRET%22%5C"):
            client = memlock.connect(f"redis://:{password}@127.0.0.1:{port}?io_timeout=20s")
            with pytest.raises(memlock.ProtocolError, match="quotes the login") as refused:
                client.mutex("m").acquire()
            assert "S3CRET" not in f"{refused.value} {refused.value!r} {client!r}"
            client.close()
        listener.shutdown(socket.SHUT_RDWR)
    assert "S3CRET" not in caplog.text


Call = Callable[[memlock.Client, str], object]


def held(thing: Any) -> Any:
    thing.acquire()
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


# On a server that works: what raises which exception. Conformance has the others, and driver.py
# looks at their names.
RAISED: list[tuple[type[memlock.Error], Call]] = [
    (memlock.Invalid, lambda c, n: c.semaphore(n, 0)),
    (memlock.Invalid, lambda c, n: c.semaphore(n, 1).release(0)),
    (memlock.Invalid, lambda c, n: held(c.mutex(n, renew=True)).extend()),
    (memlock.NotHeld, lambda c, n: c.mutex(n).release()),
    (memlock.NotHeld, lambda c, n: c.mutex(n).extend()),
    (memlock.NotHeld, lambda c, n: c.mutex(n).check()),
    (memlock.NotHeld, lambda c, n: c.mutex(n).fence),
    (memlock.NotHeld, lambda c, n: c.semaphore(n, 1).release()),
    (memlock.NotHeld, lambda c, n: c.semaphore(n, 1).extend()),
    (memlock.NotHeld, lambda c, n: c.semaphore(n, 1).check()),
    (memlock.LockLost, lambda c, n: leave(lost(c, n, "mutex"))),
    (memlock.LockLost, lambda c, n: lost(c, n, "semaphore").release()),
    (memlock.LockLost, lambda c, n: lost(c, n, "semaphore").extend()),
    (memlock.LockLost, lambda c, n: leave(lost(c, n, "semaphore"))),
    (memlock.LockLost, lambda c, n: leave(lost(c, n, "permit"))),
    (memlock.TimedOut, lambda c, n: enter_taken(c.mutex(n), c.mutex(n, timeout=0.01))),
    (memlock.TimedOut, lambda c, n: enter_taken(c.semaphore(n, 1), c.semaphore(n, 1, timeout=0))),
]


def test_a_with_statement_that_times_out_says_what_is_missing(
    client: memlock.Client, name: str
) -> None:
    holders = [held(client.mutex(name)), held(client.semaphore(name, 1))]
    with pytest.raises(memlock.TimedOut, match=r"Timed out after 120 ms waiting for the lock"):
        client.mutex(name, timeout=0.12).__enter__()
    with pytest.raises(memlock.TimedOut, match=r"is held by another holder"):
        client.mutex(name, timeout=0).__enter__()
    with pytest.raises(memlock.TimedOut, match=r"Timed out after 10 ms waiting for a permit"):
        client.semaphore(name, 1, timeout=0.01).__enter__()
    with pytest.raises(memlock.TimedOut, match=r"has 0 of 1 permits available"):
        client.semaphore(name, 1).permit(timeout=0)
    assert all(holder.check() for holder in holders)


def names(error: BaseException, name: str, server: str) -> None:
    text = str(error)
    assert (text.count(f'{name}"'), text.count(server)) == (1, 1), text


def test_an_exception_names_the_lock_and_the_server(
    server: Memcached, client: memlock.Client, name: str
) -> None:
    for number, (raised, use) in enumerate(RAISED):
        with pytest.raises(raised) as caught:
            use(client, f"{name}-{number}")
        assert type(caught.value) is raised, number
        names(caught.value, f"{name}-{number}", f"127.0.0.1:{server.port}")


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
@pytest.mark.parametrize("call", ["release", "extend", "check"])
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
    calls = [getattr(thing, call) for thing in things]
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
