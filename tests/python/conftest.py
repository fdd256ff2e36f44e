"""Every test has a memcached of this test run, and names that no other test uses."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator

import memlock
import pytest
from databases import MariaDb, Postgres
from support import Memcached, MemcachedText

# FastAPI runs on newer Pythons only.
collect_ignore = ["test_fastapi.py"] if sys.version_info < (3, 11) else []


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
def django_databases(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Django with the databases "sqlite" and "postgres". A process can be configured only once."""
    import django  # noqa: PLC0415 -- only for its tests
    import django.conf  # noqa: PLC0415

    path = tmp_path_factory.mktemp("django") / "work.db"
    sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path)}
    databases = {"default": sqlite, "sqlite": sqlite, "postgres": postgres.for_django}
    options = {"USE_TZ": True, "ALLOWED_HOSTS": ["testserver"], "SECRET_KEY": "test"}
    django.conf.settings.configure(DATABASES=databases, **options)
    django.setup()


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDb]:
    """A MariaDB of the test run."""
    server = MariaDb()
    yield server
    server.close()
