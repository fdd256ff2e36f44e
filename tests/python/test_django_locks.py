"""memlock.django: commands that run once at a time, and views that hold a lock."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import django.test
import memlock
import memlock.aio
import pytest
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from memlock.django import lock_command, lock_view
from support import Child, Memcached, eventually

pytestmark = pytest.mark.usefixtures("django_databases")

BUSY = "Another request is being processed. Try again later."


def command(handle: Callable[..., Any]) -> type[BaseCommand]:
    class Command(BaseCommand):
        def handle(self, *arguments: Any, **options: Any) -> Any:
            return handle(self)

    return Command


def test_a_command_runs_while_it_holds_the_lock(client: memlock.Client, name: str) -> None:
    seen: list[Any] = []

    def handle(self: Any) -> str:
        assert memlock.current_mutex() is self.mutex
        seen.append((client.mutex(name).locked(), self.mutex.fence > 0, self.mutex.lost))
        return "report"

    output = io.StringIO()
    call_command(lock_command(client, name)(command(handle))(), stdout=output)
    assert seen == [(True, True, None)] and output.getvalue() == "report\n"
    assert not client.mutex(name).locked()


def test_a_busy_command_fails_with_a_status(client: memlock.Client, name: str) -> None:
    busy = lock_command(client, name)(command(lambda _: pytest.fail("it ran")))
    other = lock_command(client, name, timeout=0.05, busy_status=3)(command(lambda _: None))
    with client.mutex(name):
        with pytest.raises(CommandError, match=rf"{name}.*held by") as raised:
            call_command(busy())
        assert raised.value.returncode == 75
        with pytest.raises(CommandError, match=name) as raised:
            call_command(other())
        assert raised.value.returncode == 3
    call_command(other())


def test_a_busy_command_may_be_no_failure(client: memlock.Client, name: str) -> None:
    errors = io.StringIO()
    quiet = lock_command(client, name, busy_status=0)(command(lambda _: pytest.fail("it ran")))
    with client.mutex(name):
        call_command(quiet(), stderr=errors)
    assert name in errors.getvalue()


def test_a_command_that_lost_its_lock_fails(
    client: memlock.Client, server: Memcached, name: str
) -> None:
    def handle(self: Any) -> None:
        with server.plain() as plain:
            plain.delete(f"lock:{name}")
        eventually(lambda: self.mutex.lost)

    with pytest.raises(CommandError, match=name) as raised:
        call_command(lock_command(client, name, lease=3)(command(handle))())
    assert raised.value.returncode == 79


def test_a_command_whose_server_went_away_has_done_its_work(
    mortal_server: Memcached, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = memlock.connect(mortal_server.url)
    call_command(lock_command(client, name)(command(lambda _: mortal_server.kill()))())
    assert "Not released after the work" in caplog.text and name in caplog.text
    with pytest.raises(memlock.Unreachable):
        call_command(lock_command(client, name)(command(lambda _: pytest.fail("it ran")))())


def test_a_command_in_a_transaction_holds_the_lock_until_the_commit(
    client: memlock.Client, name: str
) -> None:
    locked = lock_command(client, name)(command(lambda _: None))
    with transaction.atomic("sqlite"):
        call_command(locked())
        assert client.mutex(name).locked()
    assert not client.mutex(name).locked()
    transaction.set_autocommit(False, "sqlite")
    try:
        call_command(locked())
        assert client.mutex(name).locked()
        transaction.commit("sqlite")
        assert not client.mutex(name).locked()
    finally:
        transaction.set_autocommit(True, "sqlite")
    call_command(locked())
    assert not client.mutex(name).locked()


COMMAND = """
import sys, memlock, django, django.conf
from django.core.management.base import BaseCommand
from memlock.django import lock_command

django.conf.settings.configure()
django.setup()

@lock_command(memlock.connect(sys.argv[1]), sys.argv[2], lease=2)
class Command(BaseCommand):
    def handle(self, *arguments, **options):
        print("in", flush=True)
        input()

