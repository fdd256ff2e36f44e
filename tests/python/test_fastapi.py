"""memlock.fastapi: requests that hold a lock. Each test speaks ASGI to the application."""

from __future__ import annotations

import asyncio
import datetime
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import fastapi
import memlock
import memlock.aio
import pytest
from fastapi.responses import StreamingResponse
from memlock.fastapi import lock
from support import Memcached


class Request:
    """One request, and what the application has sent."""

    def __init__(self, path: str, query: str = "") -> None:
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": query.encode(),
            "headers": [],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.is_sent = asyncio.Event()
        self.is_gone = asyncio.Event()
        self.at_send: Callable[[], Awaitable[None]] | None = None
        self.has_asked = False

    async def receive(self) -> dict[str, Any]:
        if not self.has_asked:
            self.has_asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.is_gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = dict(message["headers"])
            return
        if self.at_send is not None:
            await self.at_send()
        self.body += message.get("body", b"")
        self.is_sent.set()


async def get(app: fastapi.FastAPI, path: str, query: str = "") -> Request:
    request = Request(path, query)
    await app(request.scope, request.receive, request.send)
    return request


@pytest.fixture
def app() -> fastapi.FastAPI:
    return fastapi.FastAPI()


@pytest.fixture
def aio(server: Memcached) -> memlock.aio.Client:
    return memlock.aio.connect(server.url)


def test_a_request_holds_the_lock_of_its_parameters(
    app: fastapi.FastAPI, aio: memlock.aio.Client, name: str
) -> None:
    @app.get("/orders/{order_id}")
    async def pay(
        order_id: int,
        mutex: memlock.aio.Mutex = lock(  # noqa: B008 -- a dependency, as Depends()
            aio, name + ":{order_id}", order_id=int
        ),
    ) -> dict[str, Any]:
        locked = await aio.mutex(f"{name}:{order_id}").locked()
        return {"locked": locked, "held": mutex.is_held and mutex.fence > 0}

    async def main() -> None:
        assert (await get(app, "/orders/7")).body == b'{"locked":true,"held":true}'
        assert not await aio.mutex(f"{name}:7").locked()
        async with aio.mutex(f"{name}:7"):
            # The same order, and so the same lock.
            for path in ("/orders/7", "/orders/07"):
                busy = await get(app, path)
                assert (busy.status, busy.headers[b"retry-after"]) == (423, b"1")
                assert b"Try again later" in busy.body and b"held by" not in busy.body
            assert (await get(app, "/orders/8")).status == 200
        assert (await get(app, "/orders/x")).status == 422

    asyncio.run(main())
    parameters = app.openapi()["paths"]["/orders/{order_id}"]["get"]["parameters"]
    assert [one["name"] for one in parameters] == ["order_id"]


def test_a_handler_that_blocks_holds_the_lock_too(
    app: fastapi.FastAPI, client: memlock.Client, name: str
) -> None:
    @app.get(
        "/reports/{day}",
        dependencies=[
            lock(
                client,
                name + ":{day}:{part}",
                day=datetime.date,
                part=int,
                status=409,
                timeout=0.05,
                retry_after=30,
            )
        ],
    )
    def report(day: datetime.date, part: int) -> bool:
        return client.mutex(f"{name}:{day}:{part}").locked()

    async def main() -> None:
        assert (await get(app, "/reports/2026-01-02", "part=3")).body == b"true"
        with client.mutex(f"{name}:2026-01-02:3"):
            busy = await get(app, "/reports/2026-01-02", "part=3")
        assert (busy.status, busy.headers[b"retry-after"]) == (409, b"30")

    asyncio.run(main())


def test_a_function_may_return_the_name(
    app: fastapi.FastAPI, aio: memlock.aio.Client, name: str
) -> None:
    def order_lock(order_id: int, shop: str = "main") -> str:
        return f"{name}:{shop}:{order_id}"

    @app.get("/orders/{order_id}", dependencies=[lock(aio, order_lock)])
    async def pay(order_id: int) -> bool:
        return await aio.mutex(f"{name}:main:{order_id}").locked()

    async def main() -> None:
        assert (await get(app, "/orders/7")).body == b"true"

    asyncio.run(main())


