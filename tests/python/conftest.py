"""Every test has a memcached of this test run, and names that no other test uses."""

from __future__ import annotations

import gc
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import memlock
import pytest
from databases import MariaDb, Postgres, Sqlite
from support import KINDS, Make, Memcached, MemcachedText
from xdist.scheduler import LoadScopeScheduling

WITH_DATABASES = ("fence_guard", "release_in", "transactions", "wall_clock")


class Scheduling(LoadScopeScheduling):
    """Of several workers, one runs all tests with databases: so each database is started once."""

    def _split_scope(self, nodeid: str) -> str:
        test = nodeid.rpartition("/")[2].removeprefix("test_")
        return "databases" if test.startswith(WITH_DATABASES) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return Scheduling(config, log)


def pytest_collection_finish() -> None:
    """Many tests collect garbage, and need not look at all that was imported."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def server() -> Iterator[Memcached]:
    """The run's memcached, for tests that leave it running."""
    server = Memcached()
    yield server
    server.close()


@pytest.fixture
def mortal_server() -> Iterator[Memcached]:
    """A memcached that the test may kill, restart or pause."""
    server = Memcached()
    yield server
    server.close()


@pytest.fixture
def plain(server: Memcached) -> Iterator[MemcachedText]:
    with server.plain() as plain:
        yield plain


@pytest.fixture
def client(server: Memcached) -> memlock.Client:
    return memlock.connect(server.url)


@pytest.fixture(params=["memcached", "memory"])
def any_client(request: pytest.FixtureRequest) -> memlock.Client:
    """A client of each store."""
    if request.param == "memory":
        return memlock.connect(f"memory://{uuid.uuid4().hex}")
    return memlock.connect(request.getfixturevalue("server").url)


@pytest.fixture
def name() -> str:
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def mutex(client: memlock.Client, name: str) -> memlock.Mutex:
    return client.mutex(name)


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, client: memlock.Client, name: str) -> Make:
    return lambda **more: KINDS[request.param](client, name, **more)


@pytest.fixture
def hasty_switching() -> Iterator[None]:
    """Threads give each other the interpreter a hundred thousand times a second."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[BaseException | None]:
    """What went to sys.unraisablehook."""
    seen: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda given: seen.append(given.exc_value))
    return seen


@pytest.fixture
def sqlite(tmp_path: Path) -> Sqlite:
    return Sqlite(tmp_path)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL of the test run."""
    server = Postgres()
    yield server
    server.close()


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDb]:
    """A MariaDB of the test run."""
    server = MariaDb()
    yield server
    server.close()


@pytest.fixture
def opened() -> Iterator[Callable[[Any], Any]]:
    """Takes connections, which are closed at the end."""
    connections: list[Any] = []

    def open_until_the_end(connection: Any) -> Any:
        connections.append(connection)
        return connection

    yield open_until_the_end
    for connection in connections:
        # PyMySQL's refuses to be closed twice.
        if getattr(connection, "open", True):
            connection.close()
