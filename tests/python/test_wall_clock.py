"""A wall clock of the client's host that is stepped changes nothing: leases are counted on the boot
clock."""

from __future__ import annotations

import glob
from pathlib import Path

import memlock
import pytest
from support import Child, safe

PROGRAM = """
import os, sys, time
import memlock

def step(seconds):
    before = time.time()
    with open(os.environ["FAKETIME_TIMESTAMP_FILE"], "w") as file:
        file.write(f"{seconds:+d}")
    end = time.monotonic() + 60
    while abs(time.time() - before) < 1800:
        assert time.monotonic() < end, "the clock was not stepped"
        time.sleep(0.01)

url, name = sys.argv[1:]
client = memlock.connect(url)
mutex = client.mutex(name, lease=60)
assert mutex.acquire()
for seconds in (3600, -3600, 7200):
    step(seconds)
    assert mutex.is_held and 0 < mutex.remaining <= 60, (seconds, mutex.remaining)
    assert mutex.check() and mutex.lost is None
    mutex.extend()
    assert 20 < mutex.remaining <= 60, (seconds, mutex.remaining)
    print("stepped", flush=True)
    sys.stdin.readline()
fence = mutex.fence
mutex.release()
step(0)
with mutex:
    assert mutex.fence > fence
print("released", flush=True)
"""


@pytest.mark.parametrize("store", ["server", "sqlite", "postgres", "mariadb"])
def test_a_stepped_wall_clock_changes_nothing(
    store: str,
    name: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = request.getfixturevalue(store)
    url = place.url if store == "server" else place.store_url
    stamp = tmp_path / "stamp"
    stamp.write_text("+0")
    found = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")
    assert found, "libfaketime is not installed (packaging/need faketime)"
    monkeypatch.setenv("LD_PRELOAD", found[0])
    monkeypatch.setenv("FAKETIME_TIMESTAMP_FILE", str(stamp))
    monkeypatch.setenv("FAKETIME_NO_CACHE", "1")
    monkeypatch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    other = memlock.connect(url).mutex(name)
    with Child(PROGRAM, url, name) as child:
        for _ in range(3):
            assert child.reads() == "stepped"
            safe(not other.acquire(blocking=False), "held twice")
            child.says("")
        assert child.reads() == "released"
    assert other.acquire(blocking=False)
    other.release()