def test_the_lock_is_released_before_the_response_is_sent(
    app: fastapi.FastAPI, aio: memlock.aio.Client, name: str
) -> None:
    """A client that has the response may send its next request at once."""
    states: list[bool] = []

    @app.get("/function", dependencies=[lock(aio, name)])
    async def first() -> None: ...

    @app.get("/request", dependencies=[lock(aio, name, scope="request")])
    async def second() -> None: ...

    async def look() -> None:
        states.append(await aio.mutex(name).locked())

    async def main() -> None:
        for path in ("/function", "/request"):
            request = Request(path)
            request.at_send = look
            await app(request.scope, request.receive, request.send)
        assert not await aio.mutex(name).locked()

    asyncio.run(main())
    assert states == [False, True]


def test_a_handler_that_raises_releases(
    app: fastapi.FastAPI, aio: memlock.aio.Client, name: str
) -> None:
    @app.get("/{what}", dependencies=[lock(aio, name)])
    async def fail(what: str) -> None:
        raise fastapi.HTTPException(404) if what == "404" else KeyError

    async def main() -> None:
        assert (await get(app, "/404")).status == 404
        assert not await aio.mutex(name).locked()
        with pytest.raises(KeyError):
            await get(app, "/error")
        assert not await aio.mutex(name).locked()

    asyncio.run(main())


def test_a_cancelled_request_releases(
    app: fastapi.FastAPI, aio: memlock.aio.Client, name: str
) -> None:
    is_in = asyncio.Event()

    @app.get("/", dependencies=[lock(aio, name)])
    async def sleep() -> None:
        is_in.set()
        await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.ensure_future(get(app, "/"))
        await is_in.wait()
        assert await aio.mutex(name).locked()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await aio.mutex(name).acquire(timeout=20)

    asyncio.run(main())


def test_a_client_that_disconnects_releases(
    app: fastapi.FastAPI, aio: memlock.aio.Client, name: str
) -> None:
    """While a response is streamed under the lock."""

    async def chunks() -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.sleep(60)

    @app.get("/", dependencies=[lock(aio, name, scope="request")])
    async def stream() -> StreamingResponse:
        return StreamingResponse(chunks())

    async def main() -> None:
        request = Request("/")
        task = asyncio.ensure_future(app(request.scope, request.receive, request.send))
        await request.is_sent.wait()
        assert await aio.mutex(name).locked()
        request.is_gone.set()
        await asyncio.wait_for(task, 20)
        assert await aio.mutex(name).acquire(timeout=20)

    asyncio.run(main())


def test_a_loss_cancels_the_handler(
    app: fastapi.FastAPI, aio: memlock.aio.Client, server: Memcached, name: str
) -> None:
    @app.get("/", dependencies=[lock(aio, name, lease=3)])
    async def sleep() -> None:
        with server.plain() as plain:
            plain.delete(f"lock:{name}")
        await asyncio.sleep(60)

    async def main() -> None:
        with pytest.raises(memlock.LockLost, match=name):
            await asyncio.wait_for(get(app, "/"), 20)

    asyncio.run(main())


def test_a_loss_ends_a_request_whose_handler_blocks(
    app: fastapi.FastAPI, aio: memlock.aio.Client, server: Memcached, name: str
) -> None:
    """The handler itself cannot be cancelled, and goes on in its thread."""
    goes = threading.Event()

    @app.get("/", dependencies=[lock(aio, name, lease=3)])
    def block() -> None:
        with server.plain() as plain:
            plain.delete(f"lock:{name}")
        assert goes.wait(20)

    async def main() -> None:
        try:
            with pytest.raises(memlock.LockLost, match=name):
                await asyncio.wait_for(get(app, "/"), 20)
        finally:
            goes.set()

    asyncio.run(main())


def test_a_server_that_is_away_is_not_busy(app: fastapi.FastAPI, mortal_server: Memcached) -> None:
    client = memlock.connect(mortal_server.url)

    @app.get("/", dependencies=[lock(client, "x")])
    async def work() -> str:
        mortal_server.kill()
        return "done"

    async def main() -> None:
        # What is done is done.
        assert (await get(app, "/")).body == b'"done"'
        with pytest.raises(memlock.Unreachable):
            await get(app, "/")

    asyncio.run(main())


def test_wrong_arguments_are_refused_when_the_module_is_imported(
    aio: memlock.aio.Client,
) -> None:
    with pytest.raises(TypeError, match=r"pass its type.*order_id=int"):
        lock(aio, "order:{order_id}")
    with pytest.raises(TypeError, match='no field "id"'):
        lock(aio, "order:{order_id}", order_id=int, id=int)
    with pytest.raises(TypeError, match="signature"):
        lock(aio, lambda: "x", order_id=int)
    with pytest.raises(memlock.Invalid):
        lock(aio, "x", lease=0)
