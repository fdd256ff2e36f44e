"""Every test has a memcached of this test run, and names that no other test uses."""

from __future__ import annotations

import gc
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import memlock
import pytest
from databases import MariaDb, Postgres
from support import Memcached, MemcachedText
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
def shared_server() -> Iterator[Memcached]:
    server = Memcached()
    yield server
    server.close()


@pytest.fixture
def server(shared_server: Memcached) -> Memcached:
    """The run's memcached, for tests that leave it running."""
    return shared_server


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