Command().run_from_argv(["manage.py", "nightly"])
"""


def test_processes_that_run_a_command(server: Memcached, client: memlock.Client, name: str) -> None:
    with Child(COMMAND, server.url, name) as first:
        assert first.reads() == "in"
        with Child(COMMAND, server.url, name) as second:
            _, complaints = second.process.communicate(timeout=60)
            assert second.process.returncode == 75
            assert complaints.startswith("CommandError: ") and name in complaints
            assert "Traceback" not in complaints
        first.process.kill()
        first.process.communicate()
    # Its lease ends.
    assert client.mutex(name).acquire(timeout=20)


def test_other_classes_are_refused(client: memlock.Client) -> None:
    with pytest.raises(TypeError, match="BaseCommand"):
        lock_command(client, "x")(dict)
    with pytest.raises(memlock.Invalid):
        lock_command(client, "x", lease=0.1)
    with pytest.raises(memlock.Invalid):
        lock_command(client, "")
    with pytest.raises(TypeError, match=r"memlock\.connect"):
        lock_command("memcached://127.0.0.1", "x")  # type: ignore[arg-type]


# The views. Their client and the prefix of their names are those of the test.
urlpatterns: list[Any] = []
site = django.test.override_settings(ROOT_URLCONF=__name__)


@pytest.fixture
def route() -> Iterator[Callable[[Callable[..., Any]], None]]:
    """Make a view that of /orders/7/."""

    def route(view: Callable[..., Any]) -> None:
        urlpatterns[:] = [path("orders/<int:order_id>/", view)]
        django.urls.clear_url_caches()

    with site:
        yield route


def get(number: int = 7) -> Any:
    return django.test.Client().get(f"/orders/{number}/")


def test_a_view_holds_the_lock_of_its_arguments(
    client: memlock.Client, name: str, route: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @lock_view(client, name + ":{order_id}:{request.method}")
    def view(request: HttpRequest, order_id: int) -> HttpResponse:
        """Pay."""
        assert memlock.current_mutex().fence > 0
        return HttpResponse(str(client.mutex(f"{name}:{order_id}:GET").locked()))

    route(view)
    assert view.__doc__ == "Pay."
    assert get().content == b"True"
    assert not client.mutex(f"{name}:7:GET").locked()
    with client.mutex(f"{name}:7:GET"), caplog.at_level(logging.INFO, "memlock"):
        busy = get()
        assert get(8).status_code == 200
    assert (busy.status_code, busy.headers["Retry-After"]) == (423, "1")
    # Who holds it is told to the log only.
    assert busy.content.decode() == BUSY
    assert [name in one.getMessage() for one in caplog.records if one.name == "memlock"] == [True]


def test_status_and_name_are_options(client: memlock.Client, name: str, route: Any) -> None:
    def name_of(request: HttpRequest, order_id: int) -> str:
        return f"{name}:{order_id % 2}"

    @lock_view(client, name_of, status=409, retry_after=30, timeout=0.05)
    def view(request: HttpRequest, order_id: int) -> HttpResponse:
        return HttpResponse()

    route(view)
    with client.mutex(f"{name}:1"):
        busy = get()
    assert (busy.status_code, busy.headers["Retry-After"]) == (409, "30")
    assert get().status_code == 200


def test_a_view_that_raises_releases(client: memlock.Client, name: str, route: Any) -> None:
    @lock_view(client, name)
    def view(request: HttpRequest, order_id: int) -> HttpResponse:
        raise KeyError

    route(view)
    with pytest.raises(KeyError):
        get()
    assert not client.mutex(name).locked()


def test_a_view_whose_server_is_away(
    mortal_server: Memcached, name: str, route: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = memlock.connect(mortal_server.url)

    @lock_view(client, name)
    def view(request: HttpRequest, order_id: int) -> HttpResponse:
        mortal_server.kill()
        return HttpResponse("done")

    route(view)
    assert get().content == b"done"
    assert "Not released after the work" in caplog.text
    with pytest.raises(memlock.Unreachable):
        get()


def test_a_request_whose_lock_was_lost_fails(
    client: memlock.Client, server: Memcached, name: str, route: Any
) -> None:
    @lock_view(client, name)
    def view(request: HttpRequest, order_id: int) -> HttpResponse:
        with server.plain() as plain:
            plain.delete(f"lock:{name}")
        return HttpResponse()

    route(view)
    with pytest.raises(memlock.LockLost, match=name):
        get()


@pytest.mark.parametrize("fails", [False, True])
def test_with_atomic_requests_the_commit_comes_first(
    client: memlock.Client,
    name: str,
    route: Any,
    monkeypatch: pytest.MonkeyPatch,
    fails: bool,
) -> None:
    states: list[bool] = []

    @lock_view(client, name)
    def view(request: HttpRequest, order_id: int) -> HttpResponse:
        if fails:
            raise KeyError
        return HttpResponse()

    connection = connections["sqlite"]
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    end = "_rollback" if fails else "_commit"
    original = getattr(connection, end)

    def ends() -> None:
        states.append(client.mutex(name).locked())
        original()

    monkeypatch.setattr(connection, end, ends)
    route(view)
    if fails:
        with pytest.raises(KeyError):
            get()
    else:
        get()
    assert states == [True]
    assert not client.mutex(name).locked()
    connection.close()
    # What watches the ends of the transactions was put around `ends`.
    del connections["sqlite"]


def test_a_test_case_releases_after_each_request(
    client: memlock.Client, name: str, route: Any
) -> None:
    @lock_view(client, name)
    def view(request: HttpRequest, order_id: int) -> HttpResponse:
        return HttpResponse()

    class Case(django.test.TestCase):
        databases = frozenset({"default"})

        def test_two_requests(self) -> None:
            assert self.client.get("/orders/7/").status_code == 200
            assert self.client.get("/orders/7/").status_code == 200

    route(view)
    result = unittest.TestResult()
    Case("test_two_requests")(result)
    assert result.wasSuccessful(), result.failures + result.errors


def test_asynchronous_views(client: memlock.Client, name: str, route: Any) -> None:
    aio = memlock.aio.Client(client)

    @lock_view(aio, name + ":{order_id}")
    async def view(request: HttpRequest, order_id: int) -> HttpResponse:
        assert memlock.aio.current_mutex().fence > 0
        return HttpResponse(str(await aio.mutex(f"{name}:{order_id}").locked()))

    route(view)

    async def main() -> None:
        assert (await django.test.AsyncClient().get("/orders/7/")).content == b"True"
        async with aio.mutex(f"{name}:7"):
            assert (await django.test.AsyncClient().get("/orders/7/")).status_code == 423
        assert not await aio.mutex(f"{name}:7").locked()

    asyncio.run(main())


def test_an_asynchronous_view_is_cancelled_by_a_loss(
    client: memlock.Client, server: Memcached, name: str, route: Any
) -> None:
    @lock_view(client, name, lease=3)
    async def view(request: HttpRequest, order_id: int) -> HttpResponse:
        with server.plain() as plain:
            plain.delete(f"lock:{name}")
        await asyncio.sleep(60)
        return HttpResponse()

    route(view)

    async def main() -> None:
        with pytest.raises(memlock.LockLost, match=name):
            await django.test.AsyncClient().get("/orders/7/")

    asyncio.run(main())


def test_class_based_views(client: memlock.Client, name: str, route: Any) -> None:
    @method_decorator(lock_view(client, name + ":{order_id}"), name="dispatch")
    class Order(View):
        def get(self, request: HttpRequest, order_id: int) -> HttpResponse:
            return HttpResponse(str(client.mutex(f"{name}:{order_id}").locked()))

    route(Order.as_view())
    assert get().content == b"True"
    with client.mutex(f"{name}:7"):
        assert get().status_code == 423


def test_an_asynchronous_dispatch_is_refused(client: memlock.Client, name: str, route: Any) -> None:
    """Its coroutine would run after the lock was released."""

    @method_decorator(lock_view(client, name), name="dispatch")
    class Order(View):
        async def get(self, request: HttpRequest, order_id: int) -> HttpResponse:
            return HttpResponse()

    route(Order.as_view())
    with pytest.raises(TypeError, match="coroutine"):
        get()


def test_a_wrong_name_is_refused_when_the_module_is_imported(client: memlock.Client) -> None:
    def view(request: HttpRequest, order_id: int) -> HttpResponse:
        return HttpResponse(json.dumps(order_id))

    for template, match in (
        ("order:{id}", r'"id", which is no parameter of .*view\(\).* request, order_id'),
        ("order:{}", "name a parameter"),
        ("order:{0}", "name a parameter"),
    ):
        with pytest.raises(TypeError, match=match):
            lock_view(client, template)(view)


def test_a_value_that_need_not_identify_is_refused(
    client: memlock.Client, name: str, route: Any
) -> None:
    """Such as an object whose text is its address: each request would have a lock of its own."""

    @lock_view(client, name + ":{request}")
    def view(request: HttpRequest, order_id: int) -> HttpResponse:
        return HttpResponse()

    route(view)
    with pytest.raises(TypeError, match=r'"\{request\}" is a WSGIRequest'):
        get()


def test_requests_of_threads_exclude_each_other(
    client: memlock.Client, name: str, route: Any
) -> None:
    is_in, goes = threading.Event(), threading.Event()

    @lock_view(client, name)
    def view(request: HttpRequest, order_id: int) -> HttpResponse:
        is_in.set()
        assert goes.wait(20)
        return HttpResponse()

    route(view)
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(get().status_code))
    thread.start()
    assert is_in.wait(20)
    assert get().status_code == 423
    goes.set()
    thread.join(20)
    assert answers == [200]
