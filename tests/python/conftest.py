"""Every test has a memcached of this test run, and names that no other test uses."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import memlock
import pytest
from databases import MariaDb, Postgres
from support import Memcached, MemcachedText


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
