"""memlock.flask: views that hold a lock."""

from __future__ import annotations

from typing import Any

import flask
import memlock
import pytest
from memlock.flask import lock_view
from support import Memcached


@pytest.fixture
def app() -> flask.Flask:
    app = flask.Flask(__name__)
    app.testing = True
    return app


def get(app: flask.Flask, number: int = 7) -> Any:
    return app.test_client().get(f"/orders/{number}")


def test_a_view_holds_the_lock_of_its_arguments(
    app: flask.Flask, client: memlock.Client, name: str
) -> None:
    @app.get("/orders/<int:order_id>")
    @lock_view(client, name + ":{order_id}")
    def pay(order_id: int) -> dict[str, bool]:
        return {"locked": client.mutex(f"{name}:{order_id}").locked()}

    assert get(app).json == {"locked": True}
    assert not client.mutex(f"{name}:7").locked()
    with client.mutex(f"{name}:7"):
        busy = get(app)
        assert get(app, 8).status_code == 200
    assert (busy.status_code, busy.headers["Retry-After"]) == (423, "1")
    assert busy.text == "Another request is being processed. Try again later."


def test_status_and_name_are_options(app: flask.Flask, client: memlock.Client, name: str) -> None:
    @app.get("/orders/<int:order_id>")
    @lock_view(
        client, lambda order_id: f"{name}:{order_id % 2}", timeout=0.05, status=409, retry_after=30
    )
    def pay(order_id: int) -> str:
        return "paid"

    with client.mutex(f"{name}:1"):
        busy = get(app)
    assert (busy.status_code, busy.headers["Retry-After"]) == (409, "30")
    assert get(app).text == "paid"
    with pytest.raises(TypeError, match="retry_after"):
        lock_view(client, "x", retry_after=1.5)  # type: ignore[arg-type]


def test_a_view_that_raises_releases(app: flask.Flask, client: memlock.Client, name: str) -> None:
    @app.get("/orders/<int:order_id>")
    @lock_view(client, name)
    def pay(order_id: int) -> str:
        flask.abort(404)

    assert get(app).status_code == 404
    assert not client.mutex(name).locked()


def test_a_server_that_is_away_is_not_busy(app: flask.Flask, mortal_server: Memcached) -> None:
    client = memlock.connect(mortal_server.url)

    @app.get("/orders/<int:order_id>")
    @lock_view(client, "orders")
    def pay(order_id: int) -> str:
        mortal_server.kill()
        return "paid"

    assert get(app).text == "paid"
    with pytest.raises(memlock.Unreachable):
        get(app)


def test_asynchronous_views(app: flask.Flask, client: memlock.Client, name: str) -> None:
    @app.get("/orders/<int:order_id>")
    @lock_view(client, name)
    async def pay(order_id: int) -> dict[str, bool]:
        return {"locked": client.mutex(name).locked()}

    assert get(app).json == {"locked": True}
    with client.mutex(name):
        assert get(app).status_code == 423


def test_a_generator_is_refused(app: flask.Flask, client: memlock.Client, name: str) -> None:
    """A streaming response would be sent without the lock."""

    @app.get("/orders/<int:order_id>")
    @lock_view(client, name)
    def pay(order_id: int) -> Any:
        return (str(number) for number in range(3))

    with pytest.raises(TypeError, match="generator"):
        get(app)
    with pytest.raises(TypeError, match="order"):
        lock_view(client, "order:{order}")(pay)
