"""Sub-interpreters cannot import memlock, and do no harm by trying."""

from __future__ import annotations

import importlib.util

import pytest
from support import Memcached, run

NAMES = ("_interpreters", "_xxsubinterpreters")

PROGRAM = """
import logging, os, signal, sys, threading, time
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
url, name, first, destroy = sys.argv[1:]
if first == "main":
    import memlock
# Other sub-interpreters have a GIL of their own, and Python itself refuses to import memlock there.
options = {(3, 12): {"isolated": False}, (3, 13): {"config": "legacy"}}
version = min(sys.version_info[:2], (3, 13))
made = interpreters.create(**options.get(version, {}))
failed = interpreters.run_string(made, '''
try:
    import memlock
except ImportError as error:
    print(error, flush=True)
''')
assert not failed, failed
if destroy:
    interpreters.destroy(made)

import memlock
client = memlock.connect(url)
called, records = threading.Event(), []
handler = logging.Handler()
handler.handle = lambda record: records.append(record.name)
logging.getLogger("memlock").addHandler(handler)
logging.getLogger("memlock").propagate = False
mutex = client.mutex(name, renew=True, on_lost=lambda _: called.set())
mutex.acquire()
mutex.force_unlock(mutex.owner().token)
mutex.check()
print("callback", called.wait(60))
print("logs", "memlock.renewal" in records)
try:
    print(client.mutex(name).acquire(blocking=True, timeout=object()))
except TypeError:
    print("exceptions")
held = client.mutex(name + "-held")
held.acquire()
def interrupt():
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGINT)
try:
    threading.Thread(target=interrupt).start()
    print(client.mutex(name + "-held").acquire(timeout=60))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.skipif(
    not any(importlib.util.find_spec(name) for name in NAMES), reason="no module to make any"
)
@pytest.mark.parametrize(
    ("first", "destroy"), [("main", "destroy"), ("sub", ""), ("sub", "destroy")]
)
def test_a_sub_interpreter_cannot_import_memlock_and_the_main_interpreter_is_not_affected(
    server: Memcached, name: str, first: str, destroy: str
) -> None:
    assert run(PROGRAM, server.url, name, first, destroy) == [
        "memlock does not support sub-interpreters: import it in the main interpreter.",
        "callback True",
        "logs True",
        "exceptions",
        "interrupted",
    ]
