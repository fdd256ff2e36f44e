"""Mutex.guard: each call of the decorated function is a holder of its own."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Iterator
from typing import Any

import memlock
import pytest
from support import Memcached, eventually


def test_a_call_holds_the_lock(any_client: memlock.Client, name: str) -> None:
    mutex = any_client.mutex(name)

    @mutex.guard
    def work(first: int, *, second: int = 2) -> tuple[int, int, bool]:
        """Works."""
        return first, second, mutex.locked()

    assert work(1) == (1, 2, True) and work(3, second=4) == (3, 4, True)
    assert not mutex.locked()
    assert (work.__name__, work.__doc__, work.__module__) == ("work", "Works.", __name__)
    assert list(inspect.signature(work).parameters) == ["first", "second"]


def test_an_exception_releases_and_is_not_changed(any_client: memlock.Client, name: str) -> None:
    mutex = any_client.mutex(name)

    @mutex.guard
    def work(error: Exception) -> None:
        raise error

    # The exception of the function is not taken for that of a busy lock.
    skipping = mutex.guard(skip_if_busy=True)(work.__wrapped__)  # type: ignore[attr-defined]
    for guarded in (work, skipping):
        for error in (KeyError(), memlock.TimedOut(), memlock.LockLost()):
            with pytest.raises(type(error)) as raised:
                guarded(error)
            assert raised.value is error
            assert not mutex.locked()


def test_a_busy_lock_raises_when_the_timeout_is_over(any_client: memlock.Client, name: str) -> None:
    called: list[int] = []
    guarded = any_client.mutex(name, timeout=0.05).guard(lambda: called.append(1))
    with any_client.mutex(name):
        with pytest.raises(memlock.TimedOut, match=name):
            guarded()
        assert not called
    guarded()
    assert called


def test_a_busy_lock_is_skipped(
    any_client: memlock.Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    # Without waiting for its own timeout, which is without a limit.
    @any_client.mutex(name).guard(skip_if_busy=True)
    def clean_up() -> str:
        return "done"

    with caplog.at_level(logging.INFO, "memlock"):
        assert clean_up() == "done"
        assert not caplog.records
        with any_client.mutex(name):
            assert clean_up() is None
    (record,) = caplog.records
    assert record.levelno == logging.INFO and record.name == "memlock"
    assert "clean_up() was skipped" in record.getMessage() and name in record.getMessage()
    assert clean_up() == "done"


@pytest.mark.parametrize("skip", [False, True])
def test_a_server_that_is_away_is_not_busy(mortal_server: Memcached, name: str, skip: bool) -> None:
    called: list[int] = []
    mutex = memlock.connect(mortal_server.url).mutex(name)
    guarded = mutex.guard(skip_if_busy=skip)(lambda: called.append(1))
    mortal_server.kill()
    with pytest.raises(memlock.Unreachable):
        guarded()
    assert not called


def test_a_lost_lock_is_reported(any_client: memlock.Client, name: str) -> None:
    mutex = any_client.mutex(name)

    @mutex.guard
    def work() -> None:
        owner = mutex.owner()
        assert owner is not None and mutex.force_unlock(owner.token)

    with pytest.raises(memlock.LockLost, match=name):
        work()


def test_each_call_of_a_thread_is_its_own_holder(any_client: memlock.Client, name: str) -> None:
    mutex, inside, entries = any_client.mutex(name), 0, 0
    tokens: set[str] = set()

    @mutex.guard
    def work() -> None:
        nonlocal inside, entries
        inside, entries = inside + 1, entries + 1
        assert inside == 1
        owner = mutex.owner()
        assert owner is not None
        tokens.add(owner.token)
        inside -= 1

    threads = [threading.Thread(target=lambda: [work() for _ in range(5)]) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert entries == len(tokens) == 30


def test_a_call_that_overslept_takes_no_lock_of_the_next(
    client: memlock.Client, server: Memcached, name: str
) -> None:
    """By one object that threads share, the second call would displace the first one."""
    is_in, goes = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    @client.mutex(name).guard
    def work(wait: bool) -> bool:
        if wait:
            is_in.set()
            assert goes.wait(20)
            return False
        goes.set()
        thread.join(20)
        return client.mutex(name).locked()

    def sleep() -> None:
        try:
            work(True)
        except memlock.LockLost as error:
            errors.append(error)

    thread = threading.Thread(target=sleep)
    thread.start()
    assert is_in.wait(20)
    with server.plain() as plain:
        plain.delete(f"lock:{name}")
    assert work(False)
    assert len(errors) == 1


def test_the_mutex_of_the_call_is_current(any_client: memlock.Client, name: str) -> None:
    mutex = any_client.mutex(name)

    @any_client.mutex(name + "-inner").guard
    def inner() -> memlock.Mutex:
        return memlock.current_mutex()

    @mutex.guard
    def outer() -> tuple[int, bool]:
        own = memlock.current_mutex()
        assert inner() is not own and memlock.current_mutex() is own
        owner = mutex.owner()
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return own.fence, owner is not None and own.is_held and own is not mutex

    def look() -> None:
        with pytest.raises(memlock.NotHeld, match="current_mutex"):
            memlock.current_mutex()

    first, second = outer(), outer()
    assert second[0] > first[0] > 0 and first[1] and second[1]
    look()


def test_options_of_the_mutex_apply(client: memlock.Client, server: Memcached, name: str) -> None:
    losses: list[str] = []

    @client.mutex(name, lease=3, renew=True, on_lost=losses.append).guard
    def work() -> None:
        with server.plain() as plain:
            plain.delete(f"lock:{name}")
        eventually(lambda: losses)

    with pytest.raises(memlock.LockLost):
        work()
    assert losses == ["gone"]


def test_methods(any_client: memlock.Client, name: str) -> None:
    mutex = any_client.mutex(name)

    class Account:
        balance = 1

        @mutex.guard
        def add(self, amount: int) -> bool:
            self.balance += amount
            return mutex.locked()

        @mutex.guard(skip_if_busy=True)
        def reset(self) -> None:
            self.balance = 0

        @classmethod
        @mutex.guard
        def of_class(cls) -> str:
            return cls.__name__

        @staticmethod
        @mutex.guard
        def of_none() -> bool:
            return mutex.locked()

    account = Account()
    assert account.add(2) and account.balance == 3
    with mutex:
        account.reset()
        assert account.balance == 3
    account.reset()
    assert account.balance == 0
    assert Account.of_class() == "Account" and account.of_none()


async def coroutine_function() -> None: ...


def generator_function() -> Iterator[int]:
    yield 1


async def async_generator_function() -> Any:
    yield 1


class CallableAsync:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (coroutine_function, r"coroutine_function\(\), a coroutine function: use .* memlock\.aio"),
        (functools.partial(coroutine_function), "coroutine function"),
        (CallableAsync(), "coroutine function"),
        (generator_function, "generator function"),
        (async_generator_function, "generator function"),
        (threading.Thread, "class Thread"),
        (staticmethod(len), "@staticmethod above"),
        (classmethod(len), "@classmethod above"),
        (5, "int"),
    ],
)
def test_what_would_not_hold_the_lock_is_refused(
    client: memlock.Client, name: str, function: Any, match: str
) -> None:
    for guard in (client.mutex(name).guard, client.mutex(name).guard(skip_if_busy=True)):
        with pytest.raises(TypeError, match=match) as raised:
            guard(function)
        assert name in str(raised.value)


def test_a_result_that_would_work_without_the_lock_is_refused(
    client: memlock.Client, name: str
) -> None:
    for function in (coroutine_function, generator_function, async_generator_function):
        with pytest.raises(TypeError, match="would run after the lock was released"):
            client.mutex(name).guard(lambda function=function: function())()
    assert not client.mutex(name).locked()


def test_arguments_are_those_of_a_decorator(client: memlock.Client, name: str) -> None:
    with pytest.raises(TypeError):
        client.mutex(name).guard(len, True)  # type: ignore[call-overload]
    partial = client.mutex(name).guard(functools.partial(max, 1))
    assert partial(2) == 2
