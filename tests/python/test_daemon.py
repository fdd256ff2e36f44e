"""A daemon closes all descriptors, those of memlock too; what it opens then is left alone."""

from __future__ import annotations

import pytest
from support import Memcached, run

PROGRAM = """
import os, socket, sys, time
import memlock
url, name, kind, pause = sys.argv[1:]

def is_open(number):
    try:
        return bool(os.fstat(number))
    except OSError:
        return False

def open_two():
    if kind == "pipe":
        ends = os.pipe()
        os.write(ends[1], b"mine")
    else:
        ends = [end.detach() for end in socket.socketpair()]
        for end in ends:
            os.write(end, b"mine")
    for end in ends:
        os.set_blocking(end, False)
    return ends

client = memlock.connect(url)
mutex = client.mutex(name)
mutex.acquire()
memlock.init(url)
memlock.mutex_lock(name + "-bare", 30)

last = max(filter(is_open, range(1024)))
assert last > 2, "memlock has nothing open"
os.closerange(3, 1024)
opened = []
while not is_open(last):
    opened.append(open_two())
time.sleep(float(pause))

mutex.release()
memlock.mutex_unlock(name + "-bare")
with mutex:
    pass
client.close()
for ends in opened:
    for end in ends[:1] if kind == "pipe" else ends:
        assert os.read(end, 64) == b"mine"
    for end in ends:
        os.close(end)
print("left alone")
"""


@pytest.mark.parametrize(("kind", "pause"), [("pipe", "0"), ("pipe", "0.15"), ("pair", "0.15")])
def test_what_a_daemon_opens_later_is_left_alone(
    server: Memcached, name: str, kind: str, pause: str
) -> None:
    assert run(PROGRAM, server.url, name, kind, pause) == ["left alone"]
