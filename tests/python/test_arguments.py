"""Names, durations and URLs: what is taken and what is refused; and the exceptions' family."""

from __future__ import annotations

import math
import pickle
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import memlock
import pytest
from support import MemcachedText


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ("plain", "plain"),
        (b"plain", "plain"),
        ("a b", "a%20b"),
        ("ü", "%C3%BC"),
        (b"\xff\x80", "%FF%80"),
        ("\udcff\udc80", "%FF%80"),
        ("x\r\ndelete victim\r\n", "x%0D%0Adelete%20victim%0D%0A"),
        ("a%20b", "a%2520b"),
    ],
)
def test_a_name_reaches_the_server_encoded(
    client: memlock.Client, plain: MemcachedText, given: str | bytes, key: str
) -> None:
    assert plain.add("victim", b"alive") or plain.get("victim") == b"alive"
    with client.mutex(given):
        assert plain.get(f"lock:{key}") is not None
    assert plain.get(f"lock:{key}") is None
    assert plain.get("victim") == b"alive"


@pytest.mark.parametrize("name", ["", b"", "a\0b", b"\0", "x" * 65537, "\ud800"])
def test_unusable_names_are_refused(client: memlock.Client, name: str | bytes) -> None:
    calls = [client.mutex, client.semaphore, lambda name: client.distinct_list(name, 30)]
    for call in calls:
        with pytest.raises(memlock.Invalid):
            call(name)


def test_what_is_no_name_or_no_duration_is_a_type_error(client: memlock.Client, name: str) -> None:
    for wrong in [None, 5, bytearray(b"x"), ["x"]]:
        with pytest.raises(TypeError, match="str or bytes"):
            client.mutex(wrong)  # type: ignore[arg-type]
    for duration in ["30", None, b"30"]:
        with pytest.raises(TypeError, match="timedelta"):
            client.mutex(name, lease=duration)  # type: ignore[arg-type]


def test_what_is_no_way_to_take_a_mismatch_is_refused(client: memlock.Client, name: str) -> None:
    for permits in [None, 3]:
        with pytest.raises(memlock.Invalid, match='"follow", "resize" or "refuse"'):
            client.semaphore(name, permits, mismatch="ignore")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            client.semaphore(name, permits, mismatch=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("lease", [5, 5.0, 5.5, timedelta(seconds=5), Decimal(5), 366 * 86400])
def test_usable_leases(client: memlock.Client, name: str, lease: float) -> None:
    with client.mutex(name, lease=lease) as mutex:
        assert mutex.remaining > 0.5


def test_unusable_durations_are_refused(client: memlock.Client, name: str) -> None:
    wrong = [0, 0.999, -1, math.nan, math.inf, 10**400, timedelta(0), -timedelta(1), 366.1 * 86400]
    for lease in wrong:
        for make in [client.mutex, client.semaphore, client.distinct_list]:
            more = {"duration" if make == client.distinct_list else "lease": lease}
            with pytest.raises(memlock.Invalid):
                make(name, **more)  # type: ignore[arg-type]
    with pytest.raises(memlock.Invalid):
        client.mutex(name, timeout=-1)


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1", "rebus://x", "memcached://", "memcached://h?colour=red", "memory://", "\0"],
)
def test_unreadable_urls_are_refused(url: str) -> None:
    with pytest.raises(memlock.ConfigError) as caught:
        memlock.connect(url)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(TypeError):
        memlock.connect(5)  # type: ignore[arg-type]


FAMILY = {
    "Invalid": (-1, ValueError),
    "Unreachable": (-2, ConnectionError),
    "OutcomeUnknown": (-3, memlock.Error),
    "ProtocolError": (-4, memlock.Error),
    "ConfigError": (-5, ValueError),
    "Deadlock": (-6, RuntimeError),
    "InternalError": (-7, memlock.Error),
    "NotHeld": (5, (RuntimeError, ValueError)),
    "LockLost": (6, memlock.Error),
    "NotFound": (7, LookupError),
    "SessionNotFound": (7, (memlock.NotFound, LookupError)),
    "SemaphoreNotFound": (7, (memlock.NotFound, LookupError)),
    "CounterNotFound": (7, (memlock.NotFound, LookupError)),
    "TimedOut": (2, TimeoutError),
    "Interrupted": (8, memlock.Error),
    "Recovering": (9, memlock.Error),
    "ClientClosed": (-1, (memlock.Invalid, ValueError)),
}


@pytest.mark.parametrize("name", FAMILY)
def test_every_exception_has_its_number_and_its_relatives(name: str) -> None:
    code, also = FAMILY[name]
    exception = getattr(memlock, name)
    assert issubclass(exception, memlock.Error)
    for relative in also if isinstance(also, tuple) else (also,):
        assert issubclass(exception, relative)
    assert exception.code == code
    raised = exception("what happened")
    assert (str(raised), raised.code) == ("what happened", code)
    again = pickle.loads(pickle.dumps(raised))
    assert (type(again), str(again)) == (exception, "what happened")
    assert exception.__module__ == "memlock"
    assert exception.__doc__


def test_everything_public_is_documented() -> None:
    for name in memlock.__all__:
        thing = getattr(memlock, name)
        assert name.startswith("__") or thing.__doc__, name
        if isinstance(thing, type) and not issubclass(thing, BaseException):
            for member, value in vars(thing).items():
                assert member.startswith("_") or value.__doc__, f"{name}.{member}"


def test_the_version_is_that_of_the_package() -> None:
    text = (Path(__file__).parents[2] / "Cargo.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{memlock.__version__}"\n' in text
