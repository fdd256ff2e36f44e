"""The samples of frameworks that the test of all samples does not run."""

from __future__ import annotations

import asyncio
import io
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import celery
import django.test
import memlock
import pytest
from django.core.management import CommandError, call_command

ROOT = Path(__file__).resolve().parents[2]
README, DOCS = ROOT / "README.md", ROOT / "docs"


@pytest.fixture
def locks(client: memlock.Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = types.ModuleType("locks")
    module.client = client  # type: ignore[attr-defined]
    module.app = celery.Celery("sample")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "locks", module)
    yield


def sample(heading: str, page: Path = DOCS / "frameworks.md") -> dict[str, Any]:
    """Run the first such sample below a heading, and return its names."""
    section = page.read_text().split(f"\n## {heading}\n")[1]
    found = re.search(r"^```python no-run\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert found
    names: dict[str, Any] = {"__name__": "sample"}
    exec(compile(found[1], heading, "exec"), names)
    return names


@pytest.mark.usefixtures("locks", "django_databases")
def test_django(client: memlock.Client) -> None:
    names, output = sample("Django"), io.StringIO()
    request = django.test.RequestFactory().get("/")
    assert names["pay"](request, order_id=7).status_code == 200
    with client.mutex("order:7"), client.mutex("nightly-report"):
        assert names["pay"](request, order_id=7).status_code == 423
        with pytest.raises(CommandError):
            call_command(names["Command"]())
    call_command(names["Command"](), stdout=output)
    assert output.getvalue().startswith("fence ")


@pytest.mark.usefixtures("locks")
def test_celery(client: memlock.Client) -> None:
    import_orders = sample("Celery")["import_orders"]
    assert import_orders(7) == "imported 7"
    with client.mutex("import:7"), pytest.raises(memlock.TimedOut):
        import_orders(7)


@pytest.mark.usefixtures("locks", "django_databases")
def test_the_languages_page(client: memlock.Client) -> None:
    page, request = DOCS / "languages.md", django.test.RequestFactory().get("/")
    pay, import_orders = sample("Django", page)["pay"], sample("Celery", page)["import_orders"]
    assert pay(request, order_id=7).status_code == 200
    assert import_orders(7) == "imported 7"
    with client.mutex("order:7"), client.mutex("import:7"):
        assert pay(request, order_id=7).status_code == 423
        with pytest.raises(memlock.TimedOut):
            import_orders(7)


@pytest.mark.usefixtures("locks", "django_databases")
def test_the_readme(client: memlock.Client) -> None:
    names = sample("One lock in each language", README)
    request = django.test.RequestFactory().get("/")
    assert names["import_orders"](7) is None
    with client.mutex("order:7"), client.mutex("import:7"):
        assert names["pay"](request, order_id=7).status_code == 423
        with pytest.raises(memlock.TimedOut):
            names["import_orders"](7)


@pytest.mark.usefixtures("locks")
def test_fastapi(client: memlock.Client) -> None:
    pytest.importorskip("fastapi")
    app, statuses = sample("FastAPI")["app"], []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: dict[str, Any]) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    def post() -> None:
        scope = {"type": "http", "method": "POST", "path": "/orders/7", "headers": []}
        asyncio.run(app({**scope, "query_string": b"", "root_path": ""}, receive, send))

    post()
    with client.mutex("order:7"):
        post()
    assert statuses == [200, 423]


@pytest.mark.usefixtures("locks")
def test_flask(client: memlock.Client) -> None:
    http = sample("Flask")["app"].test_client()
    assert http.post("/orders/7").text == "paid"
    with client.mutex("order:7"):
        assert http.post("/orders/7").status_code == 423


@pytest.mark.usefixtures("locks")
def test_apscheduler(client: memlock.Client, capsys: pytest.CaptureFixture[str]) -> None:
    names = sample("APScheduler and cron")
    names["scheduler"].shutdown()
    with client.mutex("cleanup"):
        names["clean_up"]()
    assert capsys.readouterr().out == ""
    names["clean_up"]()
    assert capsys.readouterr().out == "cleaning up\n"
