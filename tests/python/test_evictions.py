"""A server that may evict locks, and a URL that does not allow it."""

from __future__ import annotations

import memlock
import pytest
from support import Memcached


def test_a_server_that_may_evict_is_refused_and_the_error_names_it(
    mortal_server: Memcached,
) -> None:
    client = memlock.connect(f"{mortal_server.url}?evictions=refuse")
    mutex = client.mutex("m", lease=60)
    with pytest.raises(memlock.ConfigError, match="-M") as refusal:
        mutex.acquire()
    text = str(refusal.value)
    assert f"127.0.0.1:{mortal_server.port}" in text
    assert "evictions=refuse" in text
    with mortal_server.plain() as plain:
        assert plain.get("lock:m") is None

    mortal_server.restart("-o", "temporary_ttl=61")
    with pytest.raises(memlock.ConfigError, match="temporary_ttl=62,"):
        mutex.acquire()

    mortal_server.restart("-M")
    with mutex:
        assert mutex.remaining > 0


def test_another_word_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(memlock.ConfigError, match="neither allow nor refuse"):
        memlock.connect("memcached://h?evictions=no")
