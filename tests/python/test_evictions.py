"""A server that may evict locks, and what the URL says of it."""

from __future__ import annotations

import memlock
import pytest
from support import Child, Memcached

PATIENT = "connect_timeout=20s&io_timeout=20s"


def test_a_server_that_may_evict_is_refused_and_the_error_names_it(
    mortal_server: Memcached,
) -> None:
    client = memlock.connect(f"{mortal_server.bare_url}?{PATIENT}&evictions=refuse")
    mutex = client.mutex("m", lease=60)
    with pytest.raises(memlock.ConfigError, match="-M") as refusal:
        mutex.acquire()
    text = str(refusal.value)
    assert f"127.0.0.1:{mortal_server.port}" in text
    assert "lock:m" in text
    assert "evictions=refuse" in text
    with mortal_server.plain() as plain:
        assert plain.get("lock:m") is None

    mortal_server.kill()
    mortal_server.start("-o", "temporary_ttl=61,no_slab_reassign")
    with pytest.raises(memlock.ConfigError, match="temporary_ttl=62,no_slab_reassign,"):
        mutex.acquire()

    mortal_server.kill()
    mortal_server.start("-M")
    with mutex:
        assert mutex.remaining > 0


def test_another_word_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(memlock.ConfigError, match="neither allow nor refuse"):
        memlock.connect("memcached://h?evictions=no")


@pytest.mark.parametrize(("more", "warnings"), [("", 1), ("&evictions=allow", 0)])
def test_a_program_is_warned_once_unless_the_url_allows_it(
    server: Memcached, name: str, more: str, warnings: int
) -> None:
    program = """
import sys
import memlock
url, name = sys.argv[1:]
client = memlock.connect(url)
for number in range(3):
    with client.mutex(f"{name}{number}"), client.mutex(f"other {name}{number}"):
        pass
print("done")
"""
    with Child(program, f"{server.bare_url}?{PATIENT}{more}", name) as child:
        assert child.reads() == "done"
        assert child.process.stderr is not None
        said = child.process.stderr.read()
    assert said.count("may evict locks when its memory is full") == warnings, said
    assert said.count(f"127.0.0.1:{server.port}") == warnings
    assert len(said.splitlines()) == warnings
