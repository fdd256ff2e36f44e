"""Each test runs on asyncio, on uvloop and on trio."""

from __future__ import annotations

import memlock.aio
import pytest
from support import Memcached

BACKENDS = {
    "asyncio": ("asyncio", {"use_uvloop": False}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}


@pytest.fixture(params=list(BACKENDS))
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return BACKENDS[request.param]


@pytest.fixture
def aio_client(server: Memcached) -> memlock.aio.Client:
    return memlock.aio.connect(server.url)
